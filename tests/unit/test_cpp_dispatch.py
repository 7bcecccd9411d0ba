"""X2: which programs take JAX's fast dispatch: those whose instructions are known to run in order, in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib._hlo import HloOpcode
from support.hlo import hlo_module

import hostcb as hcb
from hostcb._runtime.dispatch import cpp_dispatch
from hostcb._runtime.executions import executions

pytestmark = pytest.mark.contract("X2")

BEGINNING = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

FileNames
1 "sort(%x) = f32[] infeed("

"""
ENTRY = """ENTRY %main.1 (v.1: f32[4]) -> f32[4] {
  %v.1 = f32[4]{0} parameter(0), metadata={op_name="v"}
  %c = f32[4]{0} custom-call(%v.1), custom_call_target="xla_buffer_python_cpu_callback", backend_config={index = 0}
  %s = f32[4]{0} sine(%c), metadata={op_name="a = f32[] all-reduce(b), kind=kCustom, \\"c\\""}
  ROOT %t = ((f32[4]{0:E(4)}, /*index=1*/f32[4]{0}), f32[]) tuple(%s, %s)
}
"""


def simple(text: str) -> bool:
    return cpp_dispatch.is_simple([hlo_module(text)], callbacks=1)


def test_a_program_of_known_instructions_is_simple() -> None:
    assert simple(BEGINNING + ENTRY) and simple(ENTRY)


@pytest.mark.parametrize("target", ["hostcb_tap", "hostcb_tap_17"])
def test_taps_in_c_are_known_targets(target: str) -> None:
    assert simple(ENTRY.replace("xla_buffer_python_cpu_callback", target))
    assert not simple(ENTRY.replace("xla_buffer_python_cpu_callback", f"{target}_of_another"))


def test_the_known_opcodes_are_the_compilers() -> None:
    opcodes = {opcode.name for opcode in HloOpcode}
    assert opcodes >= cpp_dispatch.FREE | cpp_dispatch.ALONE
    waiting = {"kAllReduce", "kAsyncDone", "kCall", "kConditional", "kConvolution", "kInfeed", "kRecv", "kScatter"}
    assert opcodes >= waiting and not waiting & (cpp_dispatch.FREE | cpp_dispatch.ALONE)


# Some of those that are not on the list of what a thread computes by itself.
OTHERS = """all-gather all-reduce all-reduce-start all-to-all async-done async-start async-update call cholesky
    collective-broadcast collective-permute conditional convolution copy-done copy-start domain fft get-dimension-size
    infeed outfeed partition-id ragged-all-to-all recv recv-done reduce-scatter replica-id rng rng-bit-generator
    rng-get-and-update-state scatter send send-done set-dimension-size stochastic-convert topk triangular-solve
    an-opcode-of-next-year"""


@pytest.mark.parametrize("opcode", [*OTHERS.split()])
def test_a_program_of_an_operation_that_nobody_looked_at_is_not(opcode: str) -> None:
    assert not simple(ENTRY.replace(" sine(", f" {opcode}("))


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (" sine(%c)", " fusion(%c)"),
        ("ENTRY ", ""),
        ("xla_buffer_python_cpu_callback", "somebody_elses"),
        ("[4]{0} sine(", "[4000]{0} sine("),
    ],
    ids=["fusion_of_no_kind", "no_entry", "foreign", "large"],
)
def test_a_program_with_an_instruction_that_is_not_understood_is_not(part: str, other: str) -> None:
    assert part in ENTRY
    assert not simple(BEGINNING + ENTRY.replace(part, other))


@pytest.mark.parametrize("opcode", ["bitcast", "get-tuple-element", "tuple"])
def test_operations_that_cost_nothing_do_not_count(opcode: str) -> None:
    many = "".join(
        f"  %v.{number} = f32[4]{{0}} {opcode}(%s)\n" for number in range(2, 3 + cpp_dispatch.MOST_OPERATIONS)
    )
    assert simple(ENTRY.replace("  ROOT", f"{many}  ROOT"))
    assert not simple(ENTRY.replace("  ROOT", many.replace(f" {opcode}(", " negate(") + "  ROOT"))


def test_an_empty_tuple_has_no_size() -> None:
    assert simple(ENTRY.replace("  ROOT", "  %nothing = () tuple()\n  ROOT"))


def test_a_program_of_several_modules_or_entries_is_not_simple() -> None:
    assert not cpp_dispatch.is_simple([], callbacks=1)
    assert not cpp_dispatch.is_simple([hlo_module(ENTRY)] * 2, callbacks=1)
    assert not simple(ENTRY + ENTRY.replace("main.1", "main.2"))


@pytest.mark.parametrize("kind", ["kLoop", "kInput", "kOutput", "kCustom", "kNew"])
def test_fusions_are_kernels_or_left_to_libraries(kind: str) -> None:
    fusion = ENTRY.replace("sine(%c), metadata", f"fusion(%c), kind={kind}, calls=%fused, metadata")
    assert simple(fusion) == (kind in ("kLoop", "kInput", "kOutput"))


LOOP = """%body.1 (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0}) parameter(0)
  ROOT %r = (s32[], f32[4]{0}) tuple(%p)
}

%condition.1 (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]{0}) parameter(0)
  ROOT %l = pred[] compare(%p, %p), direction=LT
}

""" + ENTRY.replace(
    "sine(%c), metadata={",
    'while(%c), condition=%condition.1, body=%body.1, backend_config={"known_trip_count":{"n":"5"}}, metadata={',
)


def test_the_condition_of_a_loop_is_a_part_of_it() -> None:
    assert simple(LOOP)
    assert not simple(LOOP.replace("compare(%p, %p)", "infeed(%p)"))
    assert not simple(LOOP.replace("condition=%condition.1, ", ""))
    assert not simple(LOOP.replace('"known_trip_count"', '\\"known_trip_count\\"'))


SMALL = """
ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %c = (f32[4]{0}) custom-call(%p), custom_call_target="xla_buffer_python_cpu_callback"
  ROOT %t = f32[4]{0} get-tuple-element(%c), index=0
}
"""
FOREIGN = SMALL.replace("xla_buffer_python_cpu_callback", "somebody_elses")
UNKNOWN_LOOP = SMALL.replace("get-tuple-element(%c), index=0", "while(%c), condition=%a, body=%b")
KNOWN = """
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0}) parameter(0)
  %c = f32[4]{0} custom-call(%p), custom_call_target="xla_buffer_python_cpu_callback"
  ROOT %t = (s32[], f32[4]{0}) tuple(%p, %c)
}

%condition (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]{0}) parameter(0)
  ROOT %l = pred[] fusion(%p), kind=kLoop, calls=%less
}

ENTRY %main.3 (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %w = (s32[], f32[4]{0}) while(%p), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"100"}}
  ROOT %t = f32[4]{0} get-tuple-element(%w), index=1
}
"""
TOO_MANY = KNOWN.replace('"n":"100"', '"n":"1001"')
UNKNOWN = KNOWN.replace('"known_trip_count":{"n":"100"}', "")
MISSING = KNOWN.replace("%body (p", "%another (p")
LONG_BODY = KNOWN.replace(
    "  ROOT %t = (s", "".join(f"  %s{i} = f32[4]{{0}} sine(%c)\n" for i in range(8)) + "  ROOT %t = (s"
)
BRANCHING = KNOWN.replace("  ROOT %t = (s", "  %b = f32[4]{0} conditional(%c), branch_computations={}\n  ROOT %t = (s")
NESTED = (
    KNOWN.replace(
        "ENTRY",
        """%outer (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0}) parameter(0)
  ROOT %w = (s32[], f32[4]{0}) while(%p), condition=%less, body=%body, backend_config={"known_trip_count":{"n":"10"}}
}

ENTRY""",
    )
    .replace("condition=%condition, body=%body", "condition=%condition, body=%outer")
    .replace("%less,", "%condition,")
)
LARGE = SMALL.replace("get-tuple-element(%c), index=0", "sine(%p)").replace("[4]", "[1000,1000]")
LARGE_ALONE = SMALL.replace("[4]", "[1000,1000]")
LONG = SMALL.replace("  ROOT", "".join(f"  %s{i} = f32[4]{{0}} sine(%p)\n" for i in range(8)) + "  ROOT")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SMALL, True),
        (FOREIGN, False),
        (UNKNOWN_LOOP, False),
        (LARGE, False),
        (LARGE_ALONE, True),
        (LONG, False),
        (KNOWN, True),
        (TOO_MANY, False),
        (UNKNOWN, False),
        (MISSING, False),
        (LONG_BODY, False),
        (BRANCHING, False),
        (NESTED, True),
        (NESTED.replace('"n":"10"', '"n":"11"'), False),
        ("", False),
    ],
    ids=[
        *("small", "foreign", "loop", "large", "large_alone", "long", "known", "too_many", "unknown", "missing"),
        *("long_body", "branching", "nested", "nested_too_many", "nothing"),
    ],
)
def test_which_programs_are_dispatched_natively(text: str, expected: bool) -> None:
    assert simple(text) == expected


def same(x: Any, function: Callable[[Any], Any] = lambda value: value) -> Any:
    return hcb.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


PROGRAMS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "callback": (True, same),
    "arithmetic": (True, lambda v: same(v * 2) + 1),
    "chain": (True, lambda v: same(same(v))),
    "functions": (True, lambda v: jnp.where(same(jnp.sin(v)) > 0, jnp.tanh(v), 0)),
    "reduction": (True, lambda v: same(v).sum()),
    "dot": (True, lambda v: same(v) @ v),
    "indexing": (True, lambda v: same(v).at[2].set(v[jnp.int32(v[0])])),
    "layout": (True, lambda v: jnp.concatenate([same(v), v]).reshape(4, 4).T),
    "constant": (True, lambda v: same(v).reshape(2, 4) + np.arange(8, dtype=np.float32).reshape(2, 4)),
    "loop": (True, lambda v: jax.lax.fori_loop(0, 50, lambda _, carry: same(carry) + 1, v)),
    "scan": (True, lambda v: jax.lax.scan(lambda carry, x: (same(carry) + x, carry), v[0], v)),
    "while": (False, lambda v: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: same(c) + 1, v)),
    "cond": (False, lambda v: jax.lax.cond(v[0] > 0, same, lambda v: v, v)),
    "convolution": (False, lambda v: jnp.convolve(same(v), v)),
    "fft": (False, lambda v: jnp.fft.fft(same(v)).real),
    "cholesky": (False, lambda v: jnp.linalg.cholesky(jnp.diag(same(v) + 1))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_as_this_jax_compiles_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool] = []

    def asked(modules: Any, callbacks: int) -> bool:
        answers.append(cpp_dispatch.is_simple(modules, callbacks))
        return answers[-1]

    monkeypatch.setattr(executions, "is_simple", asked)
    expected, function = PROGRAMS[name]
    jax.block_until_ready(jax.jit(function)(jnp.arange(8, dtype=jnp.float32)))
    assert answers == [expected]
