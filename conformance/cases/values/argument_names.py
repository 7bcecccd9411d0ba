"""Cases of functions that few users write: false ones, ones with arguments of any name, ones in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def check(named: Mapping[str, Any]) -> None:
        seen.clear()
        result = float(jax.jit(lambda numbers: through(**numbers))(named))
        case.barrier()
        case.same("wrong operand", Stage.CALLBACK, (result, seen), (1.0, [named]))

    case.together({name: np.float32(number) for number, name in enumerate(NAMES) if name not in own}, check)


@case("jit", "debug_print", "X4")
def fields_of_any_name(case: Case) -> None:
    """The fields of a format may have any name that is no option's."""

    def check(named: Mapping[str, Any]) -> None:
        form = " ".join(f"{{{name}}}" for name in named)
        with case.prints(" ".join(map(str, named.values()))):
            jax.jit(lambda numbers: case.implementation.print_as(form, **numbers))(named)

    # Not the format itself, by JAX's own name.
    case.together({name: np.float32(number) for number, name in enumerate(NAMES) if name != "fmt"}, check)
