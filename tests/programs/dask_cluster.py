"""A local Dask cluster of as many workers as the argument says: it prints its address.

For each line on its standard input it prints a line, as soon as every worker is free: the number of their tasks.
"""

from __future__ import annotations

import os
import sys

import distributed

if __name__ == "__main__":
    workers = int(sys.argv[1])
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        print(cluster.scheduler_address, flush=True)
        for _ in sys.stdin:
            client.run(os.getpid)
            client.submit(os.getpid, pure=False).result(timeout=30)
            print(sum(map(len, client.processing().values())), flush=True)
