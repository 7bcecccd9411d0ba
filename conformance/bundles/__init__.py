"""Bundles: the results of a run and all that it takes to judge them again elsewhere. Nothing here imports JAX."""
