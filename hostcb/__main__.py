"""`python -m hostcb` prints what `hostcb.doctor` finds, and exits with 1 if this JAX lacks something."""

from __future__ import annotations

import sys

from . import doctor

report = doctor()
print(report)
sys.exit(0 if report.complete else 1)
