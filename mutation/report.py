"""The report of a campaign, in Markdown: module × kind of mutant, the survivors, and what nothing depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .field_operators import OPERATORS
from .order import about
from .pool import is_test
from .trial import KILLED, SURVIVED, UNREACHED, Result


def report(results: Sequence[Result], equivalents: Mapping[str, str], asked: int, pool: Iterable[str]) -> str:
    """The whole page; `asked` is the number of mutants of the campaign, `pool` has the cells that could run."""
    counted = [result for result in results if result.id not in equivalents or result.verdict == KILLED]
    killed = [result for result in counted if result.verdict == KILLED]
    survived = [result for result in counted if result.verdict == SURVIVED]
    unreached = [result for result in counted if result.verdict == UNREACHED]
    alike = [result for result in results if result not in counted]
    by_tests = sum(is_test(result.killer) for result in killed)
    rate = f"{100 * len(killed) / len(counted):.1f} %" if counted else "none"
    lines = [
        "# Mutants of hostcb's source",
        "",
        f"{len(results)} of {asked} mutants were tried: {len(killed)} are killed ({by_tests} by a test),"
        f" {len(survived)} survived,"
        f" {len(unreached)} are on lines that nothing of the pool reaches, {len(alike)} are equivalent."
        f" Killed of those not equivalent: {rate}.",
        "",
        "## By module and kind",
        "",
        "Killed of those not equivalent.",
        "",
        *_matrix(counted),
        *_survivors("Survivors", survived),
        *_survivors("On lines that nothing of the pool reaches", unreached),
        *_equivalents(alike, equivalents),
        *_first(killed),
        *_only(killed, pool),
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
            lines[-1] += f" ({result.tried} of {result.reaching} cells and tests{over})"
    return [*lines, ""]


def _equivalents(results: Sequence[Result], reasons: Mapping[str, str]) -> list[str]:
    if not results:
        return []
    shown = [f"- `{result.diff.replace('`', '')}`: {reasons[result.id]}" for result in results]
    return ["## Equivalent", "", *shown, ""]


def _first(killed: Sequence[Result]) -> list[str]:
    first = Counter(result.killer for result in killed)
    lines = ["## Killers", "", f"{len(first)} cells and tests were the first to kill a mutant, most often these:", ""]
    return [*lines, *(f"- {count} `{killer}`" for killer, count in first.most_common(10)), ""]


def _only(killed: Sequence[Result], pool: Iterable[str]) -> list[str]:
    """What the cases and programs are worth where trials went on after the first kill, and else nothing."""
    known = [result for result in killed if result.killers]
    if not known:
        return []
    of_each = [{killer if is_test(killer) else about(killer) for killer in result.killers} for result in known]
    only = Counter(next(iter(each)) for each in of_each if len(each) == 1)
    needed = sorted((name for name in only if not is_test(name)), key=lambda name: (-only[name], name))
    spare = sorted({about(cell) for cell in pool} - only.keys())
    return [
        "## Cases and programs",
        "",
        f"The trials of {len(known)} killed mutants went on until a second case or program, or a test, noticed"
        f" the mutant. {len(needed)} cases and programs are the only ones that notice a mutant:",
        "",
        *(f"- {only[name]} `{name}`" for name in needed),
        "",
        f"The other {len(spare)} kill none of these mutants that no other kills:",
        "",
        *(f"- `{name}`" for name in spare),
    ]
