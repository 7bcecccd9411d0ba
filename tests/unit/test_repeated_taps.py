"""H18: a tap that repeats another one is bound at once, without the checks that the first one has passed."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import Record

import hostcb as hcb
from hostcb._api import host_callback
from hostcb._runtime.queue.queues import queues
from hostcb._spec.callback import known_tap
from hostcb._spec.kinds import PRINTING_TAP, TAP


def tap(arg: Any, transforms: Any) -> None:
    pass


@pytest.mark.contract("H18")
def test_the_callback_of_a_tap_is_found_while_it_lives() -> None:
    assert known_tap(TAP, tap) is None
    traced = jax.make_jaxpr(lambda x: hcb.id_tap(tap, x))(1.0)
    (equation,) = traced.eqns
    assert known_tap(TAP, tap) is equation.params["callback"]
    assert known_tap(PRINTING_TAP, tap) is None


@pytest.mark.contract("H18")
def test_a_repeated_tap_is_bound_as_the_first_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    plain = host_callback.bind

    def bind(*args: Any, **kwargs: Any) -> Any:
        bound.append("first")
        return plain(*args, **kwargs)

    def again(arg: Any, transforms: Any) -> None: ...

    monkeypatch.setattr(host_callback, "bind", bind)
    traced = jax.make_jaxpr(lambda x: hcb.id_tap(again, hcb.id_tap(again, x)))(1.0)
    one, other = (dict(equation.params) for equation in traced.eqns)
    assert one == other
    assert bound == ["first"], "the second tap should take the short way"


@contextlib.contextmanager
def held_up() -> Iterator[None]:
    """Let the values of taps wait on the first device, and run them at the end."""
    gate = threading.Event()
    hcb.id_tap(lambda arg, transforms: gate.wait(helpers.DEADLINE), 0.0)
    try:
        yield
    finally:
        gate.set()
        hcb.barrier_wait()


def hosts_of_waiting() -> list[Any]:
    return [item.receiver for item in queues[jax.devices()[0]].items][1:]


@pytest.mark.contract("H11", "H18")
def test_taps_that_wait_outside_jit_have_one_host_which_ends_with_them() -> None:
    record = Record()
    function = record.labelled("one")
    with held_up():
        for number in range(3):
            hcb.id_tap(function, jnp.float32(number))
        hosts = hosts_of_waiting()
        assert len(hosts) == 3 and len(set(map(id, hosts))) == 1, "a loop should not make a host for each value"
        host = weakref.ref(hosts.pop())
        del hosts
    hcb.id_tap(tap, 0.0)
    hcb.barrier_wait()
    assert record.values == [0, 1, 2]
    assert host() is None, "it should not outlive the values"


@pytest.mark.contract("H7", "H29")
def test_waiting_taps_have_the_function_the_types_and_the_transforms_of_their_own() -> None:
    record, before = Record(), hcb.stats()
    function, other = record.labelled("one"), record.labelled("other")
    vector = np.arange(4, dtype=np.float32)
    with held_up():
        for value in (jnp.float32(1), jnp.asarray(vector)):
            hcb.id_tap(function, value)
        jax.vmap(lambda x: hcb.id_tap(function, x))(vector)
        for each in (function, other):
            hcb.id_tap(each, jnp.asarray(vector))
    assert record.labels == [*["one"] * 4, "other"]
    assert record.values == [1, *[vector.tolist()] * 4]
    batched = (("batch", {"batch_dims": (0,)}),)
    assert record.transforms == [(), (), batched, (), ()]
    counted = (hcb.stats() - before)[jax.devices()[0]]
    assert counted.bytes == 4 + 4 + 4 * vector.nbytes, "of the value that holds up, and of the five"
