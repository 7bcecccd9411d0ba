"""The promises of the callbacks that JAX has, too, and of buffer and DLPack callbacks.

The promises are the same for every implementation: a promise that JAX's own callback breaks is a known failure of JAX.
"""

from __future__ import annotations

from functools import partial

from .callbacks import HOST_CALLBACKS, VMAP_METHODS, Batching, Callback, DeviceChoice, Refusal, Refusals, Runs

_TO_CUSTOM_RULES = Refusal((ValueError,), ("custom_jvp", "custom_vjp"))
_WITHOUT_METHOD = Refusal((NotImplementedError,), ("vmap_method",))
# For these two the contract promises a refusal, and no particular error.
_BATCHED_PREDICATE = Refusal((Exception,), ("vmap", "batched predicate"))
_CHECKPOINT = Refusal((NotImplementedError,), ("checkpoint", "remat"))

_PURE_REFUSES = Refusals(differentiation=_TO_CUSTOM_RULES, vmap=_WITHOUT_METHOD)
_EFFECT_REFUSES = Refusals(
    differentiation=_TO_CUSTOM_RULES,
    vmap=_WITHOUT_METHOD,
    batched_predicate=_BATCHED_PREDICATE,
    checkpoint=_CHECKPOINT,
    # The partitioner cannot place the operation on one device, and on every device it would run several times.
    mesh=Refusal((NotImplementedError,), ("shard_map",)),
)
_IO_REFUSES = Refusals(
    differentiation=Refusal((ValueError,), ("JVP", "jvp", "differentia")),
    batched_predicate=_BATCHED_PREDICATE,
    checkpoint=_CHECKPOINT,
)
_ORDERED_IO_REFUSES = Refusals(
    differentiation=_IO_REFUSES.differentiation,
    vmap=Refusal((ValueError,), ("ordered",)),
    batched_predicate=_BATCHED_PREDICATE,
    checkpoint=_CHECKPOINT,
)


_LAST = DeviceChoice.LAST
_external = partial(Callback, ordered=False, returns_new_value=True)
_pure = partial(_external, function="pure_callback", promises=("X2",), refusals=_PURE_REFUSES, runs=Runs.IF_NEEDED)
_io = partial(_external, function="io_callback", batching=Batching.SEQUENTIAL, refusals=_IO_REFUSES)
_debug = partial(Callback, function="debug.callback", promises=("X4",), batching=Batching.SEQUENTIAL, ordered=False)
_buffers = partial(
    _pure, function="buffer_callback", promises=("B1", "B2", "B4"), batching=Batching.REFUSED, in_place=True
)
_dlpack = partial(_buffers, function="dlpack_callback", promises=("D1",))
_side_effect = partial(
    Callback,
    batching=Batching.SEQUENTIAL,
    refusals=_EFFECT_REFUSES,
    ordered=False,
    returns_new_value=True,
    vmap_method="sequential",
)
# Several ordered kinds in one program, on one device: they share one order.
_mixture = partial(Callback, function="", batching=Batching.REFUSED, refusals=_ORDERED_IO_REFUSES)

_IO_ORDERED = _io(
    "io_callback_ordered", promises=("X3",), batching=Batching.REFUSED, refusals=_ORDERED_IO_REFUSES, ordered=True
)
_DEBUG_ORDERED = _debug("debug_callback_ordered", ordered=True)
_PRINT_ORDERED = _debug("debug_print_ordered", function="debug.print", ordered=True)
_BY_NAME = {callback.name: callback for callback in HOST_CALLBACKS}

EXTERNAL_CALLBACKS: tuple[Callback, ...] = (
    _pure("pure_callback", batching=Batching.REFUSED),
    *(
        _pure(f"pure_callback_{method}", batching=batching, takes_tree=True, vmap_method=method)
        for method, batching in VMAP_METHODS.items()
        if method
    ),
    _pure("pure_callback_sharding", promises=("X2", "X5"), batching=Batching.REFUSED, device_choice=_LAST),
    _io("io_callback", promises=("X3",)),
    _IO_ORDERED,
    _io("io_callback_sharding", promises=("X3", "X5"), device_choice=_LAST),
    _debug("debug_callback"),
    _DEBUG_ORDERED,
    _debug("debug_callback_partitioned", partitioned=True),
    _debug("debug_print", function="debug.print"),
    _PRINT_ORDERED,
    _buffers("buffer_callback"),
    _side_effect("buffer_callback_side_effect", function="buffer_callback", promises=("B1", "B4"), in_place=True),
    _buffers(
        "buffer_callback_alias",
        promises=("B3", "B4"),
        batching=Batching.BROADCAST_ALL,
        vmap_method="broadcast_all",
        aliased=True,
    ),
    _mixture("io_and_debug_ordered", promises=("H5", "X3", "X4"), parts=(_IO_ORDERED, _DEBUG_ORDERED)),
)
"""The callbacks that JAX itself has."""

FURTHER_CALLBACKS: tuple[Callback, ...] = (
    _dlpack("dlpack_callback", in_place=False),
    _dlpack("dlpack_callback_in_place", batching=Batching.BROADCAST_ALL, vmap_method="broadcast_all"),
    _side_effect("dlpack_callback_side_effect", function="dlpack_callback", promises=("D1", "D2")),
    _mixture(
        "io_tap_and_debug_ordered", promises=("H5", "X3", "X4"), parts=(_IO_ORDERED, _BY_NAME["id_tap"], _DEBUG_ORDERED)
    ),
    _mixture("call_print_and_tap", promises=("H5", "X4"), parts=(_BY_NAME["call"], _PRINT_ORDERED, _BY_NAME["id_tap"])),
)
"""The callbacks that JAX does not have."""

ALL_CALLBACKS = [*HOST_CALLBACKS, *EXTERNAL_CALLBACKS, *FURTHER_CALLBACKS]
"""Those of vendors are added to these."""

OWN_FUNCTIONS = frozenset(callback.function for callback in ALL_CALLBACKS)
_OF_JAX = frozenset(callback.function for callback in EXTERNAL_CALLBACKS)


def callbacks_of_jax() -> tuple[Callback, ...]:
    """The callbacks that JAX itself has, and a vendor's further options of their functions."""
    added = ALL_CALLBACKS[len(HOST_CALLBACKS) + len(EXTERNAL_CALLBACKS) + len(FURTHER_CALLBACKS) :]
    return (*EXTERNAL_CALLBACKS, *(callback for callback in added if {*functions_of(callback)} <= _OF_JAX))


def functions_of(callback: Callback) -> tuple[str, ...]:
    """The functions that a callback needs; a mixture needs those of its parts."""
    return tuple(part.function for part in callback.parts) or (callback.function,)


_NAMED = {callback.name: callback for callback in ALL_CALLBACKS}


def callback_named(name: str) -> Callback:
    return _NAMED[name]


def add_callback(callback: Callback) -> None:
    ALL_CALLBACKS.append(callback)
    _NAMED[callback.name] = callback
