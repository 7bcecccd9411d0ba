"""Prints the program of a cell as a file that imports nothing of this project but hostcb: for bug reports."""
