"""The host while programs run, in rooms: memory, queues, dispatches, executions, and what observes them."""
