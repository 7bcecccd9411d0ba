"""Joins the results of shards into those of the whole selection. It reads and writes JSON alone, and needs no JAX."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..oracle.verdicts import ExpectationStatus, Outcome, Verdict
from ..spec.errors import CommandError
from ..spec.package import COMMAND
from .files import write_results
from .journal import lines_of
from .provenance import without_home
from .results import SCHEMA_VERSION, judged, load_results, name_of

MOST_NAMED = 10
"""A problem names at most this many cells."""

SAME_ENVIRONMENT = ("jax", "jaxlib", "platform", "platform_version", "device_kind", "device_count")
"""What the workers of all shards must have in common. Machines may differ."""


class MergeError(CommandError):
    """Results that are no parts of one whole."""


@dataclass(frozen=True)
class Part:
    """The results of one shard."""

    file: Path
    data: Mapping[str, Any]

    @property
    def number(self) -> int:
        return int(self.data["shard"]["number"])

    @property
    def of(self) -> int:
        return int(self.data["shard"]["of"])

    @property
    def run_name(self) -> str:
        """The name of the run in its files."""
        return name_of(self.data["platform"], self.data["depth"])

    @property
    def name(self) -> str:
        return f"shard {self.number}/{self.of}"

    @property
    def journal(self) -> Path:
        return self.file.with_name(f"journal-{self.run_name}.jsonl")


def was_killed(folder: Path) -> bool:
    """Whether a folder has what a killed run leaves: its journal, and no results."""
    return any(folder.glob("journal-*.jsonl")) and not any(folder.glob("conformance-*.json"))


def parts_in(folders: Sequence[Path]) -> dict[str, list[Part]]:
    """The shards in these folders, by the name of the run, in their order."""
    found: dict[str, list[Part]] = {}
    for folder in folders:
        if was_killed(folder):
            continue
        # With the sentences of the reader about files that are none.
        load_results(folder)
        for file in sorted(folder.glob("conformance-*.json")):
            data = json.loads(file.read_text())
            if "merged" in data:
                raise MergeError(f"{file} is merged already: merge all shards at once")
            if "shard" not in data or "selection" not in data:
                raise MergeError(f"{file} was not made with --shard: `{COMMAND} run --shard K/N` makes parts")
            part = Part(file, data)
            found.setdefault(part.run_name, []).append(part)
    if not found:
        raise MergeError("there are no results to merge: all of these runs were killed, and --resume goes on with each")
    return {name: sorted(parts, key=lambda part: part.number) for name, parts in found.items()}


def merged(parts: Sequence[Part], killed: Sequence[Path] = ()) -> dict[str, Any]:
    """The results of the whole selection, from those of its shards on one platform.

    `killed` are the folders of runs that were killed.
    """
    first = parts[0]
    for part in parts[1:]:
        _check_same(first, part)
    _check_apart(parts)
    selected: Mapping[str, str] = first.data["selection"]["cells"]
    found = {cell["id"]: cell for part in parts for cell in part.data["cells"]}
    if strange := [cell for cell in found if cell not in selected]:
        raise MergeError(f"{strange[0]} is in the results and not in the selection of which they are shards")
    command = _command(parts)
    cells = [found.get(cell) or _missing(cell, promises, command) for cell, promises in selected.items()]
    gaps = [*_gaps(parts, found)]
    gaps += [f"{folder} has the journal of a run that was killed; --resume goes on with it" for folder in killed]
    stale = [one for one in first.data["stale_expectations"] if all(one in p.data["stale_expectations"] for p in parts)]
    problems = [
        *gaps,
        *(f"the expectation {pattern!r} matches no planned cell" for pattern in stale),
        *_problems(parts),
    ]
    whole = {
        **{name: value for name, value in first.data.items() if name != "shard"},
        **_record(parts),
        "schema": SCHEMA_VERSION,
        "selection": {name: value for name, value in first.data["selection"].items() if name != "cells"},
        "merged": [{"shard": part.number, "of": part.of, "seconds": part.data["seconds"]} for part in parts],
        "run_info": {name: info for part in reversed(parts) for name, info in part.data["run_info"].items()},
        # The shards of a matrix run at the same time.
        "seconds": max(part.data["seconds"] for part in parts),
        "process_starts": sum(part.data["process_starts"] for part in parts),
        "problems": problems,
        "gaps": gaps,
        "stale_expectations": stale,
        "cells": cells,
    }
    return judged(whole)


def _record(parts: Sequence[Part]) -> dict[str, Any]:
    """How the whole was made: as its first shard, which left out the cells of the others."""
    runs = [part.data["run"] for part in parts]
    first, selected = runs[0], parts[0].data["selection"]["cells"]
    plan = first["plan"]
    if plan:
        plan = {**plan, "unselected": [cell for cell in plan["unselected"] if cell not in selected]}
    begin, end = min(run["begin"] for run in runs), max(run["end"] for run in runs)
    commands = [*dict.fromkeys(run["command"] for run in runs)]
    if len(commands) > 1:
        folders = " ".join(without_home(shlex.quote(str(part.file.parent))) for part in parts)
        commands.append(f"{COMMAND} merge {folders} --results OUT")
    # A shard fails if a cell of it does, and the others run all the same.
    return {"run": {**first, "command": "; ".join(commands), "begin": begin, "end": end, "plan": plan}}


def _check_same(one: Part, other: Part) -> None:
    """Refuse parts of different wholes."""

    def refuse(what: str, left: Any, right: Any) -> None:
        if left != right:
            raise MergeError(f"{one.file} and {other.file} are no shards of one run: {what} {left} and {right}")

    refuse("they are shards of", one.of, other.of)
    for name, words in (
        ("count", "the selections have cells:"),
        ("hash", "the selections of cells are"),
    ):
        refuse(words, one.data["selection"][name], other.data["selection"][name])
    for key, words in (("versions", "the versions of"), ("options", "the option")):
        for name in dict.fromkeys((*one.data[key], *other.data[key])):
            if name != "deadline":
                refuse(f"{words} {name} are", one.data[key].get(name), other.data[key].get(name))
    refuse("the plugins are", *(part.data["run"].get("plugins", {}) for part in (one, other)))
    if one.data["ineligible"] != other.data["ineligible"]:
        raise MergeError(f"{one.file} and {other.file} are no shards of one run: they left out different cells")
    for topology in one.data["run_info"].keys() & other.data["run_info"].keys():
        for name in SAME_ENVIRONMENT:
            left, right = (part.data["run_info"][topology].get(name) for part in (one, other))
            refuse(f"with {topology}, {name} is", left, right)


def _check_apart(parts: Sequence[Part]) -> None:
    """Refuse a shard or a cell that is there twice."""
    shards: dict[int, Part] = {}
    cells: dict[str, Part] = {}
    for part in parts:
        if (before := shards.setdefault(part.number, part)) is not part:
            raise MergeError(f"{part.name} is there twice: in {before.file.parent} and in {part.file.parent}")
        for cell in part.data["cells"]:
            if (holder := cells.setdefault(cell["id"], part)) is not part:
                raise MergeError(f"{cell['id']} is in {holder.file} and in {part.file}: each cell is of one shard")


def _command(parts: Sequence[Part]) -> str:
    """The command for a cell, up to its id: what another cell of the run has, such as the file of the platform."""
    cells = (cell for part in parts for cell in part.data["cells"] if not cell.get("preceding_cells"))
    return next((cell["reproduce"].partition(" --cell ")[0] for cell in cells), f"{COMMAND} run")


def _missing(cell: str, promises: str, command: str) -> dict[str, Any]:
    """The record of a cell whose shard is missing."""
    return {
        "id": cell,
        "promises": promises.split(),
        **Outcome(Verdict.MISSING, reason="its shard is missing").as_json(),
        "status": ExpectationStatus.UNEXPECTED.value,
        "expected": Verdict.PASS.value,
        "known": None,
        "attempts": 0,
        "reproduce": f"{command} --cell {cell}",
    }


def _gaps(parts: Sequence[Part], found: Mapping[str, Any]) -> Iterator[str]:
    """A text of what is not there."""
    there = {part.number for part in parts}
    absent = [number for number in range(1, parts[0].of + 1) if number not in there]
    without = [cell for cell in parts[0].data["selection"]["cells"] if cell not in found]
    if absent:
        named = ", ".join(f"{number}/{parts[0].of}" for number in absent)
        yield f"shard{'s' * (len(absent) > 1)} {named} missing: {_named(without)}"
    elif without:
        yield f"no shard has {_named(without)}"
    for part in parts:
        if missing := [cell["id"] for cell in part.data["cells"] if cell["verdict"] == Verdict.MISSING.value]:
            yield f"{part.name} has not run {_named(missing)}"
        yield from (f"{part.name}: {gap}" for gap in part.data["gaps"])


def _named(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - MOST_NAMED} more" if len(cells) > MOST_NAMED else ""
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}: {', '.join(cells[:MOST_NAMED])}{more}"


def _problems(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        known = {*part.data["gaps"]}
        known |= {f"the expectation {pattern!r} matches no planned cell" for pattern in part.data["stale_expectations"]}
        yield from (f"{part.name}: {problem}" for problem in part.data["problems"] if problem not in known)


def write_merged(data: Mapping[str, Any], parts: Sequence[Part], results: Path) -> None:
    """Write what `merged` has made of these parts, and their journals."""
    name = parts[0].run_name
    journal = results / f"journal-{name}.jsonl"
    # What happened to each cell; no run goes on from it.
    with journal.open("w", encoding="utf-8") as joined:
        for part in parts:
            # Without the lines that say which run the journal is of.
            events = (one for one in lines_of(part.journal, "event") if one["event"] not in ("header", "finished"))
            joined.writelines(f"{json.dumps(event)}\n" for event in events)
    write_results(results / f"conformance-{name}.json", data)
