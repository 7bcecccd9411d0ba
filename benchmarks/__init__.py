"""Timings of hostcb beside JAX's own callbacks, as ratios measured in one run."""
