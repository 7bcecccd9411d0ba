"""The search for the release or commit with another outcome, and how sure it is.

`bisection`, `statistics` and `evidence` know nothing of cells; `probing` runs them.
"""
