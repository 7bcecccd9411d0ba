"""Where callbacks run and where their results are: named devices, meshes, `shard_map`, outside jit."""
