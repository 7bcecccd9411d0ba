"""Waits for executions of JAX, and lets `jax.effects_barrier` also wait for hostcb's queued callbacks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .registry import Cost, called_with, private
from .runtime import without_mesh

RUNTIME_TOKENS = private(
    "jax._src.dispatch:runtime_tokens",
    "Lets jax.effects_barrier wait for callbacks that are queued, and hands over the tokens of other effects.",
    "jax.effects_barrier does not wait for queued taps; use hostcb.barrier_wait. On CPU, programs with callbacks run "
    "in the thread that dispatches them.",
    ("H5", "H13", "H15", "H17"),
    Cost.SOME,
    attributes=("current_tokens", "output_runtime_tokens"),
    methods={"clear": called_with(0)},
)
runtime_tokens = RUNTIME_TOKENS.value

_SCOPE = private(
    "jaxlib._jax:TracebackScope",
    "Ends the traceback that jaxlib collects when a token is asked whether it is ready.",
    "A dispatch from a deep stack takes longer, since jaxlib walks the stack.",
    ("D3",),
    Cost.COMFORT,
    attributes=("__enter__", "__exit__"),
)

logger = logging.getLogger("hostcb")


class RuntimeToken:
    """A runtime token whose wait does not raise: `barrier_wait` reports the failures of hostcb's callbacks.

    The runtime's token has no `is_ready`, so this token reports that it is ready only after a wait.
    """

    def __init__(self, token: Any):
        self._token = token
        self._waited = False

    def block_until_ready(self) -> None:
        settle(self._token)
        self._waited = True

    def is_ready(self) -> bool:
        return self._waited


class UpToHost:
    """Lets `jax.effects_barrier` wait, on one device, for the computation and then for the callbacks that it queued."""

    def __init__(self, waitable: Any, device: Any, drain: Callable[[Any], None]):
        self._waitable = waitable
        self._device = device
        self._drain = drain

    def block_until_ready(self) -> None:
        try:
            if self._waitable is not None:
                self._waitable.block_until_ready()
        finally:
            self._drain(self._device)


def covered(devices: Sequence[Any]) -> list[Any]:
    """The devices on which this thread's next `jax.effects_barrier` also waits for queued callbacks."""
    if runtime_tokens is None:
        return []
    tokens = runtime_tokens.output_runtime_tokens
    return [device for device in devices if isinstance(tokens.get(device), UpToHost)]


def cover_by_effects_barrier(device: Any, drain: Callable[[Any], None]) -> None:
    """Let this thread's next `jax.effects_barrier` call `drain(device)` after it has waited for JAX's own token."""
    if runtime_tokens is None:
        return
    tokens = runtime_tokens.output_runtime_tokens
    if not isinstance(tokens.get(device), UpToHost):
        let_effects_barrier_wait({device: UpToHost(tokens.get(device), device, drain)})


def let_effects_barrier_wait(tokens: dict[Any, UpToHost]) -> None:
    # A new dictionary: a signal handler may run this while JAX iterates over the old one.
    runtime_tokens.output_runtime_tokens = {**runtime_tokens.output_runtime_tokens, **tokens}


def forget_tokens() -> None:
    """Remove the tokens for which JAX's barriers would wait: a forked child does not run these executions."""
    if runtime_tokens is not None:
        runtime_tokens.clear()


def is_ready(token: Any) -> bool:
    """Return whether a token is ready, in a time that does not grow with the depth of the stack."""
    if not _SCOPE.holds:
        return bool(token.is_ready())
    with _SCOPE.value():
        return bool(token.is_ready())


def settle(waitable: Any) -> None:
    """Wait for `waitable`, whether it succeeds or fails."""
    try:
        waitable.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        # hostcb recorded the failure when it happened; this function only waits.
        logger.debug("a computation ended with an error: %s", error)


def settle_devices(devices: Sequence[Any]) -> None:
    """Wait for the programs on exactly these devices."""
    settle(one_more(devices))


def one_more(devices: Sequence[Any]) -> Any:
    """Return the result of one more program on these devices: runtimes run them in order, so it is the last."""
    token = fresh_token(devices)
    # JAX refuses the token under `jax.set_mesh` with a mesh of explicit axes, which is not that of the token.
    with without_mesh():
        try:
            return jax.jit(jnp.logical_not)(token)
        except RecursionError:
            # For JAX the trace of a function that an interrupt has ended goes on for ever ("Recursively calling"). This
            # function is a new one, and has none inside.
            return jax.jit(lambda token: jax.lax.bitwise_not(token))(token)


def settle_platforms() -> None:
    """Wait for the programs that any thread has started on one device of this process."""
    with contextlib.suppress(RuntimeError):
        # JAX raises RuntimeError if there is no device.
        for device in jax.local_devices():
            settle_devices([device])


def settle_thread() -> None:
    """Wait for the programs with effects that this thread started, whether they succeed or fail."""
    try:
        jax.effects_barrier()
    except (jax.errors.JaxRuntimeError, ExceptionGroup) as error:
        # An ExceptionGroup means that several devices failed.
        logger.debug("a computation ended with an error: %s", error)


def on_each(token: Any) -> list[Any]:
    """The tokens of the single devices of a token array, in the order of its devices."""
    return [shard.data for shard in token.addressable_shards]


def fresh_token(devices: Sequence[Any]) -> Any:
    """A token array that is ready, one empty shard on each device."""
    empty = np.zeros(0, np.bool_)
    shards = [jax.device_put(empty, device) for device in devices]
    if len(shards) == 1:
        return shards[0]
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    return jax.make_array_from_single_device_arrays((0,), sharding, shards)
