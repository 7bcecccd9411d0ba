"""The command `verify`, which needs no JAX, but for `--replan`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bundles.archive import BadBundleError, Bundle, unpack
from ..bundles.earning import Claim, claims
from ..bundles.judging import JudgedRun, judged
from ..reports.visible import in_a_line
from ..spec.capabilities import PROFILES
from ..spec.suite import this_suite
from .helping import add_command, add_implementations

NOTHING_EARNED, UNUSABLE = 1, 2


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "verify",
        "Check every byte of a bundle, judge its results again, and print which profiles they earn. This needs no JAX.",
        ["results/bundle.zip", "bundle.zip --digest 6d1c...", "bundle.zip --json", "bundle.zip --replan"],
        {
            0: "the bundle is genuine, and earns at least one profile",
            NOTHING_EARNED: "the bundle is genuine, and earns no profile",
            UNUSABLE: "no bundle, or one that was changed, is incomplete or contradicts itself",
        },
        "\nprofiles:\n" + "\n".join(f"  {name:<14} {words}" for name, words in PROFILES.items()),
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what `bundle` has written")
    parser.add_argument("--digest", metavar="HEX", help="the digest that was published: it must be the bundle's")
    parser.add_argument(
        "--replan",
        action="store_true",
        help="plan the cells again with this suite, which needs JAX: they must be those of the bundle",
    )
    add_implementations(
        parser.add_argument, "with --replan: a module with an implementation, which may be imported; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    try:
        bundle = unpack(options.file)
        if options.digest is not None and options.digest.lower() != bundle.digest:
            raise BadBundleError(f"its digest is {bundle.digest}, and not the one that was published")
        runs = judged(bundle)
        if options.replan:
            _replan(runs, options.implementations)
    except BadBundleError as error:
        if options.json:
            print(json.dumps({"genuine": False, "reason": str(error)}))
        print(f"ERROR: {options.file} is not genuine: {in_a_line(str(error))}", file=sys.stderr)
        return UNUSABLE
    found = [claim for run in runs for claim in claims(run)]
    print(_json(bundle, runs, found) if options.json else _text(options, bundle, runs, found))
    return 0 if any(claim.earned for claim in found) else NOTHING_EARNED


def _replan(runs: tuple[JudgedRun, ...], trusted: Sequence[str]) -> None:
    """Raise unless this suite plans the same cells with the options of each run."""
    # Imported here, because only this needs JAX.
    from ..engine.preparation import planned_again
    from ..implementations import BUILT_IN
    from ..reports.provenance import plan_digest

    for run in runs:
        if run.plan is None:
            continue
        # An implementation is imported by its name, and a bundle shall not choose what this process imports.
        if unknown := sorted({*map(str, run.made["options"]["implementations"])} - {*BUILT_IN, *trusted}):
            raise BadBundleError(
                f"its run had the implementation {unknown[0]!r}, which --replan would import:"
                f" `--replan --implementation {unknown[0]}` allows that"
            )
        ids = planned_again(run.made["options"])
        if plan_digest(ids) != run.made["plan"]["digest"]:
            differ = {*ids} ^ {*run.plan}
            raise BadBundleError(
                f"conformance-{run.record.name}.json: its plan differs in {len(differ)} cells, like {min(differ)},"
                f" from that of this suite, {this_suite().words}; it is of {run.record.made['suite']}"
            )


def _json(bundle: Bundle, runs: tuple[JudgedRun, ...], found: list[Claim]) -> str:
    about = [
        {
            "platform": run.record.platform,
            "exit_code": run.exit_code,
            "stored_exit_code": run.stored_exit_code,
            "cells": len(run.record.cells),
            "problems": run.record.problems,
            "journal": run.journal,
            "suite": run.made["suite"],
            "plan": run.made["plan"] and run.made["plan"]["digest"],
        }
        for run in runs
    ]
    claimed = [vars(claim) | {"earned": claim.earned} for claim in found]
    return json.dumps({"genuine": True, "digest": bundle.digest, "runs": about, "profiles": claimed}, indent=1)


def _text(options: argparse.Namespace, bundle: Bundle, runs: tuple[JudgedRun, ...], found: list[Claim]) -> str:
    lines = [
        f"{options.file}: {len(bundle.members)} members, every byte as its SHA256SUMS says",
        f"digest {bundle.digest}",
    ]
    if options.digest is None:
        lines.append(
            "NOTE: a person who changes a bundle can also change its sums. Only a digest that was published elsewhere,"
            " given by --digest, shows that nobody did"
        )
    for run in runs:
        lines += ["", *_about(run, options.replan)]
    rows = [["platform", "profile", "implementation", "depth", "result"]]
    rows += [[one.platform, one.profile, one.implementation, one.depth, one.words] for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines += ["", *("  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows)]
    # A case may belong to several profiles.
    known = {cell_id: reason for claim in found if claim.earned for cell_id, reason in claim.known_failures.items()}
    lines += [f"KNOWN: {cell_id}: {reason}" for cell_id, reason in known.items()]
    # No word of a bundle may look like a line of this text.
    return "\n".join(map(in_a_line, lines))


def _about(run: JudgedRun, replanned: bool) -> list[str]:
    made, suite, code = run.made, run.record.made["suite"], run.stored_exit_code
    stored = "as stored" if code == run.exit_code else f"DIFFERS: {code} is stored"
    lines = [
        f"{run.record.name}: suite {suite}, {run.record.facts['software']}, {made['begin']} to {made['end']}",
        f"  {made['command']}",
        f"  {len(run.record.cells)} cells judged again, all as stored; exit code {run.exit_code}, {stored}",
    ]
    if not run.journal:
        lines.append("  no journal, so no pass could be looked up there")
    if run.plan is not None:
        whose = "as this suite plans it" if replanned else "not compared: --replan does that, with JAX"
        lines.append(f"  plan {made['plan']['digest']}, {made['plan']['count']} cells, {whose}")
    return [*lines, *(f"  PROBLEM: {problem}" for problem in run.record.all_problems)]
