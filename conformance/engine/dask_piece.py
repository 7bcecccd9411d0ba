"""One piece of work in a process of its own on the machine of a Dask worker: `python -m conformance.engine.dask_piece`.

Its standard input is the work, a pickled function and its arguments. Each result is a line of JSON on its standard
output. So JAX stays out of the Dask worker, and SIGTERM ends the piece as it ends a command that runs on one machine.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys

from ..worker.parent import end_with_parent

STOPPED = 130


def main() -> int:
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # What anything prints is no result.
    results = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    try:
        function, arguments = pickle.load(sys.stdin.buffer)
        for found in function(*arguments):
            results.write(json.dumps(found) + "\n")
            results.flush()
    except KeyboardInterrupt:
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
