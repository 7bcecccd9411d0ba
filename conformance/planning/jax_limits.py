"""Known failures of JAX's own callbacks, which covering rows and drawn compositions avoid.

Each failure also has planned cells with an entry in the expectations, so that the suite notices a JAX that fixes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..spec.callbacks import Callback, DeviceChoice
from ..spec.data import DataKind

MAPS_AND_MESHES = {"pmap", "pjit", "shard_map"}

SHOWN_BY = (
    "jax/pure_callback/jit+typed_key-scalar-one/cpu-1dev",
    "jax/io_callback/jit+typed_key-scalar-one/cpu-1dev",
    "jax/pure_callback/pjit.pmap/cpu-8dev",
    "jax/io_callback/pjit.pmap/cpu-8dev",
)
"""Additional cells that show limits which no planned program shows."""


def limit_of_program(callback: Callback, names: Sequence[str]) -> str | None:
    """The reason if a composition with this callback always fails in JAX; otherwise None."""
    if callback.parts:
        return "JAX does not order these kinds against each other"
    if callback.name == "buffer_callback_side_effect" and (len(names) > 1 or "pjit" in names):
        return "nothing says what JAX's must do there, and it does not refuse"
    if callback.function in ("pure_callback", "io_callback") and "pmap" in _inside(names, "pjit"):
        return "JAX refuses this callback in a pmap inside of a computation over a mesh"
    if callback.device_choice is DeviceChoice.LAST and "shard_map" in names:
        return "JAX refuses to choose a device for a callback in a shard_map"
    if callback.function == "io_callback" and {"scan", "fori"} & set(names) and "grad" in names and len(names) > 2:
        return "JAX drops an io_callback in a loop that is differentiated"
    if callback.name == "debug_callback_ordered" and "while_cond" in _inside(names, "vmap"):
        return "JAX's result of a batched loop whose condition has an ordered effect is wrong"
    return None


def limit_of_devices(callback: Callback, names: Sequence[str], device_count: int) -> str | None:
    """The reason if a callback fails in JAX on several devices; otherwise None."""
    if device_count == 1:
        return None
    if callback.function.startswith("debug.") and callback.ordered and MAPS_AND_MESHES & set(names):
        return "JAX refuses ordered debug callbacks in computations on more than one device"
    if callback.device_choice is DeviceChoice.LAST:
        return "JAX may hang where one device of several is to call back: a minute for each cell"
    return None


def limit_of_element(callback: Callback, element: str) -> str | None:
    if callback.function in ("pure_callback", "io_callback") and element == "typed_key":
        return "JAX's callbacks cannot return typed keys"
    if callback.function == "debug.callback" and element == "typed_key":
        return "JAX's debug callbacks see a typed key or its words, and nothing says which"
    return None


def limit_of_copies(names: Sequence[str], device_count: int, element: str, shape: str) -> str | None:
    if device_count > 1 and (element == "int4" or shape == "large") and MAPS_AND_MESHES & set(names):
        return "JAX copies such operands in threads that other devices' callbacks may hold: it may hang, a minute each"
    return None


def limit_of_signs(callback: Callback, names: Sequence[str], device_count: int, data: DataKind) -> str | None:
    with_result = callback.function in ("pure_callback", "io_callback")
    if with_result and device_count > 1 and "pjit" in names and data.has_negative_zero:
        return "JAX over a mesh loses the sign of a zero: docs/jax-bugs/mesh-negative-zero.md"
    return None


def _inside(names: Sequence[str], outer: str) -> Sequence[str]:
    return names[names.index(outer) + 1 :] if outer in names else ()
