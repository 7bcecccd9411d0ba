"""X1, X4: `debug.callback` and `debug.print` show what JAX does; JAX's own two are the measure of what they print."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Record
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from pairwise import pairwise
from transforming import STAGING

import hostcb as hcb

pytestmark = pytest.mark.contract("X4")

X = np.arange(8, dtype=np.float32)
ORDERED = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
Show = Callable[..., None]


class Point(NamedTuple):
    x: Any
    y: Any


class Printed:
    """What has been written since the last question, when everything that was started has ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self) -> str:
        jax.effects_barrier()
        return self._capsys.readouterr().out

    def by(self, program: Callable[[Show], Any], module: Any) -> str:
        self()
        jax.block_until_ready(program(module.debug.print))
        return self()


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


TEXTS: dict[str, Callable[[Show], Any]] = {
    "plain": lambda show: show("no value at all"),
    "position": lambda show: show("{1} then {0}", 1, jnp.float32(2.5)),
    "named": lambda show: show("{x} {y}", y=jnp.arange(3), x=True),
    "format": lambda show: show("{x:.3f} {n:>5} {y:05d}", x=jnp.float32(3.14159), n=jnp.int32(7), y=jnp.int32(42)),
    "width": lambda show: show("{x:{w}.{p}f} {z:{w}.{p}f}", x=jnp.float32(2), z=jnp.complex64(1j), w=8, p=jnp.int32(1)),
    "width_by_position": lambda show: show("{:{}.{}f} {:>{}}", jnp.float32(1.5), jnp.int8(8), np.int64(1), "text", 7),
    "width_by_number": lambda show: show("{0:{1}} {0!r:{1}} {0:{2}}", jnp.int32(3), 20, "<5"),
    "width_of_parts": lambda show: show(
        "{x[1]:{d[fill]}>{p.y}} {x.shape[0]:{d[form]}}",
        x=jnp.arange(3),
        d={"fill": "*", "form": "03d"},
        p=Point(1, jnp.arange(9)[7]),
    ),
    "conversion": lambda show: show("{x!r} {x!s}", x=jnp.arange(2)),
    "index": lambda show: show("{x[1]} {d[a]}", x=jnp.arange(3), d={"a": jnp.int32(5)}),
    "attribute": lambda show: show("{p.y} {x.shape}", p=Point(1, jnp.int32(2)), x=jnp.zeros((2, 3))),
    "dict": lambda show: show("x: {x}", x={"foo": jnp.int32(2)}),
    "nested": lambda show: show("{}", [jnp.int32(1), {"a": (jnp.arange(2), jnp.float32(1)), "b": None}]),
    "namedtuple": lambda show: show("{}", Point(jnp.arange(2), jnp.zeros((0, 3)))),
    "text": lambda show: show("{what} is {x}, {}", "really", what="y", x=jnp.arange(3.0)),
    "objects": lambda show: show("{} {} {}", None, ValueError("bad"), {"s": "text", "x": jnp.int32(1)}),
    "complex": lambda show: show("{}", jnp.complex64(1 + 2j)),
    "bfloat16": lambda show: show("{} {}", jnp.bfloat16(1.5), {"x": jnp.ones(2, jnp.bfloat16)}),
    "matrix": lambda show: show("m:\n{m}", m=jnp.arange(6.0).reshape(2, 3)),
    "long": lambda show: show("{x}", x={"x": jnp.arange(40)}),
    "summarised": lambda show: show("{x}", x=jnp.arange(2000)),
    "numpy": lambda show: show("{x} {y}", x=np.float64(2.5), y=np.array([True])),
    "empty_containers": lambda show: show("{} {} {}", (), {}, []),
}


@STAGING
@pytest.mark.parametrize("text", TEXTS)
def test_prints_the_very_text_that_jax_prints(stage: Any, text: str, printed: Printed) -> None:
    program = lambda show: stage(lambda: TEXTS[text](show))()
    expected = printed.by(program, jax)
    assert expected.endswith("\n"), "the measure should have printed"
    assert printed.by(program, hcb) == expected


def test_dict_of_arrays_as_the_documentation_shows_it(printed: Printed) -> None:
    jax.jit(lambda x: hcb.debug.print("x: {x}", x={"foo": x}))(np.int32(2))
    assert printed() == "x: {'foo': Array(2, dtype=int32)}\n"


@STAGING
def test_braces_in_formats(stage: Any, printed: Printed) -> None:
    """JAX's own takes the first field for the only one and fails."""
    stage(lambda x: hcb.debug.print("{{x}} is {x}", x=x))(2)
    assert printed() == "{x} is 2\n"


@pytest.mark.parametrize("options", [{"ordered": True}, {"partitioned": True}, {"skip_format_check": True}], ids=str)
def test_widths_of_each_element_and_device(options: dict[str, bool], printed: Printed) -> None:
    show = lambda x, w: hcb.debug.print("{x:{w}.{p}f}", x=x, w=w, p=np.int8(1), **options)
    jax.jit(lambda x: lax.map(lambda w: show(x, w), jnp.arange(3, 5)))(np.float32(1.5))
    jax.vmap(show)(X[:2], jnp.array([3, 4]))
    jax.grad(lambda x: (show(x, 5), x)[1])(1.5)
    text = printed()
    assert sorted(text.splitlines()) == sorted(["1.5", " 1.5", "0.0", " 1.0", "  1.5"])


def test_numpys_print_options_are_those_of_the_trace(printed: Printed) -> None:
    with np.printoptions(precision=2):
        jitted = jax.jit(lambda x: hcb.debug.print("{}", x)).lower(X).compile()
    jitted(X / 3)
    assert "0.33 " in printed()


def test_static_arguments(printed: Printed) -> None:
    @functools.partial(jax.jit, static_argnums=(0,))
    def f(x, y):
        hcb.debug.print("{} {}", x, y)

    f(2, 3)
    f("two", 3)
    assert printed() == "2 3\ntwo 3\n"


@STAGING
def test_two_calls(stage: Any, printed: Printed) -> None:
    record = Record()

    def f(x):
        hcb.debug.print(ordered=True)("{x} {ordered}", x=x, ordered="no option")
        hcb.debug.callback(ordered=True)(lambda x, *, partitioned: record.add((x, partitioned)), x, partitioned=x + 1)

    stage(f)(jnp.int32(2))
    assert printed() == "2 no option\n"
    assert record.values == [(2, 3)]
    stage(lambda x: hcb.debug.callback(ordered=True)(lambda *, function: record.add(function), function=x))(3)
    jax.effects_barrier()
    assert record.values == [(2, 3), 3], "all names are the function's own there"
    for two_calls in (hcb.debug.print, hcb.debug.callback):
        with pytest.raises(TypeError, match="unexpected arguments in the two-call form"):
            two_calls(x=1)


MALFORMED: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "missing_position": (("{} {}", 1), {}, IndexError, "asks for 2 or more positional arguments, but got 1"),
    "missing_name": (("{x} {y}",), {"x": 1}, KeyError, "asks for 'y', but the keyword arguments are 'x'"),
    "unused_position": (("{}", 1, 2), {}, ValueError, r"Unused positional arguments.*\[1\]"),
    "unused_name": (("x",), {"x": 1}, ValueError, "Unused keyword arguments.*f-string"),
    "mixed": (("{} {0}", 1), {}, ValueError, "automatic field numbering"),
    "open": (("{x", 1), {}, ValueError, "expected '}'"),
    "specification": (("{x:d}",), {"x": jnp.float32(1.5)}, ValueError, "does not match its arguments"),
    "array_specification": (("{x:.2f}",), {"x": jnp.arange(3.0)}, ValueError, "does not match its arguments"),
    "missing_width": (("{x:{w}}",), {"x": 1}, KeyError, "asks for 'w', but the keyword arguments are 'x'"),
    "missing_width_by_position": (("{:{}}", 1), {}, IndexError, "asks for 2 or more positional arguments, but got 1"),
    "unused_width": (("{x:{w}}",), {"x": 1, "w": 2, "p": 3}, ValueError, r"Unused keyword arguments.*\['p'\]"),
    "open_width": (("{x:{w}",), {"x": 1, "w": 2}, ValueError, "expected '}'|unmatched '{'"),
    "width_that_is_no_integer": (("{x:{w}}",), {"x": 1, "w": 1.5}, ValueError, "does not match its arguments"),
    "width_in_width": (("{x:{w:{p}}}",), {"x": 1, "w": 2, "p": 3}, ValueError, "Max string recursion exceeded"),
    "attribute": (("{x.nothing}",), {"x": 1}, ValueError, "nothing"),
    "no_string": ((3,), {}, TypeError, "the format must be a string, got 3"),
}


@STAGING
@pytest.mark.parametrize("what", MALFORMED)
def test_format_errors_come_while_tracing(stage: Any, what: str, printed: Printed) -> None:
    """Guards against #11725: a malformed string that failed when the program ran."""
    args, kwargs, kind, match = MALFORMED[what]
    record = Record()

    def f(x):
        hcb.debug.callback(record.add, x, ordered=True)
        hcb.debug.print(*args, **kwargs)

    with pytest.raises(kind, match=match) as caught:
        stage(f)(1.0)
    assert kind is TypeError or isinstance(caught.value, ValueError), "format errors are all ValueErrors"
    assert stage is not jax.jit or record.all == [], "nothing should have run"
    assert printed() == ""


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_a_format_may_ask_for_each_word_of_a_typed_key(generator: str, printed: Printed) -> None:
    key = jax.random.key(3, impl=generator)
    words = jax.random.key_data(key)
    jax.jit(lambda key: hcb.debug.print(f"{{k[{words.size - 1}]:d}}", k=key))(key)
    assert printed() == f"{words[-1]}\n"
    with pytest.raises(ValueError, match="does not match its arguments"):
        jax.jit(lambda key: hcb.debug.print(f"{{k[{words.size}]}}", k=key))(key)


def test_skipping_the_check_prints_values_behind_the_text(printed: Printed) -> None:
    jax.jit(lambda x: hcb.debug.print("at", x, y=x + 1, z=x + 2, skip_format_check=True))(np.int32(1))
    assert printed() == "at 1 y=2 z=3\n"


# Transformations -------------------------------------------------------------------------------------------------


def sine(x: Any, show: Show, text: str = "x: {}") -> Any:
    show(text, x)
    return jnp.sin(x) * x


def stepping(x: Any, show: Show) -> Any:
    def body(c, i):
        show("step {i} carry {c:.3f}", i=i, c=c)
        return jnp.sin(c), c

    return lax.scan(body, x, jnp.arange(3))[0]


def with_custom_jvp(x: Any, show: Show) -> Any:
    f = jax.custom_jvp(lambda x: sine(x, show, "primal {}"))
    f.defjvp(lambda primals, tangents: (show("rule {} {}", *primals, *tangents), (f(*primals), tangents[0]))[1])
    return f(x)


def with_custom_vjp(x: Any, show: Show) -> Any:
    f = jax.custom_vjp(lambda x: sine(x, show, "primal {}"))
    f.defvjp(lambda x: (show("forward {}", x), (f(x), x))[1], lambda x, ct: (show("back {} {}", x, ct), (ct,))[1])
    return f(x)


FUNCTIONS: dict[str, Callable[[Any, Show], Any]] = {
    "straight": sine,
    "inner_jits": lambda x, show: jax.jit(lambda y: sine(jax.jit(lambda z: sine(z, show))(y), show))(x),
    "while": lambda x, show: lax.while_loop(lambda s: s < x, lambda s: (show("body {}", s), s + 1)[1], x * 0),
    "cond": lambda x, show: lax.cond(x > 1, lambda x: sine(x, show, "true {}"), lambda x: sine(x, show, "false {}"), x),
    "scan": stepping,
    "fori": lambda x, show: lax.fori_loop(0, 3, lambda i, c: (show("i {}", i), c * 2)[1], x),
    "argless": lambda x, show: lax.scan(lambda c, _: (show("step []"), (jnp.sin(c), None))[1], x, None, length=3)[0],
    "custom_jvp": with_custom_jvp,
    "custom_vjp": with_custom_vjp,
}
# What JAX's own is asked to show where it shows too little. It takes what has no operands out of a loop that is
# differentiated and shows it once (#16637); an operand of the loop, even one without elements, keeps it in.
MEASURES: dict[str, Callable[[Any, Show], Any]] = {
    "argless": lambda x, show: lax.scan(
        lambda c, none: (show("step {}", none), (jnp.sin(c), None))[1], x, jnp.zeros((3, 0))
    )[0],
}
V3 = jnp.array([0.0, 1.0, 3.0])
TRANSFORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "plain": lambda f: f(2.0),
    "vmap": lambda f: jax.vmap(f)(V3),
    "vmap_vmap": lambda f: jax.vmap(jax.vmap(f))(jnp.arange(6.0).reshape(2, 3)),
    "vmap_in_axes": lambda f: jax.vmap(jax.vmap(f, 0), 1)(jnp.arange(6.0).reshape(3, 2)),
    "jvp": lambda f: jax.jvp(f, (2.0,), (1.0,)),
    "grad": lambda f: jax.grad(f)(2.0),
    "value_and_grad": lambda f: jax.value_and_grad(f)(2.0),
    "vjp": lambda f: jax.vjp(f, 2.0)[1](1.0),
    "linearize": lambda f: jax.linearize(f, 2.0)[1](1.0),
    "hessian": lambda f: jax.hessian(f)(2.0),
    "vmap_grad": lambda f: jax.vmap(jax.grad(f))(V3),
    "grad_vmap": lambda f: jax.grad(lambda v: jax.vmap(f)(v).sum())(V3),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(2.0),
}
BACKWARD = ("grad", "value_and_grad", "vjp", "hessian", "vmap_grad", "grad_vmap", "checkpoint", "linearize")
FORWARD = ("jvp", "hessian", "linearize")


@pytest.mark.contract("X1")
@pairwise(function=FUNCTIONS, transform=TRANSFORMS, stage=("eager", "jit"))
def test_shows_as_often_and_what_jax_shows(function: str, transform: str, stage: str, printed: Printed) -> None:
    if (function == "while" and transform in BACKWARD) or (function == "custom_vjp" and transform in FORWARD):
        pytest.skip("JAX has no such derivative, with or without callbacks")

    def program(function):
        staged = jax.jit if stage == "jit" else lambda f: f
        return lambda show: staged(lambda: TRANSFORMS[transform](lambda x: function(x, show)))()

    expected = printed.by(program(MEASURES.get(function, FUNCTIONS[function])), jax)
    got = printed.by(program(FUNCTIONS[function]), hcb)
    assert expected, "the measure should have printed"
    assert sorted(got.splitlines()) == sorted(expected.splitlines()), f"should be:\n{expected}but is:\n{got}"


@STAGING
def test_transposed_means_nothing_is_printed(stage: Any, printed: Printed) -> None:
    f = lambda x: (hcb.debug.print("x: {}", x), 3 * x)[1]
    assert float(stage(lambda ct: jax.linear_transpose(f, 1.0)(ct)[0])(2.0)) == 6.0
    assert printed() == ""


@STAGING
@ORDERED
def test_vmap_unrolls_in_the_order_of_the_batch(stage: Any, ordered: bool, printed: Printed) -> None:
    """Nested: the last axis of the mapped functions varies slowest, as with JAX's own (#29829)."""
    f = lambda x: hcb.debug.print("{}", x, ordered=ordered)
    stage(jax.vmap(f))(jnp.arange(5))
    got = printed().split()
    assert (got if ordered or stage is not jax.jit else sorted(got)) == ["0", "1", "2", "3", "4"]
    stage(jax.vmap(jax.vmap(f)))(jnp.arange(6).reshape(2, 3))
    got, expected = printed().split(), ["0", "3", "1", "4", "2", "5"]
    assert got == expected if ordered or stage is not jax.jit else sorted(got) == sorted(expected), f"printed {got}"


@STAGING
def test_ordered_vmap_of_scan_goes_step_by_step(stage: Any, printed: Printed) -> None:
    def f(x):
        lax.scan(lambda c, i: (hcb.debug.print("{}", 10 * i + c, ordered=True), (c, None))[1], x, jnp.arange(3))

    stage(jax.vmap(f))(jnp.arange(3))
    assert printed().split() == ["0", "1", "2", "10", "11", "12", "20", "21", "22"]


@STAGING
@pytest.mark.parametrize("size", [0, 1, 16, 17, 40])
def test_vmap_of_any_size_calls_once_for_each_element(stage: Any, size: int) -> None:
    record = Record()
    f = lambda x, y: hcb.debug.callback(lambda x, *, y: record.add((x, y)), x, y=y, ordered=True)
    stage(jax.vmap(f, (0, None)))(jnp.arange(size), 7)
    jax.effects_barrier()
    assert record.values == [(n, 7) for n in range(size)]


@STAGING
@ORDERED
def test_while_condition_with_a_batched_predicate(stage: Any, ordered: bool) -> None:
    """Guards against vmap_while_cond: JAX's own ordered callback makes the result [3, 3]."""
    record, measure = Record(), Record()

    def f(n, callback):
        def condition(s):
            callback(s)
            return s < n

        return lax.while_loop(condition, lambda s: s + 1, 0.0)

    run = lambda callback: stage(jax.vmap(lambda n: f(n, callback)))(np.array([1.0, 3.0], np.float32))
    out = run(lambda s: hcb.debug.callback(record.add, s, ordered=ordered))
    helpers.equal(out, np.array([1, 3], np.float32), "result")
    run(lambda s: jax.debug.callback(measure.add, s))
    jax.effects_barrier()
    if ordered:
        assert record.values == [0, 0, 1, 1, 1, 2, 1, 3], "each batch element at each step, a finished one unchanged"
    else:
        assert sorted(record.values) == sorted(measure.values), "as often as JAX runs the condition"


NAMES = jax.checkpoint_policies
POLICIES = {
    "default": (None, 2),
    "everything_saveable": (NAMES.everything_saveable, 1),
    "nothing_saveable": (NAMES.nothing_saveable, 2),
    "dots_saveable": (NAMES.dots_saveable, 2),
    "save_any_names_but_these": (NAMES.save_any_names_but_these("other"), 2),
    "save_only_these_names": (NAMES.save_only_these_names("y"), 2),
    "save_anything_except_these_names": (NAMES.save_anything_except_these_names("other"), 1),
}


@STAGING
@ORDERED
@pytest.mark.parametrize("policy", POLICIES)
def test_remat_policies(stage: Any, ordered: bool, policy: str, printed: Printed) -> None:
    def program(show):
        @functools.partial(jax.checkpoint, policy=POLICIES[policy][0])
        def f(x):
            y = checkpoint_name(jnp.sin(x), "y")
            show("y: {:.1f}", y, ordered=ordered)
            return jnp.sin(y)

        return stage(jax.grad(f))(0.0)

    expected = printed.by(program, jax)
    assert expected == "y: 0.0\n" * POLICIES[policy][1], "the measure itself"
    assert printed.by(program, hcb) == expected


@STAGING
def test_remat_in_scan_shows_both_passes(stage: Any) -> None:
    """Guards against scan_remat_debug: one of the two passes was lost."""
    record = Record()

    def body(c, i):
        hcb.debug.callback(record.add, i)
        return jnp.sin(c), None

    stage(jax.grad(lambda x: lax.scan(jax.checkpoint(body), x, jnp.arange(5))[0]))(1.0)
    jax.effects_barrier()
    assert sorted(record.values) == sorted([*range(5)] * 2)


@ORDERED
@pytest.mark.parametrize("layout", helpers.LAYOUTS, ids=helpers.named)
def test_every_layout_also_ordered_on_many_devices(layout: helpers.Layout, ordered: bool) -> None:
    """JAX's own refuses ordered=True on several devices (#17418)."""
    record = Record()

    def program(x):
        for step in range(3):
            hcb.debug.callback(lambda x, s: record.add((s, x)), x + step, step, ordered=ordered)
        return x + 1

    values = [X + 10 * n for n in range(len(layout.callers))]
    compiled = layout.compile(program)
    for _ in range(2):
        jax.block_until_ready(compiled(values))
    jax.effects_barrier()
    once = [(step, (value + step).tolist()) for value in values for step in range(3)]
    assert sorted(record.values) == sorted(once * 2)
    for value in values if ordered else []:
        steps = [step for step, x in record.values if x == (value + step).tolist()]
        assert steps == [0, 1, 2] * 2, f"order on one device: {steps}"


def test_partitioned_calls_on_each_device_with_its_part(devices: list[Any], printed: Printed) -> None:
    record = Record()
    x = helpers.sharded(np.arange(16.0, dtype=np.float32), helpers.mesh_of(devices))

    def show(x, partitioned):
        hcb.debug.callback(lambda x: record.add(x), x * 2, partitioned=partitioned)
        hcb.debug.print("{}", x * 2, partitioned=partitioned)

    parts = jax.jit(lambda x: show(x, True))
    for _ in range(2):
        record.all.clear()
        parts(x)
        lines = [[float(n) for n in re.findall(r"[\d.]+", line)] for line in printed().splitlines()]
        for seen in (record.values, lines):
            assert sorted(seen) == [[4.0 * n, 4.0 * n + 2] for n in range(8)], f"parts: {seen}"
    assert "all-gather" not in parts.lower(x).compile().as_text(), "parts need no gathering"
    record.all.clear()
    jax.jit(lambda x: show(x, False))(x)
    assert len(printed().splitlines()) >= 1 and len(record.all) == 1, "whole: one call"


def test_partitioned_and_ordered_under_jit_over_a_mesh_is_refused(devices: list[Any]) -> None:
    x = helpers.sharded(X, helpers.mesh_of(devices))
    with pytest.raises(NotImplementedError, match=r"partitioned=True has no order.*Drop ordered=True"):
        jax.jit(lambda x: hcb.debug.print("{}", x, ordered=True, partitioned=True))(x)


def test_the_options_of_two_calls_are_those_of_the_second(printed: Printed) -> None:
    show = hcb.debug.print(ordered=True)
    with np.printoptions(precision=2):
        program = jax.jit(lambda x: show("{}", x)).lower(X).compile()
    program(X / 3)
    assert "0.33 " in printed()


@pytest.mark.parametrize("more", [-1, 0])
def test_in_a_list_an_array_of_one_mebibyte_is_printed_as_its_shape(more: int, printed: Printed) -> None:
    """As in newer releases of JAX; a smaller one is not."""
    size = (1 << 18) + more
    jax.jit(lambda x: hcb.debug.print("{}", [x]))(np.zeros(size, np.float32))
    array = f"shape=({size},), " if more == 0 else "[0., 0., 0., ..., 0., 0., 0.], "
    assert printed() == f"[Array({array}dtype=float32)]\n"


class Closed:
    """An object whose attributes cannot be read, and which can be shown."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("it is closed")

    dtype = __jax_array__ = aval = shape

    def __repr__(self) -> str:
        return "closed"


@ORDERED
def test_numbers_that_no_type_holds_and_objects_that_cannot_be_read(ordered: bool, printed: Printed) -> None:
    large = 2**70
    lines = {
        f"{large} 2.5": ("{} {}", large),
        f"{-large:,} 2.5": ("{:,} {}", -large),
        f"{large} 2.5 ": ("{0[0]} {1} ", [large]),
        "closed 2.5": ("{} {}", Closed()),
        "  closed 2.5": ("{!s:>8} {}", Closed()),
    }

    def program(x: Any) -> Any:
        ref = jax.new_ref(jnp.stack([x - 1.5, x]))
        for text, value in lines.values():
            hcb.debug.print(text, value, x, ordered=ordered)
        hcb.debug.print("{:>6.1f}", ref.at[0], ordered=ordered)
        return ref[...]

    jax.jit(program)(np.float32(2.5))
    found, expected = printed().splitlines(), [*lines, "   1.0"]
    assert found == expected if ordered else sorted(found) == sorted(expected)


@pytest.mark.contract("H5", "X4")
def test_parts_keep_the_order_of_taps_and_calls_on_one_device() -> None:
    seen: list[Any] = []

    def program(x: Any) -> Any:
        for number in range(3):
            x = hcb.id_tap(lambda arg, _: seen.append(("tap", int(arg))), x + number)
            hcb.debug.callback(lambda arg: seen.append(("part", int(arg))), x, ordered=True, partitioned=True)
            x = hcb.call(lambda arg: (seen.append(("call", int(arg))), arg)[1], x, result_shape=x)
        return x

    jax.block_until_ready(jax.jit(program)(np.int32(1)))
    hcb.barrier_wait()
    assert seen == [(kind, number) for number in (1, 2, 4) for kind in ("tap", "part", "call")]


@pytest.mark.contract("X4")
def test_an_empty_format_prints_an_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Any) -> Any:
        hcb.debug.print("a {}", x, ordered=True)
        hcb.debug.print("", ordered=True)
        hcb.debug.print("b {}", x, ordered=True)
        return x

    jax.jit(program)(np.float32(1))
    hcb.barrier_wait()
    assert capsys.readouterr().out == "a 1.0\n\nb 1.0\n"
