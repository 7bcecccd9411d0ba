"""The matrix as one picture: functions down, transforms across, and in each square two implementations side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from ..spec.capabilities import Shown, shown_by
from ..spec.depths import Depth
from .results import CellRecord, RunRecord
from .visible import in_a_line

ORDER = (
    *("eager", "jit", "detached", "vmap", "jvp", "grad", "custom_jvp", "custom_vjp", "remat"),
    *("scan", "fori", "while_body", "while_cond", "cond", "pmap", "shard_map", "pjit"),
)
"""The columns of transforms; others come behind them."""

PROCESSES, CASES = "processes", "cases"

TITLE = "What callbacks do under each transform, in {count} cells"
LEFT, TOP, PITCH, STEP = 196, 150, 24, 44
HALF, HEIGHT, MARGIN = 19, 18, 16

# Text, marks and the ground follow the reader's light or dark scheme: the page around the picture may be of either.
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c2024; }
.ground { fill: #ffffff; stroke: #d3d8dd; }
.title { font-size: 16px; font-weight: 600; }
.small { fill: #5d666f; }
.count { font-size: 10px; font-weight: 600; text-anchor: middle; }
.all { fill: #4a9d7f; }
.some { fill: #f0c75e; }
.none { fill: #b3261e; }
.in-some { fill: #3b2a00; }
.in-none { fill: #ffffff; }
.line { stroke: #d3d8dd; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e8eb; }
  .ground { fill: #14171a; stroke: #39424a; }
  .small { fill: #9aa5ae; }
  .all { fill: #3c8a70; }
  .some { fill: #d9ab3d; }
  .none { fill: #d9483d; }
  .in-some { fill: #241900; }
  .in-none { fill: #ffffff; }
  .line { stroke: #39424a; }
}
"""


@dataclass
class _Count:
    """The cells of one implementation in a square."""

    cells: int = 0
    passed: int = 0

    @property
    def kind(self) -> str:
        return "all" if self.passed == self.cells else "some" if self.passed else "none"


LEGEND = (
    (_Count(1, 1), "all cells pass"),
    (_Count(8, 5), "3 cells do not pass"),
    (_Count(2, 0), "no cell passes"),
)


def matrix_picture(runs: Sequence[RunRecord], implementations: tuple[str, str] = ("hostcb", "jax")) -> str:
    """The results of runs as SVG, of cells whose callback is one of the suite's.

    Where cells ran, those that were lowered or compiled for other platforms are left out: that shows less.
    """
    runs = [run for run in runs if run.depth == Depth.RUN.value] or runs
    found = [(cell, shown) for run in runs for cell in run.cells if (shown := _shown(cell, implementations))]
    squares = _squares(found)
    rows = list(dict.fromkeys(row for row, _, _ in squares))
    columns = sorted(dict.fromkeys(column for _, column, _ in squares), key=_rank)
    width = LEFT + STEP * max(len(columns), 12) + MARGIN
    height = TOP + PITCH * len(rows) + 3 * MARGIN
    versions = dict.fromkeys(
        str(info["jax"]) for run in runs for info in run.environment.values() if info.get("jax") is not None
    )
    about = ", ".join(
        [*(f"JAX {version}" for version in versions), *dict.fromkeys(run.name for run in runs), *_days(runs)]
    )
    title = TITLE.format(count=len(found))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label={quoteattr(f"{title}, of {implementations[0]} and {implementations[1]}")}>',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        _text(MARGIN, 30, title, "title"),
        _text(MARGIN, 50, about, "small"),
        *_legend(implementations),
    ]
    for number, column in enumerate(columns):
        x, y = LEFT + STEP * number + HALF, TOP - 8
        parts.append(f'<text transform="translate({x} {y}) rotate(-35)">{_words(column)}</text>')
    for number, row in enumerate(rows):
        y = TOP + PITCH * number
        parts.append(f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{_words(row)}</text>')
        for place, column in enumerate(columns):
            for side, implementation in enumerate(implementations):
                if count := squares.get((row, column, implementation)):
                    x = LEFT + STEP * place + (HALF + 1) * side
                    words = f"{implementation}, {row}, {column}: {count.passed} of {count.cells} cells pass"
                    parts += _half(x, y, count, words)
    bottom = TOP + PITCH * len(rows) + MARGIN
    left_out = sum(len(run.cells) for run in runs) - len(found)
    note = "A cell counts in the column of each transform of its program; some cells ask for a refusal in words."
    note += " No square: no cell."
    note += f" {left_out} cells of other kinds are not drawn." if left_out else ""
    parts += [_text(MARGIN, bottom + 8, note, "small"), "</svg>"]
    return "\n".join(parts) + "\n"


def _shown(cell: CellRecord, implementations: tuple[str, str]) -> Shown | None:
    shown = shown_by(cell.id)
    drawn = shown and shown.callback and shown.implementation in implementations and shown.names[0] != "table"
    return shown if drawn else None


def _squares(found: Sequence[tuple[CellRecord, Shown]]) -> Mapping[tuple[str, str, str], _Count]:
    """The counts by row, column and implementation; rows in the order of the suite's callbacks."""
    squares: dict[tuple[str, str, str], _Count] = {}
    for cell, shown in sorted(found, key=lambda one: _row_rank(one[1])):
        for column in _columns(shown):
            count = squares.setdefault((_row(shown), column, shown.implementation), _Count())
            count.cells += 1
            count.passed += cell.passed
    return squares


def _columns(shown: Shown) -> Iterator[str]:
    yield from dict.fromkeys([CASES] if shown.names[0] == "case" else shown.names)
    if shown.processes > 1:
        yield PROCESSES


def _row(shown: Shown) -> str:
    callback = shown.callback
    if callback is None or callback.parts:
        return "several kinds in a program"
    # Of these functions, the order is an option.
    optional = callback.function in ("io_callback", "debug.callback", "debug.print")
    return f"{callback.function}{' (ordered)' if optional and callback.ordered else ''}"


ROWS = ("id_tap", "id_print", "call", "pure_callback", "io_callback", "debug.callback", "debug.print")


def _row_rank(shown: Shown) -> tuple[bool, int, str]:
    row = _row(shown)
    function = row.partition(" ")[0]
    return bool(shown.callback and shown.callback.parts), ROWS.index(function) if function in ROWS else len(ROWS), row


def _rank(column: str) -> tuple[int, str]:
    if column in ORDER:
        return ORDER.index(column), column
    return len(ORDER) + (column == PROCESSES) + 2 * (column == CASES), column


def _half(x: int, y: int, count: _Count, words: str) -> Iterator[str]:
    yield f'<rect class="{count.kind}" x="{x}" y="{y}" width="{HALF}" height="{HEIGHT}" rx="2">'
    yield f"<title>{_words(words)}</title></rect>"
    if count.passed < count.cells:
        middle, missing = x + HALF / 2, count.cells - count.passed
        yield f'<text class="count in-{count.kind}" x="{middle}" y="{y + 13}">{missing}</text>'


def _legend(implementations: tuple[str, str]) -> Iterator[str]:
    x, y = MARGIN, 66
    for side, implementation in enumerate(implementations):
        yield from _half(x + (HALF + 1) * side, y, _Count(1, 1), implementation)
    x += 2 * HALF + 9
    yield _text(x, y + 14, f"left: {implementations[0]}, right: {implementations[1]}")
    x += 150
    for count, words in LEGEND:
        yield from _half(x, y, count, words)
        yield _text(x + HALF + 7, y + 14, words)
        x += HALF + 28 + 7 * len(words)


def _days(runs: Sequence[RunRecord]) -> list[str]:
    return sorted({run.begin[:10] for run in runs if run.begin})


def _text(x: int, y: int, words: str, kind: str = "") -> str:
    return f'<text{f" class={quoteattr(kind)}" if kind else ""} x="{x}" y="{y}">{_words(words)}</text>'


def _words(words: str) -> str:
    return escape(in_a_line(words))
