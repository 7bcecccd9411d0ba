"""The conformance suite: tests the host callbacks of a platform, cell by cell."""
