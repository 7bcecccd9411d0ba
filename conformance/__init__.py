"""The conformance suite: what host callbacks do on a platform, proved cell by cell."""
