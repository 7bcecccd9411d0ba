"""The errors of user functions: their text, their frames, and the log that keeps them for a barrier."""
