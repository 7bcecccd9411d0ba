"""Executions on the devices: their order, and the barrier that waits for them."""
