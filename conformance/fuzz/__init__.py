"""Random programs with callbacks, and an oracle for them: an interpreter of the traced program on NumPy.

docs/fuzzing.md describes the parts. `description`, `source`, `drawing`, `matching` and `corpus` need no JAX.
"""
