"""The semantic model: what a program with callbacks must do, said without running JAX."""
