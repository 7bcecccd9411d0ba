"""Kinds of data: JAX and NumPy make the same of a number, and whatever is wrong is noticed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.implementations.payloads import DataPayload
from conformance.oracle.history import Recorder
from conformance.spec.callbacks import HOST_CALLBACKS
from conformance.spec.configurations import CONTEXTS
from conformance.spec.data import ELEMENT_TYPES, SHAPES, STRUCTURES, DataKind, flatten, parse_data

pytestmark = pytest.mark.contract("C1")

CALLBACKS = {callback.name: callback for callback in HOST_CALLBACKS}
NUMBERS = np.array([7.0, 68.5], dtype=np.float32)


def test_operands_show_a_wrong_element_and_are_large_where_they_say_so() -> None:
    (leaf,) = DataKind("uint32", "matrix").operand(NUMBERS, np)
    assert len(set(leaf.ravel().tolist())) == leaf.size == 12
    for name, element in ELEMENT_TYPES.items():
        if not element.key:
            (leaf,) = DataKind(name, "large").operand(NUMBERS[:1], np)
            assert leaf.nbytes > 8192


def test_names_lead_back() -> None:
    for element, shape, structure in zip(ELEMENT_TYPES, [*SHAPES] * 4, [*STRUCTURES] * 3, strict=False):
        assert parse_data(DataKind(element, shape, structure).name) == DataKind(element, shape, structure)
    assert parse_data("int8-matrix") is None
    assert parse_data("int8-cube-one") is None


@pytest.mark.parametrize("element", ["bool", "int8", "float8_e4m3fn", "typed_key"])
@pytest.mark.parametrize("structure", ["one", "nested"])
def test_one_wrong_element_of_a_result_shows_in_the_program(element: str, structure: str) -> None:
    payload = DataPayload(CALLBACKS["call"], DataKind(element, "vector", structure))
    value = jnp.float32(7)
    leaves = flatten(payload.new(value))
    assert payload.received(value, payload.new(value)) == 8
    wrong = [*leaves[:-1], leaves[-1].at[1].set(leaves[-1][0])]
    if element == "bool":
        wrong = [*leaves[:-1], leaves[-1].at[1].set(~leaves[-1][1])]
    assert payload.received(value, payload.data.result_tree(wrong)) != 8


def test_a_result_of_another_type_or_tree_is_refused() -> None:
    payload = DataPayload(CALLBACKS["call"], DataKind("int8", "vector", "pair"))
    value = jnp.float32(7)
    first, second = payload.new(value)
    with pytest.raises(AssertionError, match="a result is int16"):
        payload.received(value, (first, second.astype(jnp.int16)))
    with pytest.raises(AssertionError, match="a tree like"):
        payload.received(value, [first, second])


def test_an_operand_in_another_tree_is_an_event_of_its_own() -> None:
    payload = DataPayload(CALLBACKS["call"], DataKind("int8", "scalar", "pair"))
    recorder = Recorder()
    payload.function("first", recorder)([np.float32(7), np.int8(1)])
    assert [event.site for event in recorder.history().events] == ["first with a tree like [*, *] for one like (*, *)"]


@pytest.mark.parametrize(("name", "setting"), [("x64", "jax_enable_x64"), ("gspmd", "jax_use_shardy_partitioner")])
def test_configurations_end_with_their_cell(name: str, setting: str) -> None:
    before = jax.config.values[setting]
    with CONTEXTS[name]():
        assert jax.config.values[setting] is not before
    assert jax.config.values[setting] is before
