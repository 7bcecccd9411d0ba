"""A run of the conformance suite on a local Dask cluster: its arguments are those of `run`.

The last line is its exit code.
"""

from __future__ import annotations

import sys

import distributed

from conformance.cli import commands

if __name__ == "__main__":
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(commands.main(["run", "--spread", cluster.scheduler_address, *sys.argv[1:]]))
