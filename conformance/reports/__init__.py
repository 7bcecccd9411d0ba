"""What people and machines read of a run: made from its JSON, on machines without JAX as well."""
