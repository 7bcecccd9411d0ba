"""The folder of results: one run holds it, and a run that was killed goes on from its journal."""
