"""Errors say what is wrong: trees and keys, numbers that do not fit; and they can be pickled (H3, H13, H15)."""

from __future__ import annotations

import collections
import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb

F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)


def of_dtype(name: str) -> Any:
    return jax.ShapeDtypeStruct((), np.dtype(name))


CALLERS: dict[str, Callable[..., Any]] = {
    "pure": lambda f, shape: hcb.pure_callback(f, shape, ONE),
    "io": lambda f, shape: hcb.io_callback(f, shape, ONE, ordered=True),
    "dlpack": lambda f, shape: hcb.dlpack_callback(f, shape)(ONE),
    "call": lambda f, shape: hcb.call(f, ONE, result_shape=shape),
}


def error_of(stage: Any, caller: str, result: Any, shape: Any) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(stage(lambda: CALLERS[caller](lambda _: result, shape))())
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    return str(caught.value)


@pytest.mark.contract("H15")
@STAGES
@pytest.mark.parametrize("caller", ["pure", "io", "dlpack"])
@pytest.mark.parametrize(
    ("result", "shape", "keys"),
    [
        ({"a": ONE, "b": ONE}, (F32, F32), "Expected: 2 with the keys none, none, Actual: 2 with the keys a, b"),
        ((ONE, ONE), {"a": F32, "b": F32}, "Expected: 2 with the keys a, b, Actual: 2 with the keys none, none"),
        ({"b": ONE, "c": ONE}, {"a": F32, "b": F32}, "Expected: 2 with the keys a, b, Actual: 2 with the keys b, c"),
        (
            [{"a": {"x": ONE}}, ONE],
            [{"a": {"y": F32}}, F32],
            "Expected: 2 with the keys a.y, none, Actual: 2 with the keys a.x, none",
        ),
    ],
    ids=["dict for tuple", "tuple for dict", "keys", "nested"],
)
def test_as_many_leaves_under_other_keys(stage: Any, caller: str, result: Any, shape: Any, keys: str) -> None:
    text = error_of(stage, caller, result, shape)
    assert f"Mismatched tree of outputs from callback: the keys of dicts differ. {keys}" in text


@pytest.mark.contract("H15")
@pytest.mark.parametrize("caller", ["pure", "io", "dlpack"])
def test_another_number_of_leaves(caller: str) -> None:
    text = error_of(jax.jit, caller, {"a": ONE}, (F32, F32))
    assert "Mismatched number of outputs from callback. Expected: 2, Actual: 1" in text


@pytest.mark.contract("H15")
@STAGES
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("result", "dtype", "holds"),
    [
        (2**31, "int32", "-2147483648 to 2147483647"),
        (-(2**31) - 1, "int32", "-2147483648 to 2147483647"),
        (-(2**40), "int32", "-2147483648 to 2147483647"),
        (2**63, "int32", "-2147483648 to 2147483647"),
        (np.uint64(2**32), "uint32", "0 to 4294967295"),
    ],
    ids=str,
)
def test_integers_that_do_not_fit(stage: Any, caller: str, result: Any, dtype: str, holds: str) -> None:
    text = error_of(stage, caller, result, of_dtype(dtype))
    assert f"the value {int(result)} does not fit {dtype}, which holds {holds}" in text
    assert ("Set jax_enable_x64" in text) == (result != 2**63), "a wider type is advised where it helps"


@pytest.mark.contract("H15")
@pytest.mark.parametrize("caller", CALLERS)
def test_the_integer_that_does_not_fit_is_found(caller: str) -> None:
    result = np.array([1, 2, 2**35, 4])
    text = error_of(jax.jit, caller, result, jax.ShapeDtypeStruct((4,), np.int32))
    assert f"the value {2**35} does not fit int32" in text


@pytest.mark.contract("H15")
@pytest.mark.parametrize("caller", CALLERS)
def test_integers_that_fit_no_type(caller: str) -> None:
    assert f"the integer {2**70}, which fits no type" in error_of(jax.jit, caller, 2**70, of_dtype("int32"))


@pytest.mark.contract("H15")
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("result", "dtype"), [(float("nan"), "int32"), (1.5, "int32"), (np.int16(3), "int32")])
def test_other_types_are_named(caller: str, result: Any, dtype: str) -> None:
    text = error_of(jax.jit, caller, result, of_dtype(dtype))
    assert "does not fit" not in text
    assert np.asarray(result).dtype.name in text


@pytest.mark.contract("H15")
@pytest.mark.parametrize("caller", ["pure", "io"])
def test_a_callback_with_jaxs_name_says_in_jaxs_words_which_value_differs(caller: str) -> None:
    text = error_of(jax.jit, caller, np.int16(3), of_dtype("int32"))
    assert "Incorrect output dtype for return value #0: Expected: int32, Actual: int16" in text


@pytest.mark.contract("H15")
def test_with_x64_on_the_number_is_named_too() -> None:
    with jax.enable_x64(True):
        text = error_of(jax.jit, "pure", 2**63, of_dtype("int64"))
        assert f"the value {2**63} does not fit int64" in text and "Set jax_enable_x64" not in text
        with pytest.raises(OverflowError, match=r"does not fit int64, the type that JAX gives an integer\. Convert"):
            hcb.io_callback(print, None, 2**70)


@pytest.mark.contract("H15")
@pytest.mark.parametrize("number", [2**40, -(2**31) - 1, 2**70], ids=str)
def test_operands_that_fit_no_type(number: int) -> None:
    for call in (
        lambda: hcb.io_callback(print, None, number),
        lambda: hcb.pure_callback(print, None, {"a": [number]}),
        lambda: hcb.id_tap(lambda *_: None, number),
        lambda: hcb.call(lambda _: None, number),
        lambda: hcb.buffer_callback(lambda *_: None, ())(number),
        lambda: jax.jit(lambda: hcb.io_callback(print, None, number))(),
    ):
        for error in (OverflowError, TypeError):
            with pytest.raises(error, match=f"{number} does not fit int32.*while jax_enable_x64 is off"):
                call()


def fail(_: Any) -> Any:
    raise ValueError("planted")


@pytest.mark.contract("H15")
@STAGES
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (fail, "but the callback failed"),
        (lambda _: 1.5j, "but the callback returned something else"),
        (lambda _: (ONE, ONE), "but the callback returned something else"),
        (lambda _: "text", "but the callback returned something else"),
        (id, None),
    ],
    ids=["raises", "dtype", "tree", "text", "builtin"],
)
def test_errors_say_what_happened(stage: Any, caller: str, function: Any, what: str | None) -> None:
    """And not that a mark came which nobody sent."""
    shape = F32 if what is not None else jax.ShapeDtypeStruct((2,), np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(stage(lambda: CALLERS[caller](function, shape))())
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    text = str(caught.value)
    assert (what or "but the callback returned something else") in text, text
    assert "12345" not in text


@pytest.mark.contract("H15")
@STAGES
@pytest.mark.parametrize("arguments", [(ONE,), ((ONE, ONE),)], ids=["one", "tree"])
@pytest.mark.parametrize("make", [hcb.buffer_callback, functools.partial(hcb.dlpack_callback, in_place=True)])
def test_what_should_have_written_and_returned_something(make: Any, arguments: Any, stage: Any) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(stage(make(lambda *_: ONE, F32))(*arguments))
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    text = str(caught.value)
    assert "expected float32[], written into `out`, but the callback returned something" in text, text
    assert "callback failed" not in text and "must not return any values" in text, text


@pytest.mark.contract("H15")
def test_an_honest_mark_that_was_not_expected_is_named() -> None:
    text = error_of(jax.jit, "pure", np.zeros(12345, np.int8), F32)
    assert "(12345,)" in text and "but the callback returned something else" in text


@pytest.mark.contract("H15")
def test_where_no_result_is_expected_no_mark_is_named() -> None:
    """In partitioned debug callbacks, too."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("d",))
    x = jax.device_put(np.arange(8.0, dtype=np.float32), jax.sharding.NamedSharding(mesh, jax.P("d")))

    def show(x: Any) -> Any:
        hcb.debug.callback(fail, x, partitioned=True)
        return x

    with pytest.raises(jax.errors.JaxRuntimeError, match="ended, because the callback failed") as caught:
        jax.block_until_ready(jax.jit(show)(x))
        jax.effects_barrier()
    assert "12345" not in str(caught.value)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H15")
def test_where_the_mark_crosses_the_text_says_so() -> None:
    """Under jit over a mesh one device calls, and the error names the others."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("d",))
    x = jax.device_put(np.arange(8.0, dtype=np.float32), jax.sharding.NamedSharding(mesh, jax.P("d")))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"got int8\[12345\], which stands for a failed callback"):
        jax.block_until_ready(jax.jit(lambda x: hcb.call(fail, x, result_shape=x))(x))
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


# Printing --------------------------------------------------------------------------------------------------------

MIXED = [(1, 1.0), ("a", 2.0), (None, 3.0)]


@pytest.mark.contract("H2")
@STAGES
@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (collections.OrderedDict(MIXED), "{ 1=1. a=2. None=3. }\n"),
        (dict(MIXED), "{ 1=1. a=2. None=3. }\n"),
        ([{"x": dict(MIXED)}, ({1j: 1.0, 2j: {"b": 2.0, 3: 4.0}},)],
         "[ { x={ 1=1. a=2. None=3. } } ( { 1j=1. 2j={ b=2. 3=4. } } ) ]\n"),
        (collections.OrderedDict([("b", 1.0), ("a", 2.0)]), "{ a=2. b=1. }\n"),
        (collections.defaultdict(float, {"b": 1.0, "a": 2.0}), "{ a=2. b=1. }\n"),
    ],
    ids=["ordered", "dict", "nested", "sortable", "default"],
)  # fmt: skip
def test_dicts_print_whatever_their_keys(stage: Any, value: Any, printed: str) -> None:
    stream = io.StringIO()
    returned: list[Any] = []

    def show(x: Any) -> Any:
        returned.append(hcb.id_print(value, output_stream=stream))
        return x

    stage(show)(ONE)
    hcb.barrier_wait()
    assert stream.getvalue() == printed
    assert type(returned[0]) is type(value)
    if isinstance(value, dict):
        assert list(returned[0]) == list(value) or sorted(returned[0]) == sorted(value)
        assert [*map(type, returned[0].values())] != []


# Pickling --------------------------------------------------------------------------------------------------------


class NeedsTwo(Exception):
    """Pickle takes it, and cannot make it again."""

    def __init__(self, one: Any, two: Any):
        super().__init__(f"planted {one} {two}")


class HoldsDevice(Exception):
    """Pickle does not take it."""

    def __init__(self, text: str):
        super().__init__(text, jax.devices()[0], lambda: None)


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("planted")

    def __reduce__(self) -> Any:
        raise ValueError("planted")


def failing(*errors: BaseException) -> hcb.CallbackException:
    def fail(error: BaseException) -> Any:
        def tap(value: Any, transforms: Any) -> None:
            raise error

        return tap

    for error in errors:
        hcb.id_tap(fail(error), ONE)
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    return caught.value


WAYS: dict[str, Callable[[Any], Any]] = {
    **{f"protocol {n}": lambda e, n=n: pickle.loads(pickle.dumps(e, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.contract("H13")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "errors",
    [(ValueError("planted"),), (KeyError(1), NeedsTwo(1, 2)), (HoldsDevice("planted"),), (NoText(), ValueError("b")),
     (KeyboardInterrupt("planted"),)],
    ids=["plain", "two arguments", "device", "no text", "interrupt"],
)  # fmt: skip
def test_callback_exceptions_pickle(way: str, errors: Any) -> None:
    error = failing(*errors)
    error.add_note("a note")
    back = WAYS[way](error)
    assert type(back) is hcb.CallbackException and str(back) == str(error)
    assert [(each.callback, each.text) for each in back.failures] == [
        (each.callback, each.text) for each in error.failures
    ]
    assert [*map(str, [each.device for each in back.failures])] == [*map(str, [x.device for x in error.failures])]
    assert back.__notes__ == ["a note"]
    assert back.__cause__ is back.failures[-1].exception
    assert isinstance(back.__cause__, BaseException)
    if isinstance(errors[-1], ValueError):
        assert type(back.__cause__) is ValueError and back.__cause__.args == errors[-1].args
    if isinstance(errors[-1], NeedsTwo) and way.startswith("protocol"):
        assert "NeedsTwo: planted 1 2" in str(back.__cause__)


@pytest.mark.contract("H13")
def test_one_failure_pickles() -> None:
    (failure,) = failing(HoldsDevice("planted")).failures
    back = pickle.loads(pickle.dumps(failure))
    assert (back.callback, back.device, back.text) == (failure.callback, str(failure.device), failure.text)


@pytest.mark.contract("H15")
def test_all_errors_pickle() -> None:
    def raised(call: Callable[[], Any]) -> Exception:
        try:
            call()
        except Exception as error:
            return error
        raise AssertionError("it should raise")

    for call in (
        lambda: hcb.pure_callback(print, 1.5),
        lambda: hcb.call(print, 1, result_shape="text"),
        lambda: hcb.io_callback(print, None, 2**40),
        lambda: hcb.debug.print("{x}"),
        lambda: hcb.debug.print("{}"),
        lambda: jax.jit(lambda: hcb.pure_callback(lambda: 1.5, of_dtype("int32")))(),
        lambda: hcb.pure_callback(lambda: 1.5, of_dtype("int32")),
    ):
        error = raised(call)
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error) and str(back) == str(error)
        # The cause of an error of a callback, too.
        if error.__cause__ is not None:
            assert str(pickle.loads(pickle.dumps(error.__cause__))) == str(error.__cause__)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
