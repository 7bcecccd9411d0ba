"""The promises of the callbacks that JAX has, too, and of buffer and DLPack callbacks.

The promises are the same for every implementation: a promise that JAX's own callback breaks is a known failure of JAX.
"""

from __future__ import annotations

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


def _pure(name: str, vmap_method: str | None = None, device_choice: DeviceChoice = DeviceChoice.FIRST) -> Callback:
    return Callback(
        name,
        "pure_callback",
        ("X2", "X5") if device_choice is DeviceChoice.LAST else ("X2",),
        VMAP_METHODS[vmap_method],
        _PURE_REFUSES,
        Runs.IF_NEEDED,
        ordered=False,
        returns_new_value=True,
        takes_tree=vmap_method is not None,
        device_choice=device_choice,
        vmap_method=vmap_method,
    )


def _io(name: str, ordered: bool = False, device_choice: DeviceChoice = DeviceChoice.FIRST) -> Callback:
    refusals = _ORDERED_IO_REFUSES if ordered else _IO_REFUSES
    return Callback(
        name,
        "io_callback",
        ("X3", "X5") if device_choice is DeviceChoice.LAST else ("X3",),
        refusals.batching,
        refusals,
        ordered=ordered,
        returns_new_value=True,
        device_choice=device_choice,
    )


def _debug(name: str, function: str, ordered: bool = False, partitioned: bool = False) -> Callback:
    return Callback(name, function, ("X4",), Batching.SEQUENTIAL, ordered=ordered, partitioned=partitioned)


def _buffers(
    name: str,
    *promises: str,
    function: str = "buffer_callback",
    side_effect: bool = False,
    vmap_method: str | None = None,
    aliased: bool = False,
    in_place: bool = True,
) -> Callback:
    return Callback(
        name,
        function,
        promises,
        VMAP_METHODS[vmap_method],
        _EFFECT_REFUSES if side_effect else _PURE_REFUSES,
        Runs.ONCE if side_effect else Runs.IF_NEEDED,
        ordered=False,
        returns_new_value=True,
        vmap_method=vmap_method,
        aliased=aliased,
        in_place=in_place,
    )


def _mixture(name: str, *promises: str, parts: tuple[Callback, ...]) -> Callback:
    """Several ordered kinds in one program, on one device: they share one order."""
    return Callback(name, "", promises, Batching.REFUSED, _ORDERED_IO_REFUSES, parts=parts)


_IO_ORDERED = _io("io_callback_ordered", ordered=True)
_DEBUG_ORDERED = _debug("debug_callback_ordered", "debug.callback", ordered=True)
_PRINT_ORDERED = _debug("debug_print_ordered", "debug.print", ordered=True)
_BY_NAME = {callback.name: callback for callback in HOST_CALLBACKS}

EXTERNAL_CALLBACKS: tuple[Callback, ...] = (
    _pure("pure_callback"),
    _pure("pure_callback_sequential", "sequential"),
    _pure("pure_callback_sequential_unrolled", "sequential_unrolled"),
    _pure("pure_callback_expand_dims", "expand_dims"),
    _pure("pure_callback_broadcast_all", "broadcast_all"),
    _pure("pure_callback_sharding", device_choice=DeviceChoice.LAST),
    _io("io_callback"),
    _IO_ORDERED,
    _io("io_callback_sharding", device_choice=DeviceChoice.LAST),
    _debug("debug_callback", "debug.callback"),
    _DEBUG_ORDERED,
    _debug("debug_callback_partitioned", "debug.callback", partitioned=True),
    _debug("debug_print", "debug.print"),
    _PRINT_ORDERED,
    _buffers("buffer_callback", "B1", "B2", "B4"),
    _buffers("buffer_callback_side_effect", "B1", "B4", side_effect=True, vmap_method="sequential"),
    _buffers("buffer_callback_alias", "B3", "B4", vmap_method="broadcast_all", aliased=True),
    _mixture("io_and_debug_ordered", "H5", "X3", "X4", parts=(_IO_ORDERED, _DEBUG_ORDERED)),
)
"""The callbacks that JAX itself has."""

FURTHER_CALLBACKS: tuple[Callback, ...] = (
    _buffers("dlpack_callback", "D1", function="dlpack_callback", in_place=False),
    _buffers("dlpack_callback_in_place", "D1", function="dlpack_callback", vmap_method="broadcast_all"),
    _buffers(
        "dlpack_callback_side_effect",
        "D1",
        "D2",
        function="dlpack_callback",
        side_effect=True,
        vmap_method="sequential",
        in_place=False,
    ),
    _mixture("io_tap_and_debug_ordered", "H5", "X3", "X4", parts=(_IO_ORDERED, _BY_NAME["id_tap"], _DEBUG_ORDERED)),
    _mixture("call_print_and_tap", "H5", "X4", parts=(_BY_NAME["call"], _PRINT_ORDERED, _BY_NAME["id_tap"])),
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
    """Add a vendor's callback."""
    ALL_CALLBACKS.append(callback)
    _NAMED[callback.name] = callback
