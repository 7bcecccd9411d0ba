"""The texts of `debug.print`, to the letter."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..harness.case import Case, case

FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "{what}: {x}": ({"what": "a text"}, "a text: 2.5"),
    "{what:>4} {x:.2f}": ({"what": "ab"}, "  ab 2.50"),
    "{row[1]} {x}": ({"row": np.arange(3, dtype=np.float32)}, "1.0 2.5"),
    "{rows} {x}": ({"rows": [np.arange(3, dtype=np.float32)]}, "[Array([0., 1., 2.], dtype=float32)] 2.5"),
    "{empty} {x}": ({"empty": [np.zeros((2, 0), np.int32)]}, "[Array([], shape=(2, 0), dtype=int32)] 2.5"),
    # With its type, as long as a line of 75 characters.
    "{line} {x}": ({"line": [np.ones(20, np.int32)]}, f"[Array([{', '.join('1' * 20)}], dtype=int32)] 2.5"),
    # JAX writes the type of a longer one as if it were on the next line.
    "{longer} {x}": ({"longer": [np.ones(21, np.int32)]}, f"[Array([{', '.join('1' * 21)}],      dtype=int32)] 2.5"),
}
"""Formats, their values beside `x`, and the line."""


@case("jit", "debug_print", "X4", not_of="hostcb")
def debug_prints_exactly(case: Case) -> None:
    """X4: a print shows values that are no arrays, parts of arrays and of keys, and arrays in a list, to the letter."""
    keys = jax.random.split(jax.random.key(3), 2)
    formats = {**FORMATS, "{keys[1]} {x}": ({"keys": keys}, f"{jax.random.key_data(keys)[1]} 2.5")}
    for text, (values, line) in formats.items():

        def program(x: Any, text: str = text, values: Any = values) -> None:
            case.implementation.print_as(text, x=x, **values)

        with case.prints(line, what=repr(text)):
            jax.jit(program)(np.float32(2.5))


@case("jit", "debug_print", "X4", not_of="hostcb")
def prints_with_options_of_the_trace(case: Case) -> None:
    """X4: NumPy's print options are those of the program's trace, and not those of the moment when it prints."""
    third = np.array([1 / 3, 2 / 3], np.float32)
    with np.printoptions(precision=2):
        program = jax.jit(lambda x: case.implementation.print_as("{} {}", x, [x])).lower(third).compile()
    with case.prints("[0.33 0.67] [Array([0.33, 0.67], dtype=float32)]"):
        program(third)


@case("pjit", "debug_print", "X4", minimum_devices=2)
def prints_each_part(case: Case) -> None:
    """X4: `partitioned=True` prints the part of each device, and without it the whole is printed once."""
    whole = np.arange(len(case.devices), dtype=np.int32)
    for partitioned, lines in ((True, [f"[{number}]" for number in whole]), (False, [f"{whole}"])):
        program = jax.jit(lambda x, p=partitioned: case.implementation.print_as("{}", x, partitioned=p))
        with case.prints(*lines, what=f"partitioned={partitioned}"):
            program(jax.device_put(whole, case.split))
