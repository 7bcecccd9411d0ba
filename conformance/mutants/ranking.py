"""The cells to run first: few cells that together kill all mutants, those that kill the most of them first."""

from __future__ import annotations

from collections import Counter

from .matrix import Matrix

HEAD = """\
# The cells that run first, and the mutants for which each was chosen: each kills the most mutants that none before it
# has killed. `python -m conformance mutants --rank` writes this.
"""


def ranking_of(matrix: Matrix) -> str:
    """The text of the file: a greedy cover, in which of equal cells the quicker one is first."""
    left = {row.mutant.name: {trial.cell for trial in row.kills} for row in matrix.rows if row.kills}
    seconds = {cell: outcome.seconds for cell, outcome in matrix.control.items()}
    lines = [HEAD]
    while left:
        counts = Counter(cell for cells in left.values() for cell in cells)
        best = min(counts, key=lambda cell: (-counts[cell], seconds[cell], cell))
        lines.append(" ".join((best, *sorted(mutant for mutant, cells in left.items() if best in cells))) + "\n")
        left = {mutant: cells for mutant, cells in left.items() if best not in cells}
    return "".join(lines)
