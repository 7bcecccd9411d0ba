"""Processes that begin with JAX imported: forks of a server, in place of fresh interpreters."""
