"""`python -m hostcb` prints what `hostcb.doctor` finds, and exits with 1 if this JAX lacks something."""

from __future__ import annotations

import argparse
import sys

from . import doctor

parser = argparse.ArgumentParser(
    prog="python -m hostcb",
    allow_abbrev=False,
    description="Print versions, devices, whether the native extension is in use, and what hostcb misses in this JAX. "
    "The exit code is 1 if it misses something.",
)
parser.add_argument(
    "--all",
    action="store_true",
    help="print also how callbacks reach the host on each platform, and each part of JAX's private side that hostcb "
    "uses",
)
show_all = parser.parse_args().all
report = doctor()
print(report.text if show_all else f"{report.brief}\n`python -m hostcb --all` prints more.")
sys.exit(0 if report.complete else 1)
