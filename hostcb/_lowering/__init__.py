"""Lower an equation to the operation that calls a handler; the handlers themselves."""
