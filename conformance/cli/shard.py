"""One shard on the machine of a Dask worker: `python -m conformance.cli.shard OPTIONS`, with the options as JSON."""

from __future__ import annotations

import json
import sys

from ..engine.options import RunOptions
from ..worker.processes import end_with_parent
from .commands import reported
from .run import run_here

if __name__ == "__main__":
    end_with_parent()
    sys.exit(reported(run_here, RunOptions.from_json(json.loads(sys.argv[1]))))
