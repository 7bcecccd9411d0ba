import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

came = []


def function(x):
    value = checkpoint_name(jnp.sin(x), "sine")
    jax.debug.callback(lambda value: came.append(None), value)
    return jnp.sin(value)


def times(policy):
    came.clear()
    jax.block_until_ready(jax.grad(jax.checkpoint(function, policy=policy))(1.0))
    jax.effects_barrier()
    return len(came)


policies = jax.checkpoint_policies
saving = times(policies.save_only_these_names("sine"))
offloading = times(
    policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["sine"],
        names_which_can_be_offloaded=[],
        offload_src="device",
        offload_dst="pinned_host",
    )
)
print("calls, if the value may be saved or offloaded:", offloading)
print("expected, as if the value may only be saved:", saving)
raise SystemExit(offloading != saving)
