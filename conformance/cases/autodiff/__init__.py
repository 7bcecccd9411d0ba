"""Callbacks in differentiated programs, in derivative rules and under checkpoint."""
