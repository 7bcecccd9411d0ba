"""Callbacks and their process: forks, signals, exits, and several processes."""
