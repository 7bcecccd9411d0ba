"""What `diff` sets side by side: the cells of results, or of their implementations or platforms, by the same names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..planning.keywords import any_of
from ..spec.errors import CommandError
from .results import CellRecord, RunRecord

ANY = "*"
"""In the place of what a cell's id leaves open."""


class NothingToCompareError(CommandError):
    """Results that cannot be compared. The text is one line for users."""


@dataclass
class Side:
    """One column of a comparison."""

    label: str
    cells: dict[str, CellRecord] = field(default_factory=dict)
    """By the part of their ids that all columns have in common."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The reasons why cells of these names did not run."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the workers reported of machine and software, by topology."""


def sides(
    results: Mapping[str, Sequence[RunRecord]],
    *,
    implementations: Sequence[str] = (),
    by_platform: bool = False,
    patterns: Sequence[str] = (),
) -> list[Side]:
    """A column for each of the named results, or for each of the implementations or platforms in each of them."""
    wanted = any_of(patterns) if patterns else lambda _: True
    split = bool(implementations) or by_platform
    found: dict[str, Side] = {}
    for name, runs in results.items():
        # In the order in which the implementations are named: the last column is the newer one.
        for implementation in implementations or (ANY,):
            for run in runs:
                parts = [name] if len(results) > 1 or not split else []
                parts += [implementation] if implementations else []
                parts += [run.name] if by_platform else []
                cells = [cell for cell in run.cells if implementation in (ANY, cell.implementation) and wanted(cell.id)]
                if split and not cells:
                    continue
                side = found.setdefault(" ".join(parts), Side(" ".join(parts)))
                platform = run.platform if by_platform else ""
                side.cells |= {_matched(cell.id, implementation, platform): cell for cell in cells}
                side.left_out |= {_matched(one, implementation, platform): why for one, why in run.left_out.items()}
                side.environment |= _environment(run, platform)
    if not any(side.cells for side in found.values()):
        raise NothingToCompareError(f"no cell matches {' or '.join(patterns)}" if patterns else "there is no cell")
    if len(found) < 2:
        raise NothingToCompareError(
            f"a comparison needs two columns, and there is {next(iter(found))!r} alone: name another results folder,"
            " or use --implementation or --by-platform"
        )
    return [*found.values()]


def _matched(cell_id: str, implementation: str, platform: str) -> str:
    """The id without what its column says."""
    if implementation != ANY and cell_id.startswith(f"{implementation}/"):
        cell_id = ANY + cell_id.removeprefix(implementation)
    program, slash, topology = cell_id.rpartition("/")
    return program + slash + _anywhere(topology, platform)


def _environment(run: RunRecord, platform: str) -> Iterator[tuple[str, dict[str, str]]]:
    for topology, info in run.environment.items():
        yield _anywhere(topology, platform), {name: str(value) for name, value in info.items()}


def _anywhere(topology: str, platform: str) -> str:
    return topology.replace(f"{platform}-", f"{ANY}-", 1) if platform else topology
