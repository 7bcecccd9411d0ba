"""Other releases of JAX: an environment for each, and cells that run there.

The commands run in this process's JAX. Only worker processes run in the other environments.
"""
