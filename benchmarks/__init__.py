"""Benchmarks of hostcb against JAX's own callbacks, as ratios measured in one run."""
