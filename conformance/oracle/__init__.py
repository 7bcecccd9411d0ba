"""What a program did, and the verdict on it: histories, checkers, stages."""
