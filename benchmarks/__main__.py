"""All benchmarks, one after the other: `python -m benchmarks`. A target that one misses does not hide the others."""

from __future__ import annotations

import sys

from benchmarks import large, loop, single

# A list, so that none is left out after the first that fails.
sys.exit(max([module.main(sys.argv[1:]) for module in (loop, single, large)]))
