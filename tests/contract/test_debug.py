"""X1, X4: `debug.callback` and `debug.print` show what JAX does; JAX's own two are the measure of what they print."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record
from support.pairwise import in_turns
from support.printed_text import Printed, Show

import hostcb as hcb

pytestmark = pytest.mark.contract("X4")

X = np.arange(8, dtype=np.float32)
ORDERED = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])


class Point(NamedTuple):
    x: Any
    y: Any


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
    "without_elements": lambda show: show("{} {}", [np.zeros((2, 0), np.int32)], jnp.float32(2.5)),
    # With its type, as long as a line of 75 characters; JAX writes the type of a longer one as if on the next line.
    "line": lambda show: show("{} {}", [np.ones(20, np.int32)], [np.ones(21, np.int32)]),
    "empty_containers": lambda show: show("{} {} {}", (), {}, []),
}


@STAGES
@pytest.mark.parametrize("text", TEXTS)
def test_prints_the_very_text_that_jax_prints(stage: Any, text: str, printed: Printed) -> None:
    program = lambda show: stage(lambda: TEXTS[text](show))()
    expected = printed.by(program, jax)
    assert expected.endswith("\n"), "the measure should have printed"
    assert printed.by(program, hcb) == expected


def test_dict_of_arrays_as_the_documentation_shows_it(printed: Printed) -> None:
    jax.jit(lambda x: hcb.debug.print("x: {x}", x={"foo": x}))(np.int32(2))
    assert printed() == "x: {'foo': Array(2, dtype=int32)}\n"


@STAGES
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
        jitted = jax.jit(lambda x: hcb.debug.print("{} {}", x, [x])).lower(X[:2]).compile()
    jitted(np.array([1 / 3, 2 / 3], np.float32))
    assert printed() == "[0.33 0.67] [Array([0.33, 0.67], dtype=float32)]\n"


@ORDERED
def test_arguments_that_are_no_arrays_come_in_their_places_and_by_their_names(ordered: bool) -> None:
    seen: list[Any] = []

    def host(*arguments: Any, **named: Any) -> None:
        values = [each if isinstance(each, str) else float(each) for each in (*arguments, *named.values())]
        seen.append((values, [*named]))

    def mixed(x: Any, y: Any) -> list[tuple[list[Any], dict[str, Any]]]:
        return [
            (["a", x, "b", y], {}),
            ([x, "a", "b", y], {}),
            (["a", "b", x, y, "c"], {}),
            ([x, "a"], {"first": "b", "second": y}),
            (["a", x], {"first": y, "second": "b"}),
        ]

    @jax.jit
    def program(x: Any, y: Any) -> None:
        for arguments, named in mixed(x, y):
            hcb.debug.callback(host, *arguments, ordered=ordered, **named)

    for x, y in ((1.0, 2.0), (3.0, 4.0)):
        seen.clear()
        program(x, y)
        jax.effects_barrier()
        expected = [([*arguments, *named.values()], [*named]) for arguments, named in mixed(x, y)]
        assert (seen if ordered else sorted(seen, key=str)) == (expected if ordered else sorted(expected, key=str))


def test_static_arguments(printed: Printed) -> None:
    @functools.partial(jax.jit, static_argnums=(0,))
    def f(x, y):
        hcb.debug.print("{} {}", x, y)

    f(2, 3)
    f("two", 3)
    assert printed() == "2 3\ntwo 3\n"


@STAGES
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
    "missing_alone": (("x is {}",), {}, IndexError, "asks for 1 or more positional arguments"),
    "missing_name_alone": (("x is {x}",), {}, KeyError, "asks for 'x', but got no keyword argument"),
    "open_alone": (("x is {",), {}, ValueError, "'{'|expected '}'"),
    "item": (("{x[a]}",), {"x": {"b": 1}}, ValueError, "a"),
    "specification_for_a_key": (("{:d}", jax.random.key(0)), {}, ValueError, "does not match its arguments"),
    "name_beside_a_position": (("{}", 1), {"y": 1}, ValueError, r"Unused keyword arguments.*\['y'\]"),
    "no_string": ((3,), {}, TypeError, "the format must be a string, got 3"),
}


@STAGES
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
    keys = jax.random.split(key)
    jax.jit(lambda keys: hcb.debug.print("{keys[1]}", keys=keys))(keys)
    assert printed() == f"{jax.random.key_data(keys)[1]}\n"
    with pytest.raises(ValueError, match="does not match its arguments"):
        jax.jit(lambda key: hcb.debug.print(f"{{k[{words.size}]}}", k=key))(key)


def test_skipping_the_check_prints_values_behind_the_text(printed: Printed) -> None:
    jax.jit(lambda x: hcb.debug.print("at", x, y=x + 1, z=x + 2, skip_format_check=True))(np.int32(1))
    assert printed() == "at 1 y=2 z=3\n"


@in_turns(("layout", "ordered"), helpers.LAYOUTS, [False, True])
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
    with pytest.raises(NotImplementedError, match=r"partitioned=True.*ordered=True"):
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
