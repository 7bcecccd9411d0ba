"""Taps and prints return what they are given, with its type."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import Any, NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import hostcb as hcb

seen: list[object] = []


class State(NamedTuple):
    x: jax.Array
    step: jax.Array


class Logger:
    def __call__(self, value: NDArray[np.float32], transforms: object) -> int:
        seen.append(value)
        return len(seen)


def show(value: NDArray[np.float32], transforms: Sequence[tuple[str, dict[str, Any]]]) -> None:
    seen.append((value.shape, transforms))


def show_state(state: State, transforms: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    seen.append(state.step)


def show_with_name(name: str, value: object, transforms: object) -> None:
    seen.append((name, value))


# The device is a `jax.Device`, which pyright refuses in an annotation.
def show_device(value: object, transforms: object, *, device: Any) -> None:
    seen.append(device.id)


def show_both(value: object, transforms: object, device: Any = None) -> None:
    seen.append(device)


def update(state: State, with_device: bool) -> State:
    state = hcb.id_tap(show_state, state)
    assert_type(hcb.id_tap(lambda value, transforms: seen.append(value), state), State)
    assert_type(hcb.id_tap(show, state.x), jax.Array)
    assert_type(hcb.id_tap(show, state.x, on_error="log"), jax.Array)
    assert_type(hcb.id_tap(show_device, state, result=state.x, tap_with_device=True, on_error="barrier"), jax.Array)
    assert_type(hcb.id_print(state, on_error="next_dispatch", what="state"), State)
    assert_type(hcb.id_tap(Logger(), state.x), jax.Array)
    assert_type(hcb.id_tap(functools.partial(show_with_name, "x"), state.x), jax.Array)
    assert_type(hcb.id_tap(show, state.x, result=state), State)
    assert_type(hcb.id_tap(show_device, state, tap_with_device=True), State)
    assert_type(hcb.id_tap(lambda value, transforms, device: None, state, tap_with_device=True), State)
    assert_type(hcb.id_tap(show_device, state.x, result=state, tap_with_device=True, device_index=0), State)
    assert_type(hcb.id_tap(show_both, state, tap_with_device=with_device), State)
    assert_type(hcb.id_tap(show_both, {"x": state.x}, tap_with_device=False), dict[str, jax.Array])
    assert_type(hcb.id_print(state, what="state", output_stream=io.StringIO(), threshold=10), State)
    assert_type(hcb.id_print(state.x, result=state, tap_with_device=True), State)
    return hcb.id_tap(show_state, State(state.x + 1, state.step + 1))


step = jax.jit(update, static_argnums=1)
step(State(jnp.ones(2), jnp.int32(0)), True)
hcb.barrier_wait()
assert len(seen) == 13, seen
