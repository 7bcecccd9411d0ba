"""The cells of the suite, their eligibility, and the selection for a run."""
