"""Callbacks that fail: the error arrives once, where it belongs, and leaves nothing behind."""
