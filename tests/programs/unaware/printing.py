"""What `jax.debug.print` prints and refuses, and what the function of a `jax.debug.callback` gets."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import debug

from .running import attempt

FLOAT = jnp.float32(1.25)
KEY = jax.random.key(3)


def stages(program: Callable[[], Any]) -> None:
    attempt(program)
    attempt(jax.jit(program))


def show(*args: Any, **kwargs: Any) -> Callable[[], None]:
    """A program that prints outside jit and in it."""

    def program() -> None:
        stages(lambda: debug.print(*args, **kwargs))
        stages(lambda: debug.print(*args, ordered=True, **kwargs))

    return program


def look(*args: Any, **kwargs: Any) -> Callable[[], None]:
    """A program that tells what a function gets."""

    def told(*args: Any, **kwargs: Any) -> None:
        for leaf in jax.tree.leaves((args, kwargs)):
            names = ("dtype", "shape", "weak_type", "committed")
            print(type(leaf).__name__, *[getattr(leaf, name, None) for name in names])

    return lambda: stages(lambda: debug.callback(told, *args, **kwargs))


class Stream:
    """Counts what is written to it."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def flush(self) -> None:
        pass


def writes() -> None:
    stream, before = Stream(), sys.stdout
    sys.stdout = stream  # type: ignore[assignment]
    try:
        stages(lambda: debug.print("x {}", 1))
    finally:
        sys.stdout = before
    print([text for text in stream.written if "x" in text])


def options() -> None:
    with np.printoptions(precision=2, suppress=True):
        stages(lambda: debug.print("{} {x}", jnp.arange(3) / 7, x=[jnp.ones(2) / 3]))


def two_calls() -> None:
    stages(lambda: debug.print(ordered=True)("{x} {ordered}", x=1, ordered="a name"))
    stages(lambda: debug.callback(ordered=True)(lambda *, fmt, partitioned: print(fmt), fmt=1, partitioned=2))
    stages(lambda: debug.print(x=1))


def nan_under_debug_nans() -> None:
    with jax.debug_nans(True):
        stages(lambda: debug.print("{}", float("nan")))


PROGRAMS = {
    "doubled_braces": show("{{x}}"),
    "doubled_braces_before_a_field": show("a {{b}} {}", 1),
    "doubled_braces_after_a_field": show("{} {{b}}", 1),
    "unbalanced": show("{x"),
    "percent": show("100% %s {}", 3),
    "empty": show(""),
    "no_field_and_no_check": show("x", 1, FLOAT, skip_format_check=True),
    "missing_and_no_check": show("{} {}", 1, skip_format_check=True),
    "unused_and_no_check": show("{}", 1, 2, skip_format_check=True),
    "missing": show("{} {}", 1),
    "missing_name": show("{x} {y}", x=1),
    "unused": show("{}", 1, 2),
    "unused_name": show("{x}", x=1, y=2),
    "both_numberings": show("{} {0}", 1),
    "specification": show("{x:.2f} {x:>8} {n:05d} {n:x}", x=FLOAT, n=jnp.int32(42)),
    "specification_of_another_type": show("{x:d}", x=1.5),
    "specification_of_an_array": show("{x:.2f}", x=jnp.arange(3.0)),
    "nested_specification": show("{x:{w}}", x=FLOAT, w=10),
    "attributes": show("{x.shape} {x.dtype} {x.weak_type}", x=FLOAT),
    "missing_attribute": show("{x.nothing}", x=1.5),
    "items": show("{x[0]:.1f} {d[k]}", x=jnp.arange(2.0), d={"k": 1}),
    "conversions": show("{!r} {!s} {!a}", 1.5, 2, jnp.arange(2)),
    "containers": show("{} {x}", [1, 2.5, None, "s", jnp.arange(2)], x={"b": np.arange(3), "c": ("t", None)}),
    "large": show("{} {}", jnp.arange(5000), [jnp.zeros((600, 600))]),
    "no_elements": show("{} {}", jnp.zeros((0, 3)), [jnp.zeros(0)]),
    "small_types": show("{} {}", jnp.ones(3, jnp.bfloat16), [jnp.ones(3, jnp.int4), jnp.ones(2, jnp.float8_e5m2)]),
    "keys": show("{} {}", KEY, [jax.random.split(KEY, 2)]),
    "objects": show("{} {} {name}", None, len, name="b"),
    "no_text": show(3),
    "writes": writes,
    "options": options,
    "two_calls": two_calls,
    "nan_under_debug_nans": nan_under_debug_nans,
    "partial": lambda: jax.jit(lambda y: functools.partial(debug.print, "{} {x}", ordered=True)(y, x=2))(1),
    "numbers_arrive": look(1, 1.5, True, np.float32(1), jnp.asarray(1.0), [2, {"k": 3.5}], k=2j, n=np.arange(2)),
    "keys_arrive": look("s", KEY, None, k=[jax.random.split(KEY, 2), "t"]),
    "keys_of_another_kind_arrive": look(jax.random.key(3, impl="rbg")),
    "static_leaves_arrive": look("s", None, len, [FLOAT, "t"], k=None, f=np.array(["a"])),
}
