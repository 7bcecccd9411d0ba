"""Mutants of hostcb's native extension: the hand-over of taps, the memory of large values, and copies."""
