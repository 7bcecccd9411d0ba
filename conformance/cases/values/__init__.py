"""What callbacks receive, return and print."""
