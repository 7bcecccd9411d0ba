"""The worker process, which runs cells, and `processes`, which starts and watches it without importing JAX."""
