"""Draw a run as SVG, without a library: one bar a row, whose length is the ratio divided by its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.results import figure
from benchmarks.rows import Row

WIDTH = 980
LEFT = 470
RIGHT = 140
TOP = 64
PITCH = 22
# The length at which a bar is cut off, in targets.
MOST = 2.0

# Text and grid follow the reader's light or dark scheme; the colours of the bars suit both.
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.small { font-size: 11px; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; }
.line { stroke: #57606a; stroke-width: 1; }
.target { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 4 3; }
.met { fill: #2da44e; }
.missed { fill: #d1603d; }
.spread { stroke: #24292f; stroke-width: 1.5; opacity: 0.6; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9da7b1; }
  .line, .target { stroke: #9da7b1; }
  .spread { stroke: #e6edf3; }
}
"""


def drawn(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Draw the rows with a target as SVG."""
    judged = [row for row in rows if row.target is not None]
    height = TOP + PITCH * len(judged) + 30
    scale = (WIDTH - LEFT - RIGHT) / MOST
    bottom = height - 24
    at_target = LEFT + scale
    subtitle = f"JAX {about['jax']}, Python {about['python']}, {about['cpus']} CPUs, {str(about['date'])[:10]}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Ratios of hostcb\'s costs, as shares of their targets">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="12" y="24">What hostcb costs, as a share of its target</text>',
        f'<text class="small" x="12" y="42">{escape(subtitle)}; bars: median, strokes: quartiles; shorter is better'
        "</text>",
        f'<text class="small" x="{at_target:.1f}" y="{TOP - 8}" text-anchor="middle">target</text>',
    ]
    for index, row in enumerate(judged):
        parts += _bar(row, TOP + PITCH * index, scale)
    parts += [
        f'<line class="line" x1="{LEFT}" y1="{TOP - 2}" x2="{LEFT}" y2="{bottom}"/>',
        f'<line class="target" x1="{at_target:.1f}" y1="{TOP - 2}" x2="{at_target:.1f}" y2="{bottom}"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(row: Row, top: float, scale: float) -> list[str]:
    target = row.target or 1.0

    def along(ratio: float) -> float:
        return LEFT + scale * min(ratio / target, MOST)

    kind = "met" if row.verdict == "met" else "missed"
    middle = top + PITCH / 2
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(row.name)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{top + 3}" width="{along(row.ratio) - LEFT:.1f}" height="{PITCH - 6}" '
        f'rx="2"><title>{escape(row.name)}: {figure(row.ratio)}</title></rect>',
        f'<line class="spread" x1="{along(row.low):.1f}" y1="{middle}" x2="{along(row.high):.1f}" y2="{middle}"/>',
        f'<text class="small" x="{WIDTH - RIGHT + 8}" y="{middle + 4}">{figure(row.ratio)} of at most {target:g}'
        "</text>",
    ]


def write(path: str | Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Write the SVG file."""
    Path(path).write_text(drawn(rows, about))
