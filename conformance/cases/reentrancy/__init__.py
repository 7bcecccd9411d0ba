"""Callbacks that run JAX, and callbacks of several threads."""
