"""The search for the release or commit with another outcome, and how sure it is.

`search` knows nothing of cells; `subjects` runs them, and git checks out commits.
"""
