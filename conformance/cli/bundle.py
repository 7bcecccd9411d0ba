"""The command `bundle`, which needs no JAX."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

from ..bundles.archive import BadBundleError, bundle_of, unpack
from ..bundles.judging import judged
from ..spec.package import COMMAND
from .helping import add_command, add_results

UNUSABLE = 2

DEFAULT_NAME = "bundle.zip"


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "bundle",
        "Write one archive with the results and the journals of a run, and their hashes.",
        ["results", "results --output cuda-2026-11.zip"],
        {0: "the bundle was written", UNUSABLE: "no results, or results that do not say how they were made"},
    )
    add_results(parser.add_argument)
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"by default DIR/{DEFAULT_NAME}")


def main(options: argparse.Namespace) -> int:
    bundle = bundle_of(options.results)
    output = options.output or options.results / DEFAULT_NAME
    try:
        # It must not take another machine to find that the results contradict themselves.
        runs = judged(unpack(io.BytesIO(data := bundle.packed())))
    except BadBundleError as error:
        print(f"ERROR: {options.results} cannot be bundled: {error}", file=sys.stderr)
        return UNUSABLE
    output.write_bytes(data)
    of = ", ".join(run.record.name for run in runs)
    print(f"{output}: results of {of} in {len(bundle.members)} members, {len(data)} bytes")
    for failed in (run.record for run in runs if not run.record.good):
        why = ", ".join(filter(None, (failed.facts[name] for name in ("passed", "unexpected", "problems"))))
        print(f"NOTE: the run of {failed.name} ended with FAIL: {why}")
    print(f"digest {bundle.digest}")
    print(f"Publish the digest elsewhere: `{COMMAND} verify {output} --digest {bundle.digest}`")
    return 0
