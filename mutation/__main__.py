"""The command line of the campaign: `python -m mutation -h`."""

from __future__ import annotations

import os
import sys

# JAX reads these when it is imported; the workers are forks of this process.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

if __name__ == "__main__":
    from .commands import main

    sys.exit(main())
