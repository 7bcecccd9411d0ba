"""Cells as items of pytest, in the processes that pytest and xdist start."""
