"""Workarounds for three bugs of JAX, which ignores the tokens of a program or of a part of it.

JAX's own ordered callbacks have them, too, and hostcb repairs these as well. JAX 0.10.2 and 0.12.0.1 have two of them:

- For a program with a memory kind in its signature, JAX makes a list with the memory kind of each result. The tokens
  come before the results, and have no entry in that list.
- `lax.platform_dependent` lowers to the branches of the platforms of the program. It does not return a token that only
  the other branches use.

JAX 0.10.2 has one more, JAX 0.11.0 has not:

- The runtime does not report the layouts of a program with a token. So the compiled program does not tell its
  `input_formats` and `output_formats`. With layouts other than the default ones it would compute with wrong elements:
  see `lowering.IGNORES_LAYOUTS_BESIDE_TOKEN`.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental
import numpy as np
from jax.experimental.layout import Layout

from .. import _compat
from .dispatch import modules_in
from .registry import Cost, private, with_parameters

_LAYOUTS = private(
    "jax._src.interpreters.pxla:_get_layouts_from_executable",
    "Tells the layouts of compiled programs with tokens.",
    "With JAX 0.10.2, `input_formats` and `output_formats` of compiled programs with callbacks raise AssertionError.",
    ("H4",),
    Cost.COMFORT,
    with_parameters("xla_executable", "num_ordered_effects", "out_avals"),
)
# A shape in the layout of a module's entry, such as `s4[2,3]{1,0:E(4)}`: the order of its axes, minor to major, and the
# bits of an element. Arrays without an axis have no layout, nor have tokens.
_SHAPE = re.compile(r"\w+\[[^]]*\](?:\{([\d,]*)(?::[^}E]*(?:E\((\d+)\))?[^}]*)?\})?")

logger = logging.getLogger("hostcb")


def with_all_tokens(lower_cond: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's rule for `cond`, which also returns the tokens that no branch of this platform uses."""

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        inner = context.replace(tokens_out=None)
        results = lower_cond(inner, *operands, **params)
        if inner.tokens_out is not None:
            context.set_tokens_out(context.tokens_in.update_tokens(inner.tokens_out))
        return results

    return lower


def give_tokens_memory_kinds() -> None:
    """Lower programs that have both memory kinds and tokens."""
    plain = _compat.lower_function()
    if plain is None:
        return

    def lower(ctx: Any, name: Any, jaxpr: Any, effects: Sequence[Any], *others: Any, **params: Any) -> Any:
        kinds = params.get("propagated_out_mem_kinds")
        needed = bool(effects) and params.get("result_memory_kinds") is not None
        if needed and kinds is not None and not _asking.get() and _tokens_are_forgotten():
            # One entry for each token, as JAX's function itself adds to its other lists.
            params["propagated_out_mem_kinds"] = (*[None] * len(effects), *kinds)
        return plain(ctx, name, jaxpr, effects, *others, **params)

    _compat.replace_lower_function(lower)


def tell_layouts() -> None:
    """Let JAX know the layouts of compiled programs with tokens."""
    if _LAYOUTS.lost:
        return
    plain = _LAYOUTS.value

    def layouts(xla_executable: Any, *args: Any, **named: Any) -> Any:
        found = plain(xla_executable, *args, **named)
        if None not in (*found[0], *found[1]):
            return found
        modules = modules_in(xla_executable)
        if len(modules) != 1:
            return found
        return _entry_layouts(modules[0].to_string(), len(found[0]), len(found[1]))

    _LAYOUTS.put(layouts)


def _entry_layouts(text: str, operands: int, results: int) -> tuple[list[Layout], list[Layout]]:
    """Return the layouts of so many operands and results of the module with this text; its tokens come before them."""
    entry = text.partition("\n")[0].partition("entry_computation_layout={")[2]
    taken, returned = (_SHAPE.findall(part) for part in entry.split("->", 1))
    tokens = len(taken) - operands
    return [_layout(*each) for each in taken[tokens:]], [_layout(*each) for each in returned[tokens:][:results]]


def _layout(minor_to_major: str, bits: str) -> Layout:
    axes = [int(axis) for axis in minor_to_major.split(",") if axis]
    return Layout(tuple(reversed(axes)), (), int(bits or 0))


# Set while hostcb tests whether JAX has the bug; the workaround must be off then.
_asking: contextvars.ContextVar[bool] = contextvars.ContextVar("hostcb_asking_for_token_bug", default=False)


@functools.cache
def _tokens_are_forgotten() -> bool:
    """Whether this JAX has the bug. The first program that needs the answer runs the test, on a minimal program."""
    device = jax.local_devices()[0]
    usual = device.default_memory().kind
    unusual = next((memory.kind for memory in device.addressable_memories() if memory.kind != usual), usual)
    sharding = jax.sharding.SingleDeviceSharding(device, memory_kind=unusual)
    reset = _asking.set(True)
    try:
        with _compat.without_mesh():
            jax.jit(_ordered_identity, out_shardings=sharding).lower(np.zeros((), np.int8))
    except ValueError as error:
        logger.debug("this JAX forgets the tokens of programs with memory kinds: %s", error)
        return True
    finally:
        _asking.reset(reset)
    return False


def _ordered_identity(x: Any) -> Any:
    # JAX's own, also while hostcb is installed: see `own_callbacks`.
    jax.experimental.io_callback(lambda: None, None, ordered=True)
    return x
