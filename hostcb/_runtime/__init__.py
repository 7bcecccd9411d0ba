"""The host while programs run: executions, queues, barriers, failures, threads and memory."""
