"""Reports of results. Only `report` knows cells; every other module reads the JSON alone and imports no JAX."""
