"""What outlives a program, and what is let go with it."""
