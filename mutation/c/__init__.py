"""Mutants of hostcb's library in C: the hand-over of taps, the memory of large values, and copies."""
