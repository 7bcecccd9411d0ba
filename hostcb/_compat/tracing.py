"""Facts about avals, parameters and the user's frames that only private names of JAX provide."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .extend import register_exclusion
from .registry import Cost, called_with, first_lost, known_as, private

_ABSTRACT_TOKEN = private(
    "jax._src.core:abstract_token",
    "The type of the token that is an operand and a result of an ordered callback.",
    "Ordered callbacks have no token, so they have no order.",
    ("H5",),
    Cost.EFFECTS,
)
_PART_OF_REF = private(
    "jax._src.state.types:TransformedRef",
    "Tells a part of a mutable array, ref.at[...], from other objects.",
    "The value of a part of a mutable array would not be read.",
    ("H1", "H3"),
    Cost.SOME,
)
_SAVEABLE = private(
    "jax._src.interpreters.partial_eval:Saveable",
    "Tells whether the policy of a checkpoint keeps the result of a callback.",
    "The callback could run more often than the policy says.",
    ("H6", "X4"),
    Cost.SOME,
)
_ANSWER = private(
    "jax._src.interpreters.partial_eval:ensure_enum",
    "Refuses what is no answer of a checkpoint's policy.",
    "Such answers could be taken for others.",
    ("H6", "X4"),
    Cost.SOME,
    called_with(1),
)
_WEAK_TYPES = private(
    "jax._src.util:weakref_cache_key_types",
    "Keeps JAX's tracing caches from holding the user's functions.",
    "Functions of callbacks stay alive until jax.clear_caches().",
    ("H18",),
    Cost.COMFORT,
    methods={"add": called_with(1)},
)
_VARYING = private(
    "jax._src.core:ShapedArray.manual_axis_type",
    "Tells over which manual axes of a mesh an operand varies.",
    "In a shard_map, JAX would take a result that differs between devices for one that is the same on all.",
    ("H9",),
    Cost.SOME,
)
_SHAPED_ARRAY = private(
    "jax.core:ShapedArray",
    "Says over which of them a result varies.",
    _VARYING.without,
    ("H9",),
    Cost.SOME,
    called_with(2, "sharding", "manual_axis_type"),
)
_STATE_OVER_AXES = private(
    "jax._src.lax.parallel:_get_from",
    "Lets jax.lax.pcast take a result that varies already, since JAX's own callbacks have results that do not.",
    "In a shard_map, JAX refuses to cast the result of a callback to one that varies.",
    ("H9",),
    Cost.SOME,
    known_as("aval axes name"),
)
_CAST_TO_VARYING = private(
    "jax._src.lax.parallel:_pcast_funcs",
    "Does the same.",
    _STATE_OVER_AXES.without,
    ("H9",),
    Cost.SOME,
    called_with(2),
    key=("invarying", "varying"),
)
_AXIS_DATA = private(
    "jax._src.interpreters.batching:AxisData",
    "Tells the rule for a batched loop the name and the size of the axis.",
    "A loop whose predicate is batched could run finished elements on.",
    ("H7",),
    Cost.EFFECTS,
    attributes=("name", "size", "spmd_name"),
)
_EXCLUSION = private(
    "jax._src.traceback_util:register_exclusion",
    "Takes the frames of hostcb out of the tracebacks that JAX filters.",
    "Tracebacks of JAX show frames of hostcb.",
    ("H15",),
    Cost.COMFORT,
    called_with(1),
)

_UNDER_JIT = private(
    "jax._src.core:unsafe_am_i_under_a_jit",
    "Tells that JAX traces a function, and runs nothing of it.",
    "A barrier_wait in a jitted function does not say that it waits while JAX traces the function.",
    ("H13",),
    Cost.COMFORT,
    called_with(0),
)

abstract_token = _ABSTRACT_TOKEN.value
_unknown = first_lost(_VARYING, _SHAPED_ARRAY)


def is_tracing() -> bool:
    """Whether this thread traces a function, of which JAX runs nothing now."""
    return _UNDER_JIT.holds and bool(_UNDER_JIT.value())


def is_float0(leaf: Any) -> bool:
    try:
        dtype = leaf.dtype
    except Exception:
        # Any object may be a leaf, and its attribute lookup may raise any exception.
        return False
    return isinstance(dtype, np.dtype) and dtype == jax.dtypes.float0


_parts_are_known = _PART_OF_REF.holds
_refs = (jax.Ref, _PART_OF_REF.value) if _parts_are_known else (jax.Ref,)


def is_ref(leaf: Any) -> bool:
    """Whether `leaf` is a mutable array, or a part of one."""
    if isinstance(leaf, _refs):
        return True
    if not _parts_are_known and type(leaf).__module__.startswith("jax._src.state"):
        raise _PART_OF_REF.refusal(f"a part of a mutable array, {type(leaf).__name__},")
    return False


def key_implementation(dtype: Any) -> Any:
    """The random number generator of a typed key's dtype. `jax.random.key_impl` needs an array, so this traces one."""
    return _of_keys(dtype)[0]


def key_data_shape(dtype: Any) -> tuple[int, ...]:
    return _of_keys(dtype)[1]


@functools.cache
def _of_keys(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    found: list[Any] = []

    def words(key: Any) -> Any:
        found.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    shape = jax.eval_shape(words, jax.ShapeDtypeStruct((), dtype)).shape
    return found[0], tuple(shape)


def is_saved(saveable: Callable[..., Any], primitive: Any, avals: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether a rematerialisation policy keeps this primitive's results."""
    answer = saveable(primitive, *avals, **params)
    if isinstance(answer, bool):
        return answer
    unknown = first_lost(_SAVEABLE, _ANSWER)
    if unknown is not None:
        raise unknown.refusal(f"a checkpoint's policy that answers {answer} for a callback")
    return isinstance(_ANSWER.value(answer), type(_SAVEABLE.value))


def hold_weakly_in_caches(parameter_class: type) -> None:
    """Let JAX's tracing caches hold a primitive's parameter weakly, so the user's function can be collected."""
    if _WEAK_TYPES.holds:
        _WEAK_TYPES.value.add(parameter_class)


def varying_as(aval: Any, operands: Sequence[Any]) -> Any:
    """`aval`, marked as varying over each manual mesh axis over which at least one of `operands` varies."""
    if _unknown is not None:
        if jax.sharding.get_abstract_mesh().manual_axes:
            raise _unknown.refusal("a callback with a result, in a shard_map,")
        return aval
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


def let_results_be_cast() -> None:
    """Let `jax.lax.pcast` to varying leave alone the axes over which a value varies already.

    The results of JAX's own callbacks vary over no axis, so programs that are written for them cast.
    """
    if first_lost(_VARYING, _STATE_OVER_AXES, _CAST_TO_VARYING) is not None:
        return
    plain_state, plain_cast = _STATE_OVER_AXES.value, _CAST_TO_VARYING.value

    def without_varying(aval: Any, axes: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(axis for axis in axes if axis not in aval.manual_axis_type.varying)

    def state(aval: Any, axes: Any, name: Any) -> Any:
        # If the value varies over a part of the axes, its state over the others decides.
        others = without_varying(aval, axes) if name == "jax.lax.pcast" else ()
        return plain_state(aval, others or axes, name)

    def cast(x: Any, axis_name: Any) -> Any:
        return plain_cast(x, without_varying(jax.typeof(x), axis_name))

    _STATE_OVER_AXES.put(state)
    _CAST_TO_VARYING.put(cast)
    # A value that varies over all of the axes.
    _CAST_TO_VARYING.table["varying", "varying"] = cast


def unreduced_over(aval: Any) -> frozenset[Any]:
    """The axes of a mesh over which a value is unreduced: each device has a term of the sum that is the value."""
    manual = aval.manual_axis_type.unreduced if _VARYING.holds else frozenset()
    return frozenset(aval.sharding.spec.unreduced) | manual


def hide_frames(directory: str) -> None:
    """Let JAX treat the frames of a directory's modules like its own frames.

    The source information of a program then names the user's line, and JAX leaves these frames out of the tracebacks
    that it filters. JAX has a public function for the source information, and none for the tracebacks.
    """
    register_exclusion(directory)
    if _EXCLUSION.holds:
        _EXCLUSION.value(directory)
