"""Programs whose operands and results have a layout of their own: callbacks get the right values (H4, H5, X3, X4).

The runtime of JAX 0.10.2 mistakes the layouts of a program with a token. So there a program of unordered callbacks gets
no token, and a program of ordered ones is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

import hostcb as hcb

pytestmark = pytest.mark.contract("H4", "H5", "X3", "X4")

VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)
ROWS = Layout((0, 1))
COLUMNS = Layout((1, 0))
ONE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
MESH = jax.sharding.NamedSharding(jax.make_mesh((2,), ("d",)), jax.sharding.PartitionSpec("d"))


def tap(see: Any, x: Any) -> Any:
    return hcb.id_tap(lambda arg, transforms: see(arg), x)


def unordered(see: Any, x: Any) -> Any:
    hcb.debug.callback(see, x)
    return x


def ordered(see: Any, x: Any) -> Any:
    hcb.debug.callback(see, x, ordered=True)
    return x


def once(see: Any, x: Any) -> Any:
    return hcb.io_callback(lambda value: (see(value), value)[1], x, x)


WITHOUT_ORDER = (unordered, once)
WITH_ORDER = (tap, ordered)
KINDS = (*WITHOUT_ORDER, *WITH_ORDER)
# Whether this JAX mistakes the layouts of a program with a token.
MISTAKES = jax.__version_info__ < (0, 11)


def refused(kind: Any) -> Any:
    """The context of a program with layouts of its own."""
    if MISTAKES and kind in WITH_ORDER:
        return pytest.raises(NotImplementedError, match="keep an order, and operands or results with a layout")
    return contextlib.nullcontext()


@pytest.mark.parametrize("sharding", [ONE, MESH], ids=["one", "mesh"])
@pytest.mark.parametrize("kind", KINDS)
def test_operands_in_another_layout_are_converted(kind: Callable[[Any, Any], Any], sharding: Any) -> None:
    seen: list[Any] = []
    form = Format(COLUMNS, sharding)
    step = jax.jit(lambda x: kind(seen.append, x) + 1, in_shardings=form, out_shardings=form)
    with refused(kind):
        # NumPy's layout, the default layout and the program's own; the first dispatch is always in Python.
        for operand in (VALUE, jnp.asarray(VALUE), jax.device_put(VALUE, form), VALUE):
            out = step(operand)
            np.testing.assert_array_equal(out, VALUE + 1)
            assert out.format.layout.major_to_minor == COLUMNS.major_to_minor
            np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(out), 2 * VALUE + 2)
        hcb.barrier_wait()
        assert len(seen) == 4
        for value in seen:
            np.testing.assert_array_equal(value, VALUE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_program_tells_its_layouts(kind: Callable[[Any, Any], Any]) -> None:
    def step(x: Any, few_bits: Any, number: Any) -> Any:
        return kind(lambda _: None, x).T, few_bits, number + 1

    def formats(function: Any) -> Any:
        small = jnp.zeros((2, 3), jnp.int4)
        compiled = jax.jit(function).lower(VALUE, small, 1.0).compile()
        return compiled.input_formats, compiled.output_formats

    assert formats(step) == formats(lambda x, few_bits, number: (x.T, few_bits, number + 1))


def test_a_compiled_program_that_returns_nothing_tells_its_layouts() -> None:
    compiled = jax.jit(lambda x: hcb.debug.callback(lambda _: None, x)).lower(VALUE).compile()
    ((form,), named), results = compiled.input_formats, compiled.output_formats
    assert (form.layout.major_to_minor, named, results) == (ROWS.major_to_minor, {}, None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_compiler_may_choose_the_layouts(kind: Callable[[Any, Any], Any]) -> None:
    seen: list[Any] = []
    step = jax.jit(
        lambda x: kind(seen.append, x).T, in_shardings=Format(Layout.AUTO), out_shardings=Format(Layout.AUTO)
    )
    with refused(kind):
        compiled = step.lower(jax.ShapeDtypeStruct(VALUE.shape, VALUE.dtype)).compile()
        ((form,), _), _ = compiled.input_formats, compiled.output_formats
        np.testing.assert_array_equal(compiled(jax.device_put(VALUE, form)), VALUE.T)
        hcb.barrier_wait()
        np.testing.assert_array_equal(seen, [VALUE])
