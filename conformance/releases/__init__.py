"""Other releases of JAX: an environment for each, cells that run there, and what that shows of known bugs.

The commands run in this process's JAX. Only worker processes run in the other environments.
"""
