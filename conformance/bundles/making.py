"""What a bundle holds of a results folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..reports.machine import without_home
from ..reports.results import UnreadableResultsError, load_results

ENVIRONMENT = "environment.json"

_OF_THE_RUN = ("begin", "end", "command", "suite", "python", "packages", "plugin_modules", "host")


def results_name(run: str) -> str:
    """The name of the results of a run, which is called by its platform, and by its depth if nothing ran."""
    return f"conformance-{run}.json"


def journal_name(run: str) -> str:
    return f"journal-{run}.jsonl"


def expectations_name(run: str) -> str:
    return f"expectations-{run}.toml"


def members_of(folder: Path) -> dict[str, bytes]:
    """The members of a bundle, by name: results, journals, known failures and environment of each platform."""
    members, environments = {}, {}
    for run in load_results(folder):
        file = folder / results_name(run.name)
        text = without_home(file.read_text(encoding="utf-8"))
        results = json.loads(text)
        if not results.get("run"):
            raise UnreadableResultsError(
                f"{file} does not say how its run was made, as results of an older version do:"
                " run the cells again, and bundle that"
            )
        if results["run"]["options"].get("compiled"):
            raise UnreadableResultsError(
                f"{file} has the results of `run --compiled`, whose programs may have been compiled earlier:"
                " run the cells again without it, and bundle that"
            )
        members[file.name] = text.encode()
        environments[run.name] = environment_of(results)
        journal = folder / journal_name(run.name)
        if journal.exists():
            members[journal.name] = without_home(journal.read_text(encoding="utf-8", errors="replace")).encode()
        if known := results["run"]["expectations"]:
            members[expectations_name(run.name)] = known["text"].encode()
    members[ENVIRONMENT] = json.dumps(environments, indent=1).encode() + b"\n"
    return members


def environment_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the results that says where and how they were made."""
    run = results["run"]
    return {name: run[name] for name in _OF_THE_RUN} | {
        "seed": run["options"]["seed"],
        "topologies": results["run_info"],
    }
