"""Memory on the host: blocks for copies, pages for results, and their owners."""
