"""Workarounds for bugs of JAX and XLA that JAX's own callbacks have, too: a module for each construct.

Each module names the reports of its bugs, and the releases of JAX that have them. `tests/unit/test_workarounds.py`
compares these with the reports. Where a bug is cured, the program of its report fails a test
(`tests/conformance/test_jax_bugs.py`), and its cells pass unexpectedly. Once no supported JAX has the bug, its
workaround can go.
"""
