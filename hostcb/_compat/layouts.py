"""The layouts of compiled programs with tokens, which the runtime of JAX 0.10.2 does not report (not so JAX 0.11.0).

Without them JAX cannot tell the `input_formats` and `output_formats` of a compiled program. This repairs programs of
JAX's own ordered callbacks as well. With layouts other than the default ones such a program would compute with wrong
elements: see `lowering.IGNORES_LAYOUTS_BESIDE_TOKEN`.

- docs/jax-bugs/layouts-beside-token.md: JAX >=0.6.2,<0.11.0
"""

from __future__ import annotations

import re
from typing import Any

from jax.experimental.layout import Layout

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
