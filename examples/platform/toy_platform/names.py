"""The names of the platform: they differ on purpose, as those of real platforms may."""

NAME = "toy"
"""The name under which JAX registers the platform: `JAX_PLATFORMS=toy`, `jax.devices("toy")`."""

DEVICES_PLATFORM = "toy_npu"
"""The `platform` of its devices, which JAX uses in its messages and in lowering rules."""
