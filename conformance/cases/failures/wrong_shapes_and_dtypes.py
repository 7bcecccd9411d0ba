"""Results of wrong shapes, dtypes and counts, and int8[12345], the mark that a failed call passes for its result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..harness.case import Case, case
from ..harness.hosts import PLANTED, fail
from ..harness.programs import WIDTH
from ..harness.registry import EVERY_LAYOUT, WITH_RESULTS
from .misbehaving import Misbehaving, ends, is_over, runs_as_before

ERROR_MARK = np.zeros(12345, np.int8)
"""A failed call passes this array in place of its result; a callback that returns it must fail."""

RETURNED: dict[str, Callable[[Any], Any]] = {
    "raises": fail,
    "wrong_shape": lambda operand: np.zeros((*operand.shape, 2), np.float32),
    "wrong_dtype": lambda operand: np.zeros(operand.shape, np.int32),
    "wrong_count": lambda operand: (operand, operand),
    "none": lambda operand: None,
    "error_mark": lambda operand: ERROR_MARK,
}


def _shape(*sizes: int) -> str:
    """A pattern for the usual ways to write a shape: (3, 2), [3,2], float32[3,2]."""
    return rf"[\[(]{', ?'.join(map(str, sizes))},?[\])]"


def _type(dtype: str, *sizes: int) -> str:
    """A pattern for the usual ways to write an array type: float32[3,2], f32[3, 2], ..."""
    short = dtype.replace("float", "f").replace("int", "[is]")
    return rf"({dtype}|{short})\[{', ?'.join(map(str, sizes))}\]"


NAMED: dict[str, tuple[str, str]] = {
    "wrong_shape": (_shape(WIDTH), _shape(WIDTH, 2)),
    "wrong_dtype": (r"float32|f32", r"int32|[is]32"),
    "wrong_count": (r"Expected: 1|\*|float32\[3\]", r"Actual: 2|\(\*, \*\)|tuple"),
    "none": (r"Expected: 1|\*|float32\[3\]", r"Actual: 0|None"),
    "error_mark": (_shape(WIDTH) + "|float32", _shape(12345) + "|int8"),
}
"""Patterns of the expected and of the actual type in the error of any implementation's callback."""


def wrong_result(case: Case, kind: str, runs_before: int = 0) -> None:
    """The program ends with an error that names the expected and the actual result, and then the failure is over."""
    host = Misbehaving(RETURNED[kind])
    program = case.compile(lambda x: case.apply(host, x))
    for _ in range(runs_before):
        case.gives(case.expected, program, case.operand)
    host.armed = True
    ends(case, lambda: program(case.operand), *NAMED[kind])
    host.armed = False
    is_over(case, program)


for _kind in ("wrong_shape", "wrong_dtype", "wrong_count"):
    _function = functools.partial(wrong_result, kind=_kind)
    case("jit", "pure_callback io_callback", also="H15", kind=_kind, isolated=True)(_function)
    case("jit", "dlpack_callback", kind=_kind)(_function)
for _kind in ("none", "error_mark"):
    _function = functools.partial(wrong_result, kind=_kind)
    case("jit", "pure_callback io_callback dlpack_callback", kind=_kind)(_function)
case("jit", f"{WITH_RESULTS} io_callback_ordered dlpack_callback", kind="wrong_after_right")(
    functools.partial(wrong_result, kind="wrong_shape", runs_before=3)
)


def broken_call(case: Case, kind: str) -> None:
    """The error of a call names its function, the expected and the actual type; the barrier reports it once."""
    host = Misbehaving(RETURNED[kind], armed=True)

    def named_callback(operand: Any) -> Any:
        return host(operand)

    program = case.compile(lambda x: case.apply(named_callback, x))
    shape = case.callback_shape
    actual = {
        "raises": PLANTED,
        "wrong_shape": _type("float32", *shape, 2),
        "wrong_dtype": _type("int32", *shape),
        "wrong_count": r"tuple|PyTreeDef\(\(\*, \*\)\)|\(\*, \*\)|\(float32|\(f32",
        "none": "None",
        "error_mark": r"int8\[12345\]",
    }[kind]
    # Over a mesh the mark crosses in place of the result.
    mark = [r"int8\[12345\]"] if case.layout == "pjit" and len(case.devices) > 1 else []
    ends(case, lambda: program(case.operand), "named_callback", _type("float32", *shape), actual, *mark)
    case.barrier_reports(PLANTED if kind == "raises" else "named_callback")
    host.armed = False
    runs_as_before(case, program)
    case.barrier()


for _kind in ("raises", "wrong_shape", "wrong_dtype", "wrong_count", "none", "error_mark"):
    case(EVERY_LAYOUT, "call", kind=_kind)(functools.partial(broken_call, kind=_kind))


@case("jit pmap pjit shard_map", "call")
@case("jit", "pure_callback io_callback")
def legitimate_mark(case: Case) -> None:
    """An int8[12345] that the `result_shape` asks for is a result like any other."""
    mark = (np.arange(12345) % 100).astype(np.int8)
    shape = {"shard_map": (1, 12345), "pjit": (len(case.devices), 12345)}.get(case.layout, (12345,))
    result = np.broadcast_to(mark, shape)
    program = case.compile(lambda x: case.apply(lambda _: result, x, result))
    case.gives(mark if case.layout == "jit" else np.stack([mark] * len(case.devices)), program, case.operand)
