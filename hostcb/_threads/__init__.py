"""Threads without locks: which of them run callbacks, their states, and waiting with a deadline."""
