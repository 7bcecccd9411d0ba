"""Prints the program of a cell as a file that imports nothing of this project but hostcb: for bug reports."""

ON_REQUEST = ("overlap", "torn operand", "early barrier")
"""Kinds of anomalies for which a program looks if it is asked to: they need more lines, and hardly any shows them."""
