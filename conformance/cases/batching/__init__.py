"""Callbacks under vmap: each batch element, each method, and what runs where predicates differ."""
