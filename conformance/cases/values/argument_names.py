"""Cases of functions that few users write: false ones, ones with arguments of any name, ones in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case

NAMES = (
    *("self", "cls", "other", "fun", "spec", "tree", "values", "format", "printer", "operands", "sharding_", "kind"),
    *("function", "callback", "callback_func", "tap_func", "fn", "fmt", "host", "out", "context", "result", "arg"),
    *("args", "kwargs", "device", "index", "transforms", "primitive", "params", "name", "dtype", "shape", "x"),
)
"""Names that a library may have for its own arguments, and a user for others."""


@case("jit", "pure_callback io_callback debug_callback buffer_callback dlpack_callback", "X2 X3 X4 B1 D1")
def arguments_of_any_name(case: Case) -> None:
    """A user's keyword arguments may have any name that is no option's, also that of an argument of the library's."""
    namespace = case.library
    seen: list[dict[str, float]] = []

    def host(*operands: Any, **named: Any) -> Any:
        seen.append({name: float(np.asarray(each)) for name, each in named.items()})
        return np.float32(1)

    def fill(context: Any, out: Any, /, **named: Any) -> None:
        np.asarray(out)[...] = host(**named)

    one = jax.ShapeDtypeStruct((), np.float32)
    ways: dict[str, Callable[..., Any]] = {
        "pure_callback": lambda **named: namespace.pure_callback(host, one, **named),
        "io_callback": lambda **named: namespace.io_callback(host, one, **named),
        "debug.callback": lambda **named: (namespace.debug.callback(host, **named), np.float32(1))[1],
        "buffer_callback": lambda **named: namespace.buffer_callback(fill, one)(**named),
        "dlpack_callback": lambda **named: namespace.dlpack_callback(host, one)(**named),
    }
    through = ways[case.callback.function]
    own = {"callback"} if case.callback.function in ("pure_callback", "io_callback", "debug.callback") else set()
    for name in NAMES:
        if name not in own:
            with case.part(f"an argument {name!r}"):
                seen.clear()
                result = float(jax.jit(lambda x, name=name: through(**{name: x}))(np.float32(2)))
                case.barrier()
                case.same("wrong operand", Stage.CALLBACK, (result, seen), (1.0, [{name: 2.0}]))


@case("jit", "debug_print", "X4")
def fields_of_any_name(case: Case) -> None:
    """The fields of a format may have any name that is no option's."""
    for name in NAMES:
        # The format itself, by JAX's own name.
        if name != "fmt":
            program = jax.jit(lambda x, name=name: case.implementation.print_as(f"{{{name}}}", **{name: x}))
            with case.part(f"a field {name!r}"), case.prints("2.0"):
                program(np.float32(2))
