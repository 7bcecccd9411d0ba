"""A table of cells as Markdown, and as one HTML page that loads nothing."""

from __future__ import annotations

import html as entities
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..oracle.verdicts import Verdict
from .content_policy import content_policy
from .histories import HEAD, lines
from .markup import code, text
from .table import Group, Row, Seen, Table, several
from .visible import visible

MOST_EVENTS = 100
"""Of a history on the page."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 100rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #8886; padding: .15rem .5rem; text-align: left; font-size: 13px; vertical-align: top; }
code, pre { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
.pass { background: #4a9d7f44; } .fail { background: #b3261e44; } .unsupported { background: #88888833; }
.crash, .hang, .harness_error { background: #b3261e77; } .several, .flake { background: #e0a52666; }
details { margin: .25rem 0; } :target { outline: 2px solid #0b57b0; outline-offset: .3rem; }
"""


def markdown(table: Table) -> str:
    return visible("\n".join(_lines(table)) + "\n")


def _lines(table: Table) -> Iterator[str]:
    yield from (f"# {table.wording.title}", "", text(table.summary()))
    if table.partial:
        yield from ("", *(f"- {line}" for line in map(text, _partial(table))))
    if table.problems:
        yield from ("", "## Problems", "", *(f"- {text(problem)}" for problem in table.problems))
    if table.environments:
        labels = [text(column.label) for column in table.columns]
        yield from ("", "## Environments", "", f"| | {' | '.join(labels)} |", f"| --- {'| --- ' * len(labels)}|")
        yield from (
            f"| {text(name)} | {' | '.join(map(text, values))} |" for name, values in table.environments.items()
        )
    for group in table.groups:
        yield from ("", f"## {_count(group)}: {text(_pattern(table, group.words))}", "")
        yield from (f"| {table.wording.column}s | outcome |", "| --- | --- |")
        for where, what in table.periods(group.words):
            yield f"| {text(where)} | {text(what)} |"
        yield ""
        for row in group.rows:
            remarks = _remarks(table, row)
            yield f"- {code(row.cell)} ({text(remarks)})" if remarks else f"- {code(row.cell)}"
        yield from _examples(table, group.rows[0])
    if table.left_out:
        yield from ("", f"## {table.wording.left_out}", "")
        yield from (f"- {text(what)}: {text(reason)}" for what, reason in table.left_out)


def _count(group: Group) -> str:
    return several(len(group.rows), "cell")


def _partial(table: Table) -> Iterator[str]:
    for labels, count in table.partial.most_common():
        yield f"{several(count, 'cell')} ran {'in ' + ', '.join(labels) + ' alone' if labels else 'in no column'}"


def _pattern(table: Table, words: Sequence[str]) -> str:
    """The outcomes in one line, each with the columns, or with the release from which it is seen."""
    periods = list(table.periods(words))
    if not table.wording.ordered:
        return "; ".join(f"{word} in {where}" for where, word in periods)
    first, *rest = (word for _, word in periods)
    since = [when.partition(" to ")[0] for when, _ in periods[1:]]
    return ", ".join([first, *(f"{word} from {when}" for word, when in zip(rest, since, strict=True))])


def _remarks(table: Table, row: Row) -> str:
    counts = [
        f"{column.label}: {count}"
        for column, word, count in zip(table.columns, row.words, row.counts, strict=True)
        if word != count
    ]
    return "; ".join(filter(None, (row.note, *counts)))


def _examples(table: Table, row: Row) -> Iterator[str]:
    """A witness of each kind of outcome of a group's first cell."""
    seen = set()
    for column, runs, word in zip(table.columns, row.seen, row.words, strict=True):
        if word not in seen and (witness := witness_of(runs)):
            seen.add(word)
            yield from ("", f"With {text(column.label)}: {text(witness)}")


def witness_of(runs: Sequence[Seen]) -> str:
    """The first line of the first witness; empty if all runs passed."""
    witness = next((run.witness.strip() for run in runs if not run.passed and run.witness.strip()), "")
    return witness.splitlines()[0][:300] if witness else ""


def html(table: Table) -> str:
    title = _safe(table.wording.title)
    body, policy = "\n".join(_body(table)), content_policy(_STYLE)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _body(table: Table) -> Iterator[str]:
    yield f"<p>{_safe(table.summary())}</p>"
    if table.partial:
        yield _list(_partial(table))
    if table.problems:
        yield f"<h2>Problems</h2>{_list(table.problems)}"
    if table.environments:
        lines = [["", *(column.label for column in table.columns)]]
        lines += [[name, *values] for name, values in table.environments.items()]
        yield f"<h2>Environments</h2>{_grid(lines)}"
    details: list[str] = []
    for group in table.groups:
        yield f"<h2>{_count(group)}: {_safe(_pattern(table, group.words))}</h2>"
        head = "".join(f"<th>{_safe(column.label)}</th>" for column in table.columns)
        yield f"<table><tr><th>cell</th>{head}</tr>"
        for row in group.rows:
            note = f" ({_safe(row.note)})" if row.note else ""
            squares = "".join(_squares(table, row, details))
            yield f"<tr><th><code>{_safe(row.cell)}</code>{note}</th>{squares}</tr>"
        yield "</table>"
    if table.left_out:
        yield f"<h2>{_safe(table.wording.left_out)}</h2>{_list(': '.join(one) for one in table.left_out)}"
    if details:
        yield "<h2>Witnesses and histories</h2>"
        yield from details


def _squares(table: Table, row: Row, details: list[str]) -> Iterator[str]:
    for column, runs, word, count in zip(table.columns, row.seen, row.words, row.counts, strict=True):
        kind = "several" if word != count else runs[0].verdict if runs else ""
        known = kind if kind in {"several", *(verdict.value for verdict in Verdict)} else ""
        inside = _safe(count)
        if shown := next((run for run in runs if not run.passed), None):
            name = f"w{len(details)}"
            inside = f'<a href="#{name}">{inside}</a>'
            details.append(_detail(name, f"{row.cell} with {column.label}: {count}", shown))
        yield f'<td class="{known}">{inside}</td>'


def _detail(name: str, title: str, shown: Seen) -> str:
    # A browser opens the details for a link to what is inside, and not for a link to the element itself.
    inside = f"<pre>{_safe(shown.witness)}</pre>{_history(shown.history)}"
    return f'<details><summary>{_safe(title)}</summary><div id="{name}">{inside}</div></details>'


def _history(events: Sequence[Mapping[str, Any]]) -> str:
    if not events:
        return ""
    left = len(events) - MOST_EVENTS
    shown = [HEAD, *(line.words for line in lines(events)[:MOST_EVENTS])]
    return f"<p>History{f', without its last {left} events' if left > 0 else ''}:</p>{_grid(shown)}"


def _list(items: Iterator[str] | Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_safe(item)}</li>' for item in items)}</ul>"


def _grid(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    return f"<table>{_line(head, 'th')}{''.join(_line(line, 'td') for line in rest)}</table>"


def _line(words: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_safe(word)}</{tag}>' for word in words)}</tr>"


def _safe(words: str) -> str:
    return entities.escape(visible(words))
