"""Every private name of JAX that hostcb touches; nothing else imports one.

Each entry says why the public interface does not serve. Where a name may vanish, the code falls back to what JAX
does by itself and says so once in the log, so that a new JAX release degrades hostcb before it breaks it.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
from jax._src import api, core, dispatch, effects, sharding_impls, util, xla_bridge
from jax._src import config as jax_config
from jax._src import mesh as mesh_lib
from jax._src import shard_map as shard_map_lib
from jax._src.interpreters import batching as private_batching
from jax._src.interpreters import mlir, partial_eval, pxla
from jax._src.lax.control_flow import conditionals, loops
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


def keep_in_scans(belongs: Callable[[Any], bool]) -> None:
    """Where JAX splits a `scan` for its derivative, leave in the loop what does not depend on it if it `belongs` there.

    JAX evaluates it once before the loop, a callback without operands among it, and has no rule by which a primitive
    could object.
    """
    try:
        plain = loops._scan_known_hoisting
        split, plain_rule = partial_eval.partial_eval_jaxpr_nounits, _rematerialise[loops.scan_p]
    except (AttributeError, KeyError):
        logger.debug("this JAX splits scans in a way unknown to hostcb: callbacks with constant operands may run once")
        return

    def hoisting(known: Any, constants: Sequence[Any], residuals: int, *others: Any) -> tuple[Any, ...]:
        if belongs(known):
            return known, constants, [False] * residuals, []
        result: tuple[Any, ...] = plain(known, constants, residuals, *others)
        return result

    # The same in a `checkpoint`: there the rule for scans has its body split by a function that others use as well.
    in_rule: contextvars.ContextVar[bool] = contextvars.ContextVar("hostcb_scan_is_split", default=False)

    def rule(saveable: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
        reset = in_rule.set(True)
        try:
            return plain_rule(saveable, unknown, instantiated, equation)
        finally:
            in_rule.reset(reset)

    def splitting(jaxpr: Any, unknown: Sequence[bool], instantiate: Any) -> Any:
        if in_rule.get() and belongs(jaxpr):
            return _all_depends_on_the_loop(jaxpr, unknown)
        return split(jaxpr, unknown, instantiate)

    loops._scan_known_hoisting = hoisting
    _rematerialise[loops.scan_p] = rule
    partial_eval.partial_eval_jaxpr_nounits = splitting  # type: ignore[assignment]


_rematerialise: dict[Any, Callable[..., Any]] = getattr(partial_eval, "partial_eval_jaxpr_custom_rules", {})


def _all_depends_on_the_loop(jaxpr: Any, unknown: Sequence[bool]) -> tuple[Any, Any, list[bool], list[Any]]:
    """A scan's body split into nothing, which passes its known operands on, and everything."""
    known = [aval for aval, is_unknown in zip(jaxpr.in_avals, unknown, strict=True) if not is_unknown]
    nothing = jax.make_jaxpr(lambda *operands: operands)(*known)
    # JAX names the operands of what it builds from this by their number, so they have no names here.
    names = nothing.jaxpr.debug_info.with_unknown_names()
    nothing = nothing.replace(jaxpr=nothing.jaxpr.replace(debug_info=names))
    everything = partial_eval.move_binders_to_front(jaxpr, [not is_unknown for is_unknown in unknown])
    return nothing, everything, [True] * len(jaxpr.out_avals), known


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


def memory_of(module_context: Any) -> dict[Any, Any]:
    """A dictionary that lives as long as a module is lowered, for whoever wants to lower equal things once."""
    return getattr(module_context, "cached_primitive_lowerings", {})


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


# JAX's own rules for two primitives, for `_compiler_bugs`; None where this JAX has them elsewhere.
shard_map_p = getattr(shard_map_lib, "shard_map_p", None)
lower_shard_map = getattr(shard_map_lib, "_shard_map_lowering", None)
lower_cond = getattr(conditionals, "_cond_lowering", None)


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


# Dispatch, for `_hooks` ------------------------------------------------------------------------------------------

# What runs programs with effects: its methods deal with their tokens. None where this JAX has it elsewhere.
executor = getattr(pxla, "ExecuteReplicated", None)
# The tokens that JAX keeps, for each thread.
runtime_tokens = dispatch.runtime_tokens
# What is called at the end of JAX's fast dispatch, for each thread or for all; None where this JAX has none.
post_hook = getattr(api, "_post_hook_state", None)
