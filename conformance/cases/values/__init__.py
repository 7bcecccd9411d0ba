"""Operands and results of every type, shape, structure and size arrive whole."""
