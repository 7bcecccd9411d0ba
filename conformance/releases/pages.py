"""A table of releases as Markdown, and as one HTML page that loads nothing."""

from __future__ import annotations

import html as markup
import json
from collections.abc import Iterator, Sequence

from ..oracle.verdicts import Outcome, Verdict
from .table import Group, Row, Table, several

MOST_EVENTS = 100
"""Of a history on the page."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 100rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #8886; padding: .15rem .5rem; text-align: left; font-size: 13px; vertical-align: top; }
code, pre { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
.pass { background: #4a9d7f44; } .fail { background: #b3261e44; } .unsupported { background: #88888833; }
.crash, .hang, .harness_error { background: #b3261e77; } .several { background: #e0a52666; }
details { margin: .25rem 0; }
"""


def markdown(table: Table) -> str:
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    yield from ("# Cells by release", "", table.summary())
    if table.problems:
        yield from ("", "## Problems", "", *(f"- {_text(problem)}" for problem in table.problems))
    for group in table.groups:
        yield from ("", f"## {_count(group)}: {_text(_change(table, group.words))}", "")
        yield from ("| releases | outcome |", "| --- | --- |")
        for when, what in table.periods(group.words):
            yield f"| {when} | {_text(what)} |"
        yield ""
        for row in group.rows:
            yield f"- `{row.cell}`" + _numbers(table, row)
        yield from _examples(table, group.rows[0])
    if table.skipped:
        yield from ("", "## Releases that were not tried", "")
        yield from (f"- {skipped.release}: {_text(skipped.reason)}" for skipped in table.skipped)


def _count(group: Group) -> str:
    return several(len(group.rows), "cell")


def _change(table: Table, words: Sequence[str]) -> str:
    """The pattern in one line: the outcomes, with the release from which each is seen."""
    periods = list(table.periods(words))
    first, *rest = (word for _, word in periods)
    since = [when.partition(" to ")[0] for when, _ in periods[1:]]
    return ", ".join([first, *(f"{word} from {when}" for word, when in zip(rest, since, strict=True))])


def _numbers(table: Table, row: Row) -> str:
    several = [
        f"{release.label}: {count}"
        for release, word, count in zip(table.releases, row.words, row.counts, strict=True)
        if word != count
    ]
    return f" ({_text('; '.join(several))})" if several else ""


def _examples(table: Table, row: Row) -> Iterator[str]:
    """A witness of each kind of outcome of a group's first cell."""
    seen = set()
    for release, runs, word in zip(table.releases, row.outcomes, row.words, strict=True):
        witness = _witness(runs)
        if witness and word not in seen:
            seen.add(word)
            yield from ("", f"With {release.label}: {_text(witness.splitlines()[0][:300])}")


def _witness(runs: Sequence[Outcome]) -> str:
    return next((run.reason.strip() for run in runs if run.verdict is not Verdict.PASS and run.reason.strip()), "")


def _text(text: str) -> str:
    """Text in which Markdown finds no markup."""
    for character in "\\`*_<>|[]":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def html(table: Table) -> str:
    title = "Cells by release"
    body = "\n".join(_body(table))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _body(table: Table) -> Iterator[str]:
    yield f"<p>{_safe(table.summary())}</p>"
    if table.problems:
        yield f"<h2>Problems</h2><ul>{''.join(f'<li>{_safe(problem)}</li>' for problem in table.problems)}</ul>"
    details: list[str] = []
    for group in table.groups:
        yield f"<h2>{_count(group)}: {_safe(_change(table, group.words))}</h2>"
        head = "".join(f"<th>{_safe(release.label)}</th>" for release in table.releases)
        yield f"<table><tr><th>cell</th>{head}</tr>"
        for row in group.rows:
            yield f"<tr><th><code>{_safe(row.cell)}</code></th>{''.join(_squares(table, row, details))}</tr>"
        yield "</table>"
    if table.skipped:
        items = "".join(f"<li>{_safe(one.release)}: {_safe(one.reason)}</li>" for one in table.skipped)
        yield f"<h2>Releases that were not tried</h2><ul>{items}</ul>"
    if details:
        yield "<h2>Witnesses and histories</h2>"
        yield from details


def _squares(table: Table, row: Row, details: list[str]) -> Iterator[str]:
    for release, runs, word, count in zip(table.releases, row.outcomes, row.words, row.counts, strict=True):
        kind = "several" if word != count else runs[0].verdict.value if runs else ""
        inside = _safe(count)
        if shown := next((run for run in runs if run.verdict is not Verdict.PASS), None):
            name = f"w{len(details)}"
            inside = f'<a href="#{name}">{inside}</a>'
            details.append(_detail(name, f"{row.cell} with {release.label}: {count}", shown))
        yield f'<td class="{kind}">{inside}</td>'


def _detail(name: str, title: str, outcome: Outcome) -> str:
    events = [json.dumps(event) for event in outcome.history[:MOST_EVENTS]]
    left = len(outcome.history) - len(events)
    events += [f"... and {left} more"] if left else []
    history = f"<p>History:</p><pre>{_safe(chr(10).join(events))}</pre>" if events else ""
    return (
        f'<details id="{name}"><summary>{_safe(title)}</summary><pre>{_safe(outcome.reason)}</pre>{history}</details>'
    )


def _safe(text: str) -> str:
    return markup.escape(text)
