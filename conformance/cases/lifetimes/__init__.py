"""How long operands, results and functions live."""
