"""What JAX does when it runs a program, taken over where its own way will not do: tokens, errors, and an account."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from . import _jax

logger = logging.getLogger("hostcb")


class DispatchHooks(Protocol):
    """What happens around one execution of a program that holds host callbacks."""

    def begin(self, program: Any, devices: Sequence[Any], mesh: Sequence[Any]) -> Any:
        """Called before the execution; the result is handed to the other methods."""

    def tokens_in(self, execution: Any) -> Any:
        """The token array that the execution takes for our effect."""

    def started(self, execution: Any, tokens: Sequence[Any], ordered: bool) -> None:
        """Called when the execution has been handed to the runtime, with what each device will yield at its end."""

    def drain(self, device: Any) -> None:
        """Called by `jax.effects_barrier` for each device of the executions that this thread started."""

    def end(self, execution: Any, error: BaseException | None) -> None:
        """Called when the dispatch returns or raises."""

    def dispatched_natively(self, program: Any, devices: Sequence[Any], optimized_hlo: Callable[[], str]) -> bool:
        """Whether a program without effects may take JAX's fast dispatch, which none of these methods sees."""


class RuntimeToken:
    """A runtime token whose wait does not raise: failures of our callbacks are `barrier_wait`'s to report.

    The runtime's own cannot be asked whether it is ready, so this one only knows once somebody has waited.
    """

    def __init__(self, token: Any):
        self._token = token
        self._waited = False

    def block_until_ready(self) -> None:
        settle(self._token)
        self._waited = True

    def is_ready(self) -> bool:
        return self._waited


class _UpToHost:
    """What `jax.effects_barrier` waits for on a device: the computation, then the callbacks that it queued."""

    def __init__(self, waitable: Any, device: Any, drain: Callable[[Any], None]):
        self._waitable = waitable
        self._device = device
        self._drain = drain

    def block_until_ready(self) -> None:
        if self._waitable is not None:
            self._waitable.block_until_ready()
        self._drain(self._device)


def cover_by_effects_barrier(device: Any, drain: Callable[[Any], None]) -> None:
    """Let this thread's next `jax.effects_barrier` wait for `drain(device)`, after what it would wait for anyway."""
    tokens = _jax.runtime_tokens.output_runtime_tokens
    if not isinstance(tokens.get(device), _UpToHost):
        tokens[device] = _UpToHost(tokens.get(device), device, drain)


def settle(waitable: Any) -> None:
    """Wait for `waitable`, whether it succeeds or fails."""
    try:
        waitable.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        # The failure itself was recorded where it happened; here only the waiting counts.
        logger.debug("a computation ended with an error: %s", error)


def settle_devices(devices: Sequence[Any]) -> None:
    """Wait for the programs that were started on just these devices: runtimes run them in order, so for one more."""
    settle(jax.jit(jnp.logical_not)(fresh_token(devices)))


def settle_thread() -> None:
    """Wait for the programs with effects that this thread started, whether they succeed or fail."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        logger.debug("a computation ended with an error: %s", error)


def install_dispatch_hooks(effect: Any, program_class: type, account: DispatchHooks) -> bool:
    """Take over the tokens of `effect` and learn of every execution; False where this JAX does not allow it.

    JAX keeps tokens per thread, lets a failed one poison whatever comes next, and has no list of what runs. All three
    are properties of two methods of the object that executes programs with effects, hence the patch.
    """
    executor: Any = _jax.executor
    needed = ("__call__", "_add_tokens_to_inputs", "_handle_token_bufs")
    if executor is None or not all(hasattr(executor, name) for name in needed):
        logger.warning("this JAX dispatches in a way unknown to hostcb: order across threads is not kept")
        return False

    plain_call = executor.__call__
    plain_add = executor._add_tokens_to_inputs
    plain_handle = executor._handle_token_bufs
    # A stack, since a callback that runs in the dispatching thread may dispatch another program.
    dispatching = _Dispatching()

    def call(self: Any, *args: Any) -> Any:
        program = next((kept for kept in self.keepalive or () if isinstance(kept, program_class)), None)
        if program is None:
            return plain_call(self, *args)
        if not (self.ordered_effects or self.has_unordered_effects) and not account.dispatched_natively(
            program, self._local_devices, functools.partial(_optimized_hlo, self)
        ):
            # Said to have an effect, it keeps coming here: JAX's fast dispatch would turn errors into ValueErrors.
            self.has_unordered_effects = True
        execution = account.begin(program, self._local_devices, _device_assignment(self))
        dispatching.stack.append(execution)
        error = None
        try:
            with _jax.without_mesh():
                return plain_call(self, *args)
        except BaseException as exception:
            error = exception
            raise
        finally:
            dispatching.stack.pop()
            account.end(execution, error)

    def ours(self: Any) -> bool:
        return any(isinstance(kept, program_class) for kept in self.keepalive or ())

    def add_tokens(self: Any, input_buffers: Any) -> Any:
        if effect not in self.ordered_effects:
            return plain_add(self, input_buffers)
        execution = dispatching.stack[-1]
        tokens = [
            account.tokens_in(execution)
            if each == effect
            else _jax.runtime_tokens.get_token_input(each, self._local_devices)._buf
            for each in self.ordered_effects
        ]
        return [*tokens, *input_buffers]

    def handle_tokens(self: Any, token_buffers: Any, runtime_token: Any) -> None:
        if not ours(self):
            return plain_handle(self, token_buffers, runtime_token)
        execution = dispatching.stack[-1]
        foreign = [each for each in self.ordered_effects if each != effect]
        if foreign:
            plain_handle(self, token_buffers, runtime_token)
            _jax.runtime_tokens.current_tokens.pop(effect, None)
        runtime_tokens = [RuntimeToken(runtime_token.get_token(i)) for i in range(len(self._local_devices))]
        for device, token in zip(self._local_devices, runtime_tokens, strict=True):
            _jax.runtime_tokens.set_output_runtime_token(device, _UpToHost(token, device, account.drain))
        if effect in self.ordered_effects:
            account.started(execution, token_buffers[list(self.ordered_effects).index(effect)], True)
        else:
            account.started(execution, runtime_tokens, False)
        return None

    executor.__call__ = call
    executor._add_tokens_to_inputs = add_tokens
    executor._handle_token_bufs = handle_tokens
    return True


def call_after_dispatch(function: Callable[[Any], bool]) -> bool:
    """Call `function` at the end of the fast dispatches of this thread, in place of the results if it raises.

    It gets the frame that dispatches, and is called until it raises, or returns True. False where JAX has no hook for
    that.
    """
    state: Any = _jax.post_hook
    if state is None or not hasattr(state, "get_local"):
        return False
    # Before the hook is there: a signal may come in between, and its handler may dispatch.
    before = state.get_local()

    def hook(*_: Any) -> None:
        done = True
        try:
            done = function(sys._getframe(1))
        finally:
            if done:
                state.set_local(before)

    state.set_local(hook)
    return True


def _optimized_hlo(executor: Any) -> str:
    """The text of the program that an executor runs."""
    return "\n".join(module.to_string() for module in executor.xla_executable.hlo_modules())


def _device_assignment(executor: Any) -> Sequence[Any]:
    """All devices of a program, in the order of its mesh; those of other processes are in its shardings alone."""
    if jax.process_count() > 1:
        for sharding in (*executor.in_handler.in_shardings, *executor.out_handler.out_shardings):
            if isinstance(sharding, jax.sharding.Sharding):
                return list(sharding._device_assignment)
    return executor._local_devices


class _Dispatching(threading.local):
    def __init__(self) -> None:
        self.stack: list[Any] = []


def fresh_token(devices: Sequence[Any]) -> Any:
    """A token array that is ready, one empty shard on each device."""
    empty = np.zeros(0, np.bool_)
    shards = [jax.device_put(empty, device) for device in devices]
    if len(shards) == 1:
        return shards[0]
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    return jax.make_array_from_single_device_arrays((0,), sharding, shards)
