"""H18: many callbacks in one program share what is equal about them, and are the same operations as without that."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import Record

import hostcb as hcb
from hostcb import _compat
from hostcb._lowering import custom_calls
from hostcb._native.library import library


def tap(arg: Any, transforms: Any) -> None: ...


def double(arg: Any) -> Any:
    return arg * 2


def of_all_kinds(x: Any) -> Any:
    for _ in range(2):
        x = hcb.id_tap(tap, x)
        hcb.id_tap(tap, (x, x))
        x = hcb.call(double, x, result_shape=x)
        x = hcb.pure_callback(double, x, x, vmap_method="sequential")
        x = hcb.io_callback(double, x, x, ordered=True)
        hcb.debug.callback(lambda value: None, x)
        x = hcb.buffer_callback(lambda c, out, v: None, x)(x)
    return x


def test_operations_are_the_same_with_and_without_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (jnp.float32(1), jnp.zeros((2, 3), jnp.int8), jnp.zeros(3, bool))

    def texts() -> list[str]:
        # A new function each time: JAX remembers the lowering of one.
        return [jax.jit(lambda x: of_all_kinds(x)).lower(value).as_text() for value in values]

    remembered = texts()
    with monkeypatch.context() as patch:
        patch.setattr(custom_calls.Form, "of", lambda op, numbered_target: None)
        assert texts() == remembered
    # Nothing is remembered where this JAX has no place for it; then no handler is shared either.
    monkeypatch.setattr(_compat, "memory_of", lambda module_context: {})
    assert [text.count("custom_call") for text in texts()] == [text.count("custom_call") for text in remembered]


@pytest.mark.contract("H18")
def test_equal_callbacks_of_a_program_have_one_handler() -> None:
    lowered = jax.jit(lambda x: hcb.id_tap(tap, hcb.id_tap(tap, hcb.id_tap(lambda a, t: None, x)))).lower(1.0)
    text = lowered.as_text()
    # Without the native extension the index is an attribute.
    marks = [(f"hostcb_tap_{number}(", f"index = {number} : ui64") for number in range(3)]
    assert [sum(map(text.count, mark)) for mark in marks] == [1, 2, 0], text


@pytest.mark.contract("H24")
@pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}")
def test_handlers_without_a_target_of_their_own_have_an_attribute() -> None:
    count, seen = 520, []

    def program(x: Any) -> Any:
        for number in range(count):
            x = hcb.id_tap(lambda arg, transforms, number=number: seen.append(number), x)
        return x

    lowered = jax.jit(program).lower(1.0)
    text = lowered.as_text()
    assert ("hostcb_tap_511(" in text, "hostcb_tap_512(" in text, text.count("hostcb_tap(")) == (True, False, 8)
    assert [f"index = {number} : ui64" in text for number in (511, 512, 519)] == [False, True, True]
    compiled = lowered.compile()
    for _ in range(2):
        # The first values go through Python, the others do not.
        compiled(1.0)
        hcb.barrier_wait()
    assert seen == [*range(count)] * 2


@pytest.mark.contract("H1")
def test_a_repeated_tap_is_the_same_equation_as_the_first() -> None:
    def program(x: Any, integer: Any) -> Any:
        for value in (x, integer, x.astype(jnp.bfloat16), x.astype(jnp.int4), jax.random.key(0), 1.5, [x]):
            for _ in range(2):
                hcb.id_tap(tap, value)
        return x

    equations = jax.make_jaxpr(program)(jnp.zeros(2), 1).eqns
    taps = [each for each in equations if each.primitive.name == "host_callback"]
    shown = [(each.params, str(each.outvars[0].aval)) for each in taps]
    assert len(shown) == 14
    assert shown[::2] == shown[1::2]


@pytest.mark.contract("H1", "H10")
def test_a_repeated_tap_is_refused_as_the_first() -> None:
    wrong: dict[str, Any] = {"device_index": -1, "unknown": 1}

    @jax.jit
    def program(x: Any) -> Any:
        x = hcb.id_tap(tap, x)
        for name, value in wrong.items():
            with pytest.raises((TypeError, ValueError), match=name):
                hcb.id_tap(tap, x, **{name: value})
        assert hcb.id_tap(tap, x, result=3) == 3
        return hcb.id_tap(tap, x, tap_with_device=False)

    assert program(1.0) == 1


@pytest.mark.contract("H5")
def test_equal_callbacks_with_one_handler_each_run_in_their_place() -> None:
    record = Record()
    tap = record.tap
    program = jax.jit(lambda x: [hcb.id_tap(tap, x + n) for n in range(20)][-1])
    program(jnp.float32(0))
    hcb.barrier_wait()
    assert [float(arg) for arg in record.args] == [float(n) for n in range(20)]


@pytest.mark.contract("H4")
def test_equal_functions_on_unequal_values_do_not_share() -> None:
    record = Record()
    # A method is another object each time that it is asked for, and would share nothing anyway.
    tap = record.tap

    @jax.jit
    def program(x: Any) -> Any:
        hcb.id_tap(tap, x)
        hcb.id_tap(tap, x.astype(jnp.int32))
        hcb.id_tap(tap, x.astype(jnp.int4))
        hcb.id_tap(tap, x[0])
        return jax.vmap(lambda each: hcb.id_tap(tap, each))(x)

    program(jnp.arange(3, dtype=jnp.float32))
    hcb.barrier_wait()
    assert [(seen.arg.dtype, seen.arg.shape, len(seen.transforms)) for seen in record.all] == [
        (np.float32, (3,), 0),
        (np.int32, (3,), 0),
        (jnp.int4, (3,), 0),
        (np.float32, (), 0),
        (np.float32, (3,), 1),
    ]


@pytest.mark.contract("H18")
def test_a_function_that_leads_to_its_own_program_is_let_go() -> None:
    class Model:
        def __init__(self) -> None:
            self.program = jax.jit(lambda x: hcb.id_tap(self.seen, hcb.call(self.answer, x, result_shape=x)))
            self.seen = lambda arg, transforms: self.program
            self.answer = lambda arg: (self, arg)[1]

    model = Model()
    jax.block_until_ready(model.program(1.0))
    hcb.barrier_wait()
    ended = weakref.ref(model)
    del model
    jax.clear_caches()
    gc.collect()
    assert ended() is None, f"kept by {gc.get_referrers(ended())}"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Functions that are equal and do not do the same."""

    factor: Any

    def __call__(self, x: Any) -> Any:
        return np.asarray(x * self.factor if self.factor is not True else x + 40, x.dtype)


@pytest.mark.contract("H18")
def test_equal_functions_of_one_program_run_each_for_itself() -> None:
    x = jnp.float32(3)
    one = jax.jit(lambda x: [hcb.pure_callback(Scale(factor), x, x) for factor in (1, True, 1.0)])
    assert [float(out) for out in one(x)] == [3, 43, 3]


@pytest.mark.contract("B1")
def test_a_function_may_have_attributes_of_any_name() -> None:
    class Function:
        on_cpu = True

        def __call__(self, context: Any, out: Any, x: Any) -> None:
            np.asarray(out)[...] = np.asarray(x) + 1

    x = jnp.arange(3)
    assert jax.jit(hcb.buffer_callback(Function(), x))(x).tolist() == [1, 2, 3]
