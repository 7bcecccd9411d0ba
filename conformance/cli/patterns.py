"""The option `-k` of `run` and `list`."""

from __future__ import annotations

import argparse


def add_patterns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-k",
        dest="patterns",
        action="append",
        default=[],
        metavar="EXPR",
        help="only cells whose id matches this, as for pytest: 'id_tap and not (vmap or pmap)'; may be repeated",
    )
