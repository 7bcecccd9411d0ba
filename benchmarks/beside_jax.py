"""Draw runs as the picture of README.md: what a callback costs with hostcb, and what it costs with JAX's own.

    python -m benchmarks.beside_jax docs/pictures/speed-*.json --svg docs/pictures/speed.svg

Each file is one that `python -m benchmarks --json` has written, or a part of one with its date and versions.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks import results
from benchmarks.rows import Row

# The rows that are drawn, by benchmark, what and against, and their words. What gains little is there, too.
DRAWN = {
    ("loop", "id_tap", "jax debug.callback"): "id_tap / debug.callback",
    ("loop", "debug.callback", "jax debug.callback"): "debug.callback",
    ("loop", "call", "jax io_callback(ordered=True)"): "call / ordered io_callback",
    ("loop", "io_callback(ordered=True)", "jax io_callback(ordered=True)"): "ordered io_callback",
    ("loop", "io_callback", "jax io_callback"): "io_callback",
    ("loop", "pure_callback", "jax pure_callback"): "pure_callback",
    ("loop", "buffer_callback", "jax buffer_callback"): "buffer_callback",
    ("large", "call of 256 KiB in a loop", "jax pure_callback"): "call / pure_callback, 256 KiB",
    ("large", "id_tap of 256 KiB in a loop", "jax debug.callback"): "id_tap / debug.callback, 256 KiB",
    ("single", "pure_callback", "jax pure_callback"): "pure_callback, one in a jitted function",
    ("single", "io_callback", "jax io_callback"): "io_callback, one in a jitted function",
    ("busy", "id_tap, a computing thread, median", "jax debug.callback"): "id_tap, beside a computing thread",
    ("busy", "call, a computing thread, median", "jax io_callback(ordered=True)"): "call, beside a computing thread",
}

LEFT, RIGHT, TOP, PITCH = 370, 112, 112, 36
WIDTH = 900
SCALE = (0.5, 20_000.0)
"""The least and the greatest number of microseconds; the scale is logarithmic."""

# Text, marks and the ground follow the reader's light or dark scheme: the page around the picture may be of either.
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c2024; }
.ground { fill: #ffffff; stroke: #d3d8dd; }
.title { font-size: 16px; font-weight: 600; }
.small { font-size: 11px; fill: #5d666f; }
.grid { stroke: #d3d8dd; }
.gain { stroke: #9aa5ae; stroke-width: 2; }
.ours { fill: #2f855f; }
.theirs { fill: #ffffff; stroke: #b45309; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e8eb; }
  .ground { fill: #14171a; stroke: #39424a; }
  .small { fill: #9aa5ae; }
  .grid { stroke: #39424a; }
  .gain { stroke: #5d666f; }
  .ours { fill: #4cbd8b; }
  .theirs { fill: #14171a; stroke: #f0a54a; }
}
"""


def drawn(runs: Sequence[tuple[Mapping[str, Any], Sequence[Row]]]) -> str:
    """Draw the runs as SVG, with a line for each run in each row; each run is what it says of itself, and its rows."""
    of_rows = [
        (words, [(about, row) for about, rows in runs for row in rows if (row.benchmark, row.what, row.against) == key])
        for key, words in DRAWN.items()
    ]
    of_rows = [(words, found) for words, found in of_rows if found]
    height = TOP + PITCH * len(of_rows) + 44
    bottom = height - 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Microseconds of a callback, with hostcb and with JAX\'s own">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        '<text class="title" x="16" y="30">Microseconds of a callback on a CPU, with hostcb and with JAX\'s own</text>',
        f'<text class="small" x="16" y="50">{escape("; ".join(_machine(about) for about, _ in runs))}</text>',
        '<circle class="ours" cx="22" cy="74" r="5"/><text x="34" y="78">hostcb</text>',
        '<circle class="theirs" cx="102" cy="74" r="5"/><text x="114" y="78">JAX</text>',
        '<text class="small" x="160" y="78">in a loop on the device, if nothing else is said; a logarithmic scale; '
        "on the right the median of hostcb's cost divided by JAX's</text>",
    ]
    for tick in (1, 10, 100, 1000, 10_000):
        parts += [
            f'<line class="grid" x1="{_along(tick):.1f}" y1="{TOP - 8}" x2="{_along(tick):.1f}" y2="{bottom}"/>',
            f'<text class="small" x="{_along(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:,} µs</text>',
        ]
    for number, (words, found) in enumerate(of_rows):
        parts += _row(words, found, TOP + PITCH * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(words: str, found: Sequence[tuple[Mapping[str, Any], Row]], top: float) -> Iterator[str]:
    middle = top + PITCH / 2 - 2
    yield f'<text x="{LEFT - 72}" y="{middle + 4}" text-anchor="end">{escape(words)}</text>'
    for place, (about, row) in enumerate(found):
        y = middle + (place - (len(found) - 1) / 2) * 14
        ours, theirs = _along(row.ours), _along(row.theirs)
        figures = f"{results.figure(row.ours)} µs with hostcb, {results.figure(row.theirs)} µs with JAX {about['jax']}"
        yield f'<text class="small" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(str(about["jax"]))}</text>'
        yield f"<g><title>{escape(words)}: {escape(figures)}</title>"
        yield f'<line class="gain" x1="{ours:.1f}" y1="{y}" x2="{theirs:.1f}" y2="{y}"/>'
        yield f'<circle class="theirs" cx="{theirs:.1f}" cy="{y}" r="4.5"/>'
        yield f'<circle class="ours" cx="{ours:.1f}" cy="{y}" r="5"/></g>'
        yield f'<text class="small" x="{WIDTH - 16}" y="{y + 4}" text-anchor="end">{_share(row.ratio)}</text>'


def _along(microseconds: float) -> float:
    least, most = (math.log10(end) for end in SCALE)
    share = (math.log10(microseconds) - least) / (most - least)
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(share, 0.0), 1.0)


def _share(ratio: float) -> str:
    """The ratio in two digits, as one part of so many if it is small."""
    return f"1/{float(f'{1 / ratio:.2g}'):,.0f}" if ratio < 0.4 else f"{ratio:.2f}"


def _machine(about: Mapping[str, Any]) -> str:
    python = ".".join(str(about["python"]).split(".")[:2])
    return f"JAX {about['jax']}, Python {python}, {about['cpus']} cores, {str(about['date'])[:10]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the files, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_jax", description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="RUN.json", help="what --json has written")
    parser.add_argument("--svg", type=Path, required=True, metavar="FILE", help="the picture")
    chosen = parser.parse_args(arguments)
    runs = [(json.loads(file.read_text())["environment"], results.read(file)) for file in chosen.files]
    chosen.svg.write_text(drawn(runs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
