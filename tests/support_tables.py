#!/usr/bin/env python3
"""The tables of support on the pages of docs/callbacks, which count the cells of one run of the matrix.

With the folder of a run's results, this program writes an extract of them to docs/callbacks/support.json. Then it puts
the tables of that extract into the pages; without a folder, those of the extract that is there.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

from conformance.oracle.verdicts import ExpectationStatus  # noqa: E402
from conformance.reports.results import CellRecord, known_failures, load_results  # noqa: E402

FOLDER = PROJECT / "docs" / "callbacks"
EXTRACT = FOLDER / "support.json"
COMMAND = "python tests/support_tables.py"

BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"

ONE_DEVICE = "one device"
LAYOUTS = {"pjit": "`jit` over a mesh", "shard_map": "`shard_map`", "pmap": "`pmap`"}
"""The transforms that put a program on several devices, and what a reader calls them."""

NO_TRANSFORM, PROCESSES = "no other transform", "in several processes"
TRANSFORMS = {
    "eager": "outside of `jit`",
    "jit": NO_TRANSFORM,
    "vmap": "`vmap`",
    "jvp": "`jvp`",
    "grad": "`grad`",
    "detached": "`grad`, operand not differentiated",
    "remat": "`checkpoint`, `grad`",
    "custom_jvp": "`custom_jvp`",
    "custom_vjp": "`custom_vjp`",
    "cond": "`cond`",
    "scan": "`scan`",
    "fori": "`fori_loop`",
    "while_body": "`while_loop`, body",
    "while_cond": "`while_loop`, condition",
}
ROWS = (*TRANSFORMS.values(), PROCESSES)

SIGNS = {"passed": "✓", "refused": "⊘", "known failure": "✗", "unexpected": "!"}
LEGEND = {
    "passed": "passed",
    "refused": "had to be refused, and was, with an error that names the remedy",
    "known failure": "known failure, listed below the table",
    "unexpected": "neither as the contract has it nor a known failure",
}


@dataclasses.dataclass(frozen=True)
class Section:
    """One table: callbacks of the suite in some of their modes, and those of JAX beside them."""

    title: str
    hostcb: tuple[str, ...]
    jax: tuple[str, ...]
    of_jax: str
    """What a reader calls those of JAX; empty where there are none."""


def _section(title: str, hostcb: str, jax: str | None, of_jax: str) -> Section:
    return Section(title, tuple(hostcb.split()), tuple((hostcb if jax is None else jax).split()), of_jax)


_EACH_METHOD = "{0}_sequential {0}_sequential_unrolled {0}_expand_dims {0}_broadcast_all"
_TAPS = "id_tap id_tap_result id_tap_device id_tap_tree id_tap_device_index"
_DLPACK_IN_PLACE = "In place, with `vmap_method`"

PAGES = {
    "id_tap": [_section("", _TAPS, "debug_callback_ordered", "`debug.callback`, ordered")],
    "id_print": [_section("", "id_print", "debug_print_ordered", "`debug.print`, ordered")],
    "call": [
        _section(
            "Without `vmap_method`", "call call_no_result call_device", "io_callback_ordered", "`io_callback`, ordered"
        ),
        _section("With `vmap_method`", _EACH_METHOD.format("call"), "", ""),
    ],
    "pure_callback": [
        _section("Without `vmap_method`", "pure_callback pure_callback_sharding", None, "`pure_callback`"),
        _section("With `vmap_method`", _EACH_METHOD.format("pure_callback"), None, "`pure_callback`"),
    ],
    "io_callback": [
        _section("Unordered", "io_callback io_callback_sharding", None, "`io_callback`"),
        _section("With `ordered=True`", "io_callback_ordered", None, "`io_callback`"),
    ],
    "debug_callback": [
        _section("Unordered", "debug_callback debug_callback_partitioned", None, "`debug.callback`"),
        _section("With `ordered=True`", "debug_callback_ordered", None, "`debug.callback`"),
    ],
    "debug_print": [
        _section("Unordered", "debug_print", None, "`debug.print`"),
        _section("With `ordered=True`", "debug_print_ordered", None, "`debug.print`"),
    ],
    "buffer_callback": [
        _section("Without options", "buffer_callback", None, "`buffer_callback`"),
        _section("With aliases and `vmap_method`", "buffer_callback_alias", None, "`buffer_callback`"),
        _section("With `has_side_effect` and `vmap_method`", "buffer_callback_side_effect", None, "`buffer_callback`"),
    ],
    "dlpack_callback": [
        _section("Without options", "dlpack_callback", "buffer_callback", "`buffer_callback`"),
        _section(_DLPACK_IN_PLACE, "dlpack_callback_in_place", "buffer_callback_alias", "`buffer_callback`"),
        _section(
            "With `has_side_effect` and `vmap_method`",
            "dlpack_callback_side_effect",
            "buffer_callback_side_effect",
            "`buffer_callback`",
        ),
    ],
}


# The extract.


def layout(cell: CellRecord) -> str:
    """On which devices a program runs: the name of the outermost transform that has several."""
    several = "-1dev" not in cell.id.rpartition("/")[2]
    return next((LAYOUTS[name] for name in cell.transforms if several and name in LAYOUTS), ONE_DEVICE)


def rows(cell: CellRecord) -> Iterable[str]:
    """The rows of a table that count a cell: one for each of its transforms."""
    found = [TRANSFORMS[name] for name in dict.fromkeys(cell.transforms) if name not in (*LAYOUTS, "jit")]
    several = re.search(r"/[a-z]+-\d+x\d+", cell.id)
    return [*(found or [NO_TRANSFORM]), *([PROCESSES] if several else [])]


def outcome(cell: CellRecord) -> str:
    if cell.status is ExpectationStatus.KNOWN_FAILURE:
        return "known failure"
    if not (cell.status.acceptable and cell.passed):
        return "unexpected"
    return "refused" if cell.refused else "passed"


def extract(cells: Iterable[CellRecord], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The counts for each callback, row, layout and outcome, and the known failures; cases are not among them."""
    programs = [cell for cell in cells if cell.transforms[0] not in ("case", "table")]
    counts: dict[str, dict[str, dict[str, Counter[str]]]] = {}
    for cell in programs:
        for row in rows(cell):
            of_row = counts.setdefault(f"{cell.implementation}/{cell.callback}", {}).setdefault(row, {})
            of_row.setdefault(layout(cell), Counter())[outcome(cell)] += 1
    known: dict[str, list[dict[str, str]]] = {}
    for entry, failed in known_failures(programs).items():
        said = {"reason": " ".join(entry.reason.split()), "link": entry.link}
        for name in sorted({f"{cell.implementation}/{cell.callback}" for cell in failed}):
            known.setdefault(name, []).append(said)
    return {"run": {**environment, "cells": len(programs)}, "counts": counts, "known": known}


def of_results(folder: Path) -> dict[str, Any]:
    """The extract of a run on CPU."""
    for run in load_results(folder):
        if (run.platform, run.depth) == ("cpu", "run"):
            told = next(iter(run.environment.values()))
            made = json.loads((folder / f"conformance-{run.name}.json").read_text(encoding="utf-8"))["run"]
            environment = {name: told[name] for name in ("jax", "jaxlib", "numpy", "python")}
            return extract(run.cells, {"date": made["end"].partition("T")[0], **environment})
    raise SystemExit(f"{folder} has no results of a run on CPU: `python -m conformance run --results {folder}`")


def as_text(extracted: Mapping[str, Any]) -> str:
    """JSON with a line for each row of counts, so that a difference between two runs can be read."""
    lines = []
    for name, of_callback in sorted(extracted["counts"].items()):
        of_rows = [f"  {json.dumps(row)}: {json.dumps(of_row)}" for row, of_row in of_callback.items()]
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(of_rows) + "\n }")
    counts = "{\n" + ",\n".join(lines) + "\n}"
    known = json.dumps(extracted["known"], indent=1, sort_keys=True)
    return f'{{"run": {json.dumps(extracted["run"])},\n"counts": {counts},\n"known": {known}}}\n'


# The tables.


def tables(page: str, extracted: Mapping[str, Any]) -> str:
    """The part of a page between the two marks."""
    return "\n".join(_tables(page, extracted)) + "\n"


def _tables(page: str, extracted: Mapping[str, Any]) -> Iterator[str]:
    run = extracted["run"]
    shown = [section for section in PAGES[page] if _columns(section, extracted)]
    seen = {what for section in shown for sum_ in _sums(section, extracted).values() for what in sum_}
    signs = "; ".join(f"{SIGNS[what]} {LEGEND[what]}" for what in SIGNS if what in seen)
    yield f"<!-- Written by `{COMMAND}`: do not edit it. -->"
    yield ""
    yield (
        f"Numbers of conformance cells on CPU. The run of {run['date']} had {run['cells']} of them, with JAX "
        f"{run['jax']}, jaxlib {run['jaxlib']}, NumPy {run['numpy']} and Python {run['python']}: {signs}. "
        "A program with several transforms counts in the row of each. Where there is nothing, the run had no such cell."
    )
    for section in shown:
        if section.title:
            yield from ("", f"### {section.title}")
        if section.of_jax:
            yield from ("", f"Beside it JAX's {section.of_jax}.")
        yield from ("", *_table(section, extracted))
        yield from _known(section, extracted)


def _sums(section: Section, extracted: Mapping[str, Any]) -> dict[tuple[str, str, str], Counter[str]]:
    """What came of the cells of a section, by implementation, row and layout."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for implementation, names in (("hostcb", section.hostcb), ("jax", section.jax)):
        for name in names:
            for row, of_row in extracted["counts"].get(f"{implementation}/{name}", {}).items():
                for where, counts in of_row.items():
                    found.setdefault((implementation, row, where), Counter()).update(counts)
    return found


def _columns(section: Section, extracted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The layouts, each for hostcb and for JAX, of which there are cells."""
    seen = {(where, implementation) for implementation, _, where in _sums(section, extracted)}
    every = ((where, of) for where in (ONE_DEVICE, *LAYOUTS.values()) for of in ("hostcb", "jax"))
    return [column for column in every if column in seen]


def _table(section: Section, extracted: Mapping[str, Any]) -> Iterator[str]:
    sums, columns = _sums(section, extracted), _columns(section, extracted)
    names = {"hostcb": "hostcb", "jax": "JAX"}
    yield f"| | {' | '.join(f'{where}<br>{names[of]}' for where, of in columns)} |"
    yield f"| --- {'| --- ' * len(columns)}|"
    for row in ROWS:
        cells = [sums.get((of, row, where), Counter()) for where, of in columns]
        if any(cells):
            yield f"| {row} | {' | '.join(map(_counted, cells))} |"


def _counted(counts: Counter[str]) -> str:
    return "<br>".join(f"{counts[what]} {sign}" for what, sign in SIGNS.items() if counts[what])


def _known(section: Section, extracted: Mapping[str, Any]) -> Iterator[str]:
    told: dict[tuple[str, str], set[str]] = {}
    for implementation, names in (("hostcb", section.hostcb), ("JAX", section.jax)):
        for name in names:
            for entry in extracted["known"].get(f"{implementation.lower()}/{name}", ()):
                told.setdefault((entry["reason"], entry["link"]), set()).add(implementation)
    for (reason, link), of in told.items():
        # Reports of this repository are beside the pages.
        target = link.replace("docs/", "../", 1) if link.startswith("docs/") else link
        yield from ("", f"✗ {' and '.join(sorted(of))}: {reason} [Report]({target})")


def with_tables(text: str, made: str) -> str:
    """The text of a page, with other tables between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"a page of a callback has the marks {BEGIN} and {END}, between which its tables stand")
    return f"{before}{BEGIN}\n{made}{END}{after}"


def stored() -> dict[str, Any]:
    return json.loads(EXTRACT.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> None:
    if arguments:
        EXTRACT.write_text(as_text(of_results(Path(arguments[0]))), encoding="utf-8")
    for page in PAGES:
        path = FOLDER / f"{page}.md"
        made = tables(page, stored())
        path.write_text(with_tables(path.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
