"""The report of a campaign, in Markdown: module × kind of mutant, the survivors, and cells that nothing depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from .field_operators import OPERATORS
from .trial import KILLED, SURVIVED, UNREACHED, Result


def report(results: Sequence[Result], equivalents: Mapping[str, str], asked: int) -> str:
    """The whole page; `asked` is the number of mutants of the campaign."""
    counted = [result for result in results if result.id not in equivalents or result.verdict == KILLED]
    killed = [result for result in counted if result.verdict == KILLED]
    survived = [result for result in counted if result.verdict == SURVIVED]
    unreached = [result for result in counted if result.verdict == UNREACHED]
    alike = [result for result in results if result not in counted]
    by_tests = sum(result.cell.startswith("tests/") for result in killed)
    rate = f"{100 * len(killed) / len(counted):.1f} %" if counted else "none"
    lines = [
        "# Mutants of hostcb's source",
        "",
        f"{len(results)} of {asked} mutants were tried: {len(killed)} are killed ({by_tests} by a test, and no cell),"
        f" {len(survived)} survived,"
        f" {len(unreached)} are on lines that no cell of the pool reaches, {len(alike)} are equivalent."
        f" Killed of those not equivalent: {rate}.",
        "",
        "## By module and kind",
        "",
        "Killed of those not equivalent.",
        "",
        *_matrix(counted),
        *_survivors("Survivors", survived),
        *_survivors("On lines that no cell of the pool reaches", unreached),
        *_equivalents(alike, equivalents),
        *_cells(killed),
    ]
    return "\n".join(lines) + "\n"


def _matrix(results: Sequence[Result]) -> list[str]:
    kinds = [kind for kind in OPERATORS if any(result.kind == kind for result in results)]
    of: Counter[tuple[str, str]] = Counter()
    killed: Counter[tuple[str, str]] = Counter()
    for result in results:
        for key in ((result.module, result.kind), (result.module, ""), ("all", result.kind), ("all", "")):
            of[key] += 1
            killed[key] += result.verdict == KILLED
    modules = sorted({result.module for result in results})
    lines = [f"| module | {' | '.join((*kinds, 'all'))} |", "| --- |" + " --- |" * (len(kinds) + 1)]
    for module in (*modules, "all"):
        shown = [f"{killed[module, kind]}/{of[module, kind]}" if of[module, kind] else "" for kind in (*kinds, "")]
        lines.append(f"| {f'`{module}`' if module in modules else module} | {' | '.join(shown)} |")
    return [*lines, ""]


def _survivors(title: str, results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    lines = [f"## {title}", ""]
    for result in results:
        lines += [f"- `{result.id}`", f"  `{result.diff.replace('`', '')}`"]
        if result.verdict == SURVIVED:
            over = "; then its time was over" if result.tried < result.reaching else ""
            lines[-1] += f" ({result.tried} of {result.reaching} cells{over})"
    return [*lines, ""]


def _equivalents(results: Sequence[Result], reasons: Mapping[str, str]) -> list[str]:
    if not results:
        return []
    shown = [f"- `{result.diff.replace('`', '')}`: {reasons[result.id]}" for result in results]
    return ["## Equivalent", "", *shown, ""]


def _cells(killed: Sequence[Result]) -> list[str]:
    """What is known of the cells where all that reach a mutant ran, and else the cells that killed first."""
    lines = ["## Cells", ""]
    first = Counter(result.cell for result in killed if not result.cell.startswith("tests/"))
    lines += [f"{len(first)} cells killed a mutant before any other ran. Those that did most often:", ""]
    lines += [f"- {count} `{cell}`" for cell, count in first.most_common(10)]
    whole = [result for result in killed if result.killers]
    if not whole:
        return lines
    alone = Counter(result.killers[0] for result in whole if len(result.killers) == 1)
    cells = {cell for result in whole for cell in result.killers}
    lines += [
        "",
        f"All cells ran for {len(whole)} of the killed mutants. {len(alone)} cells are the only killer of one:",
    ]
    lines += ["", *(f"- {count} `{cell}`" for cell, count in alone.most_common())]
    spare = sorted(cells - alone.keys() - _needed([{*result.killers} for result in whole]))
    lines += ["", f"{len(spare)} cells killed nothing that a smaller set of cells does not:", ""]
    return [*lines, *(f"- `{cell}`" for cell in spare)]


def _needed(killers: Sequence[Collection[str]]) -> set[str]:
    """A small set of cells that kills all: always the cell that kills most of what is left."""
    left = [{*each} for each in killers]
    chosen: set[str] = set()
    while left:
        counts = Counter(cell for each in left for cell in each)
        best = max(sorted(counts), key=lambda cell: counts[cell])
        chosen.add(best)
        left = [each for each in left if best not in each]
    return chosen
