"""`hostcb.install`: programs that name JAX's callbacks, or the old host_callback, go through hostcb unchanged (H27)."""
