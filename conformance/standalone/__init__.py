"""Prints the program of a cell as a file that imports nothing of this project but hostcb: for bug reports."""

NOT_CHECKED = ("overlap", "torn operand", "early barrier")
"""Kinds of anomalies for which a program does not look: they need more lines, and hardly any program shows them."""
