"""Every private name of JAX that hostcb touches, and nothing else touches one.

Each entry says why the public interface does not serve. Where a name may vanish, the code falls back to what JAX
does by itself and says so once in the log, so that a new JAX release degrades hostcb before it breaks it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import api, core, dispatch, effects, sharding_impls, util, xla_bridge
from jax._src import config as jax_config
from jax._src import mesh as mesh_lib
from jax._src.interpreters import batching as private_batching
from jax._src.interpreters import mlir, partial_eval, pxla
from jax._src.lib import xla_client

logger = logging.getLogger("hostcb")

abstract_token = core.abstract_token


# Effects ---------------------------------------------------------------------------------------------------------

# `partial_eval_kept` is the one that JAX's own `io_callback` lacks: without it an equation whose result is unused in a
# scan body is dropped under grad, vjp and linearize.
EFFECT_SETS = (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.partial_eval_kept_effects,
)
ORDERED_EFFECT_SETS = (effects.ordered_effects, effects.shardable_ordered_effects)


def register_effect(effect_class: type, *, ordered: bool = False, rematerialised: bool = True) -> None:
    """Let `effect_class` pass every transformation, ordered on each device if asked for.

    An effect that is not `rematerialised` is refused by JAX in a checkpoint that is differentiated.
    """
    sets: tuple[Any, ...] = EFFECT_SETS
    if ordered:
        sets += ORDERED_EFFECT_SETS
    if rematerialised:
        sets += (effects.remat_allowed_effects,)
    for effect_set in sets:
        effect_set.add_type(effect_class)


# Tracing ---------------------------------------------------------------------------------------------------------


def is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def key_implementation(dtype: Any) -> Any:
    """The generator that a typed key's dtype names; `jax.random.key_impl` wants an array, and there is none yet."""
    return dtype._impl


def key_data_shape(dtype: Any) -> tuple[int, ...]:
    return tuple(dtype._impl.key_shape)


def is_saved(saveable: Callable[..., Any], primitive: Any, avals: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether a rematerialisation policy keeps this primitive's results."""
    policy = partial_eval.ensure_enum(saveable(primitive, *avals, **params))
    return isinstance(policy, type(partial_eval.Saveable))


def hold_weakly_in_caches(parameter_class: type) -> None:
    """Keep JAX's tracing caches from keeping a primitive's parameter alive, and with it the user's function."""
    types = getattr(util, "weakref_cache_key_types", None)
    if types is None:
        logger.warning("this JAX has no weak caches: callbacks stay alive until jax.clear_caches()")
        return
    types.add(parameter_class)


def varying_as(aval: Any, operands: Sequence[Any]) -> Any:
    """`aval` varying over each manual mesh axis that one of `operands` varies over."""
    varying = frozenset().union(*(operand.manual_axis_type.varying for operand in operands))
    if not varying:
        return aval
    mesh = next(operand for operand in operands if operand.manual_axis_type.varying).sharding.mesh
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*[None] * aval.ndim))
    return jax.core.ShapedArray(
        aval.shape,
        aval.dtype,
        sharding=sharding,
        manual_axis_type=type(aval.manual_axis_type)(varying=varying),
    )


def predicate_is_batched(
    axis_data: Any, dims: Sequence[Any], cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any
) -> bool:
    """Whether a while loop's predicate is batched once every carry is that becomes so."""
    batched = [dim is not None for dim in dims]
    of_condition, of_body = batched[:cond_nconsts], batched[cond_nconsts : cond_nconsts + body_nconsts]
    carry = batched[cond_nconsts + body_nconsts :]
    while True:
        _, out = private_batching.batch_jaxpr(body_jaxpr, axis_data, of_body + carry, instantiate=carry)
        grown = [was or now for was, now in zip(carry, out, strict=True)]
        if grown == carry:
            break
        carry = grown
    _, (predicate,) = private_batching.batch_jaxpr(cond_jaxpr, axis_data, of_condition + carry, instantiate=False)
    return bool(predicate)


def axis_name(axis_data: Any) -> Any:
    """The name for `jax.vmap` of the axis that a batching rule is given."""
    return None if axis_data.name is core.no_axis_name else axis_data.name


def without_mesh() -> contextlib.AbstractContextManager[None]:
    """Forget the mesh that `jax.set_mesh` chose for the program: a callback in this thread is no part of it."""
    if mesh_lib.get_concrete_mesh().empty and jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return _empty_mesh()


@contextlib.contextmanager
def _empty_mesh() -> Iterator[None]:
    with (
        sharding_impls._internal_use_concrete_mesh(mesh_lib.empty_concrete_mesh),
        mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh),
    ):
        yield


def run_compiled(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """Compile `primitive` alone and run it, as JAX does with its own primitives outside jit."""
    return dispatch.apply_primitive(primitive, *operands, **params)


# Lowering --------------------------------------------------------------------------------------------------------


def annotate(module_context: Any, op: Any, sharding: Any) -> None:
    mlir.set_sharding(module_context, op, sharding)


def one_device_sharding(index: int, results: int) -> Any:
    """All `results` of an op on device number `index` of the device assignment."""
    if jax_config.use_shardy_partitioner.value:
        array = sharding_impls.SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=(index,))
        return sharding_impls.SdyArrayList((array,) * max(1, results))
    sharding = xla_client.OpSharding()
    sharding.type = xla_client.OpSharding.Type.MAXIMAL
    sharding.tile_assignment_dimensions = [1]
    sharding.tile_assignment_devices = [index]
    return sharding


def whole_sharding(ranks: Sequence[int], manual: bool) -> Any:
    """Every device holds each result whole: replicated, or in a manual region that device's own."""
    if jax_config.use_shardy_partitioner.value:
        closed = sharding_impls.SdyDim(axes=(), is_open=False)
        return sharding_impls.SdyArrayList(
            tuple(
                sharding_impls.SdyArray(mesh_shape=(), dim_shardings=(closed,) * rank, logical_device_ids=())
                for rank in ranks
            )
        )
    sharding = xla_client.OpSharding()
    types = xla_client.OpSharding.Type
    sharding.type = types.MANUAL if manual else types.REPLICATED
    return sharding


def require_devices(primitive: Any) -> None:
    """Let lowering rules of `primitive` see the devices that the program will run on."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


# Devices and the runtime's threads -------------------------------------------------------------------------------


def forced_cpu_devices() -> int:
    """How many CPU devices there will be, as far as flags and options say it before the client exists."""
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    option = getattr(jax.config, "jax_num_cpu_devices", -1)
    return max(int(flag.group(1)) if flag else 1, option)


def backends_exist() -> bool:
    """Whether JAX has made its clients already, so that their environment variables come too late."""
    return xla_bridge.backends_are_initialized()


# Configuration ---------------------------------------------------------------------------------------------------


class FlagHolder(Protocol):
    def _set(self, value: Any) -> None: ...


def register_config_option(name: str, holder: FlagHolder) -> None:
    """Let `jax.config.update(name, value)` reach our flag, as it did when JAX had host_callback itself."""
    holders = getattr(jax.config, "_value_holders", None)
    if holders is None:
        logger.warning("this JAX keeps no table of options: set %s by environment variable or absl flag", name)
        return
    holders[name] = holder


# Dispatch --------------------------------------------------------------------------------------------------------


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
    tokens = dispatch.runtime_tokens.output_runtime_tokens
    if not isinstance(tokens.get(device), _UpToHost):
        tokens[device] = _UpToHost(tokens.get(device), device, drain)


def settle(waitable: Any) -> None:
    """Wait for `waitable`, whether it succeeds or fails."""
    try:
        waitable.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        # The failure itself was recorded where it happened; here only the waiting counts.
        logger.debug("a computation ended with an error: %s", error)


def settle_thread() -> None:
    """Wait for the programs with effects that this thread started, whether they succeed or fail."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        logger.debug("a computation ended with an error: %s", error)


def install_dispatch_hooks(effect: Any, program_class: type, hooks: DispatchHooks) -> bool:
    """Take over the tokens of `effect` and learn of every execution; False where this JAX does not allow it.

    JAX keeps tokens per thread, lets a failed one poison whatever comes next, and has no list of what runs. All three
    are properties of two methods of the object that executes programs with effects, hence the patch.
    """
    executor = getattr(pxla, "ExecuteReplicated", None)
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
        if not (self.ordered_effects or self.has_unordered_effects) and not hooks.dispatched_natively(
            program, self._local_devices, functools.partial(_optimized_hlo, self)
        ):
            # Said to have an effect, it keeps coming here: JAX's fast dispatch would turn errors into ValueErrors.
            self.has_unordered_effects = True
        execution = hooks.begin(program, self._local_devices, _device_assignment(self))
        dispatching.stack.append(execution)
        error = None
        try:
            with without_mesh():
                return plain_call(self, *args)
        except BaseException as exception:
            error = exception
            raise
        finally:
            dispatching.stack.pop()
            hooks.end(execution, error)

    def ours(self: Any) -> bool:
        return any(isinstance(kept, program_class) for kept in self.keepalive or ())

    def add_tokens(self: Any, input_buffers: Any) -> Any:
        if effect not in self.ordered_effects:
            return plain_add(self, input_buffers)
        execution = dispatching.stack[-1]
        tokens = [
            hooks.tokens_in(execution)
            if each == effect
            else dispatch.runtime_tokens.get_token_input(each, self._local_devices)._buf
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
            dispatch.runtime_tokens.current_tokens.pop(effect, None)
        runtime_tokens = [RuntimeToken(runtime_token.get_token(i)) for i in range(len(self._local_devices))]
        for device, token in zip(self._local_devices, runtime_tokens, strict=True):
            dispatch.runtime_tokens.set_output_runtime_token(device, _UpToHost(token, device, hooks.drain))
        if effect in self.ordered_effects:
            hooks.started(execution, token_buffers[list(self.ordered_effects).index(effect)], True)
        else:
            hooks.started(execution, runtime_tokens, False)
        return None

    executor.__call__ = call
    executor._add_tokens_to_inputs = add_tokens
    executor._handle_token_bufs = handle_tokens
    return True


class _Raise:
    """A hook for the end of JAX's fast dispatch that raises once, in place of the results."""

    def __init__(self, state: Any, error: Exception):
        self.error = error
        self._state = state
        self._before = state.swap_local(self)

    def __call__(self, *_: Any) -> None:
        self._state.swap_local(self._before)
        raise self.error


def raise_after_dispatch(error: Exception) -> bool:
    """Let the fast dispatch that this thread is in raise `error` when it ends; False where JAX has no such hook."""
    state = getattr(api, "_post_hook_state", None)
    if state is None or not hasattr(state, "swap_local"):
        return False
    if not isinstance(state.value, _Raise):
        # The first error is the cause of others.
        _Raise(state, error)
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
