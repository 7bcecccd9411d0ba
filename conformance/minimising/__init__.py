"""Makes a failing cell smaller, step by step, as long as it fails in the same way."""
