"""Arguments of a function: in their order, beside static ones, and with any name.

Buffer and DLPack callbacks have a way of their own for one result, and another one for trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import Host

NAMES = (
    *("self", "cls", "other", "fun", "spec", "tree", "values", "format", "printer", "operands", "sharding_", "kind"),
    *("function", "callback", "callback_func", "tap_func", "fn", "fmt", "host", "out", "context", "result", "arg"),
    *("args", "kwargs", "device", "index", "transforms", "primitive", "params", "name", "dtype", "shape", "x"),
)
"""Names that a library may have for its own arguments, and a user for others."""


@case(
    "jit",
    "pure_callback io_callback debug_callback buffer_callback dlpack_callback",
    "X2 X3 X4 B1 D1",
    not_of="hostcb",
)
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


@case("jit", "debug_print", "X4", not_of="hostcb")
def fields_of_any_name(case: Case) -> None:
    """The fields of a format may have any name that is no option's."""

    def check(named: Mapping[str, Any]) -> None:
        form = " ".join(f"{{{name}}}" for name in named)
        with case.prints(" ".join(map(str, named.values()))):
            jax.jit(lambda numbers: case.implementation.print_as(form, **numbers))(named)

    # Not the format itself, by JAX's own name.
    case.together({name: np.float32(number) for number, name in enumerate(NAMES) if name != "fmt"}, check)


OF_SEVERAL = "pure_callback io_callback debug_callback buffer_callback dlpack_callback dlpack_callback_in_place"
"""One of each that takes its operands one by one."""


def _results(operands: Any, tree: bool) -> Any:
    """Each operand counts in another way, so that no two may be exchanged."""
    first, second, third = (np.array(operand) for operand in operands)
    results = {"b": first - second * 3, "a": (third - first * 5,)}
    return results if tree else results["b"]


@case("jit", OF_SEVERAL, "X2 X3 X4 B1 D1")
def several_operands(case: Case) -> None:
    """Operands of one type come in the function's order, and so do results to their places in the tree."""
    operands = [case.operand + np.float32(number) for number in (1, 20, 300)]
    for tree in (False, True):
        wanted = _results(operands, tree)
        answer = case.host(partial(_results, tree=tree))

        def program(*given: Any, answer: Host = answer, wanted: Any = wanted) -> Any:
            like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), wanted)
            # One of the operands is made by the program.
            given = (given[0], given[1] + 0, given[2])
            host = lambda *arguments: answer(arguments)
            return case.implementation.invoke(case.callback, host, given, like, case.devices, spread=True)

        with case.part("with a tree of results" if tree else "with one result"):
            found = jax.block_until_ready(jax.jit(program)(*operands))
            if case.callback.returns_new_value:
                case.gives(wanted, lambda found=found: found)
                structures: list[Any] = [jax.tree.structure(each) for each in (found, wanted)]
                case.same("result", Stage.RESULT, *structures)
            case.saw(answer, [operands])


@case("jit", "debug_callback debug_callback_ordered", "X4", not_of="hostcb")
def static_ones_between(case: Case) -> None:
    """Arguments that are no arrays come in their places among those that are, and by their names."""
    seen: list[str] = []

    def host(*arguments: Any, **named: Any) -> None:
        received = [each if isinstance(each, str) else float(each) for each in (*arguments, *named.values())]
        seen.append(repr((received, [*named])))

    def program(x: Any, y: Any) -> Any:
        for arguments, named in _mixed(x, y):
            case.library.debug.callback(host, *arguments, ordered=case.callback.ordered, **named)
        return x + y

    compiled, order = jax.jit(program), list if case.callback.ordered else sorted
    for x, y in ((1.0, 2.0), (3.0, 4.0)):
        seen.clear()
        jax.block_until_ready(compiled(np.float32(x), np.float32(y)))
        case.barrier()
        expected = [repr(([*arguments, *named.values()], [*named])) for arguments, named in _mixed(x, y)]
        case.same("wrong operand", Stage.CALLBACK, order(seen), order(expected))


def _mixed(x: Any, y: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments and named arguments: texts in all places among two numbers."""
    return [
        (("a", x, "b", y), {}),
        ((x, "a", "b", y), {}),
        (("a", "b", x, y, "c"), {}),
        ((x, "a"), {"first": "b", "second": y}),
        (("a", x), {"first": y, "second": "b"}),
    ]
