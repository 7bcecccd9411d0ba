"""The kinds of callback, and the fields in which they differ.

All kinds share the other modules. A new kind needs an entry here and a public function that binds it.
"""

from __future__ import annotations

import dataclasses
from typing import Literal


# Each kind is one object, compared by identity, so a kind among an equation's parameters costs nothing.
@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    """How one kind of callback differs from the others.

    A kind without any of the three effects is pure: JAX may drop, repeat or move it.
    """

    name: str
    # Effects. Ordered: on each device in one order with all other ordered kinds. Visible: runs as often as JAX runs the
    # code around it. Once: neither dropped nor repeated; refused where JAX would do so.
    ordered: bool = False
    visible: bool = False
    once: bool = False
    # The primitive returns its operands, the device does not wait, and the function gets the transforms.
    identity: bool = False
    # The function fills the results in place, in device memory.
    in_place: bool = False
    # The in-place function is hostcb's `Filler` around the user's, with the quicker `on_cpu` for plain calls.
    lends: bool = False
    # As in host_callback: the function takes one argument and returns exactly the promised tree. Functions of the other
    # kinds take positional and keyword arguments, and may return other containers.
    one_argument: bool = False
    batching: Literal["transforms", "method", "loop", "unroll", "refuse"] = "method"
    # A checkpoint saves its result under every policy.
    kept_by_checkpoint: bool = False
    # The error for differentiation; empty if differentiation is allowed. `{rule}` is JVP or transpose.
    refuses_differentiation: str = ""
    refuses_batching: str = ""
    refusal: type[Exception] = ValueError

    @property
    def pure(self) -> bool:
        return not (self.ordered or self.visible or self.once)

    @property
    def takes_automatic_axes(self) -> bool:
        """Whether it can be used in a `shard_map` that leaves mesh axes to the compiler.

        A debug callback runs on the first device of these axes, and a pure one in place on each of their devices.
        """
        return (self.visible and not self.ordered) or (self.in_place and self.pure)


TAP = Kind("id_tap", ordered=True, identity=True, one_argument=True, batching="transforms")
PRINTING_TAP = dataclasses.replace(TAP, name="id_print")

# JAX's other methods are `sequential_unrolled`, and `legacy_vectorized` for old programs.
_METHODS = (
    "\n  vmap_method='sequential': one call for each element, which is right for every function."
    "\n  vmap_method='expand_dims': one call for the whole batch, only for a function that treats each row of a "
    "leading axis separately. That axis is on all operands, of size 1 where one is not batched, and its results need "
    "it, too."
    "\n  vmap_method='broadcast_all': the same, with an axis of the batch's size on all operands."
)

CALL = Kind(
    "call",
    ordered=True,
    one_argument=True,
    kept_by_checkpoint=True,
    refusal=NotImplementedError,
    refuses_differentiation=(
        "call: {callback} was differentiated. hostcb.call does not support differentiation (jvp, grad): JAX cannot see "
        "into the function. Give the function that calls it a derivative with jax.custom_jvp or jax.custom_vjp, or use "
        "id_tap if no result is needed."
    ),
    refuses_batching=(
        "call: {callback} was batched by vmap. hostcb.call does not support vmap by default, since the function was "
        "written for unbatched operands. Say how to batch it with call(..., vmap_method=…), define a rule with "
        f"jax.custom_batching.custom_vmap, or use id_tap if no result is needed.{_METHODS}"
    ),
)


def _derivative(name: str) -> str:
    return (
        f"{{kind}}: {{callback}} was differentiated. {name} callbacks do not support {{rule}}, because JAX cannot see "
        "into the function: please use `jax.custom_jvp` or `jax.custom_vjp` to give the function that calls it a "
        "derivative, or pass it `jax.lax.stop_gradient(x)` if none should come from it."
    )


_METHOD = (
    "{kind}: {callback} was batched by vmap. vmap is only supported for the {kind} primitive when vmap_method is one "
    "of 'sequential', 'sequential_unrolled', 'expand_dims', 'broadcast_all', or 'legacy_vectorized'. Got "
    f"vmap_method=None, so nothing says how to batch it.{_METHODS}"
)

PURE = Kind("pure_callback", refuses_differentiation=_derivative("Pure"), refuses_batching=_METHOD)
IO = Kind("io_callback", once=True, batching="loop", refuses_differentiation=_derivative("IO"))
ORDERED_IO = dataclasses.replace(
    IO,
    ordered=True,
    batching="refuse",
    refuses_batching=(
        "io_callback: {callback} was batched by vmap. Cannot `vmap` ordered IO callback: the elements of a batch have "
        "no order. Use ordered=False, or a loop such as jax.lax.map in place of vmap."
    ),
)
DEBUG = Kind("debug.callback", visible=True, batching="unroll")
ORDERED_DEBUG = dataclasses.replace(DEBUG, ordered=True)
PRINT = dataclasses.replace(DEBUG, name="debug.print")
ORDERED_PRINT = dataclasses.replace(PRINT, ordered=True)
BUFFER = Kind("buffer_callback", in_place=True, refuses_differentiation=_derivative("Buffer"), refuses_batching=_METHOD)
BUFFER_WITH_EFFECT = dataclasses.replace(BUFFER, once=True)
DLPACK = dataclasses.replace(BUFFER, name="dlpack_callback", lends=True, refuses_differentiation=_derivative("DLPack"))
DLPACK_WITH_EFFECT = dataclasses.replace(DLPACK, once=True)
