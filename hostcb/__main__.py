"""`python -m hostcb` prints what `hostcb.doctor` finds, and exits with 1 if this JAX lacks something."""

from __future__ import annotations

import argparse
import os
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
    help="print also how callbacks reach the host on each platform, and each private part of JAX that hostcb uses",
)
show_all = parser.parse_args().all
report = doctor()
try:
    print(report.text if show_all else f"{report.brief}\n`python -m hostcb --all` prints more.", flush=True)
except BrokenPipeError:
    # The reader, such as `head`, wants no more, and Python's own flush at the end must not fail either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
sys.exit(0 if report.complete else 1)
