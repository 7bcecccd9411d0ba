"""The command `list`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.options import ConflictingOptionsError, RunOptions, add_selection
from ..spec.platforms import Platform, known_platforms
from .helping import add_command, add_patterns

if TYPE_CHECKING:
    from ..planning.cells import Ineligible

NO_CELL = 2


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "list",
        "List the selected cells with the promises that they test.",
        ["-k case.", "--coverage", "--ineligible", "--plan --smoke"],
        {0: "there are cells", NO_CELL: "bad input, or no cell"},
    )
    add_selection(parser.add_argument)
    add_patterns(parser.add_argument)
    add = parser.add_argument
    add("--coverage", action="store_true", help="what of all axes is covered, and what not and why")
    add("--plan", action="store_true", dest="as_plan", help="a file for `run --cell @FILE`, the same on every release")
    add("--platforms", action="store_true", help="the platforms that the suite, packages and files describe")
    add("--ineligible", action="store_true", help="the cells that are not applicable, and why")


def main(parsed: argparse.Namespace) -> int:
    from ..engine.preparation import take_platform, whole_plan_of
    from ..planning.coverage import coverage_of
    from ..planning.plan_file import plan_text
    from ..planning.selection import Choice

    options = RunOptions.of(parsed)
    if parsed.platforms:
        take_platform(options)
        print("\n".join(line for platform in known_platforms() for line in _of_platform(platform)))
        return 0
    if parsed.as_plan and (parsed.coverage or parsed.ineligible):
        raise ConflictingOptionsError("--plan prints cells, and --coverage and --ineligible do not")
    options, whole = whole_plan_of(options)
    plan = (whole if parsed.as_plan else whole.on_this_release()).select(options.patterns)
    if not (plan.cells or (plan.ineligible and not parsed.as_plan)):
        print("ERROR: no cell matches", file=sys.stderr)
        return NO_CELL
    if parsed.coverage:
        where = (options.platform, options.devices, Choice(options.seed, options.full))
        print("\n\n".join(str(coverage_of(plan, name, *where)) for name in options.implementations))
    elif parsed.as_plan:
        print(plan_text(plan, _described(options)), end="")
    elif parsed.ineligible:
        _show_ineligible(plan.ineligible)
    else:
        for cell in plan.cells:
            print(cell.id, ",".join(cell.promises))
    return 0


def _show_ineligible(left_out: Sequence[Ineligible]) -> None:
    """Each cell with its reason, then each reason with the number of its cells."""
    for one in left_out:
        print(f"{one.id}: {one.reason}")
    print()
    for reason, count in Counter(one.reason for one in left_out).most_common():
        print(f"{count:7} {reason}")


def _described(options: RunOptions) -> str:
    """The options that have selected the cells, as one would write them."""
    words = ["--platform", options.platform, "--devices", ",".join(map(str, options.devices))]
    words += [word for name in options.implementations for word in ("--implementation", name)]
    words += ["--full", str(options.seed)] if options.full else ["--smoke"] if options.smoke else []
    words += [word for pattern in options.patterns for word in ("-k", pattern)]
    return shlex.join(words)


def _of_platform(platform: Platform) -> list[str]:
    """What its description says, by the names in a file."""
    lines = [f"{platform.name}, by {platform.source}"]
    for name, value in {**vars(platform), "name": "", "source": ""}.items():
        pairs = [f"{key}={each}" for key, each in value.items()] if isinstance(value, Mapping) else value
        words = " ".join(map(str, pairs)) if isinstance(pairs, list | tuple) else pairs
        if words:
            lines.append(f"    {name}: {words}")
    return lines
