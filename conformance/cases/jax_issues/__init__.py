"""Small programs from public reports about callbacks of JAX. A number without a project is one of JAX."""
