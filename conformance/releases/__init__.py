"""Other releases of JAX: which there are, an environment for each, and cells run there.

The commands run in this process's JAX. Only worker processes run in the other environments.
"""
