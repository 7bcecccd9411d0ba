"""A run on several machines: shards, a Dask cluster, the hosts of a job."""
