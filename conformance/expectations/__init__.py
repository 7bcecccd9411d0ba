"""Known failures: the files that list them, and how they are edited."""
