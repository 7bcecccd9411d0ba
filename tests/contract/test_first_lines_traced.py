"""The first line of each error while JAX traces; the traceback ends in the user's file (H32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.first_lines import barrier, files_of, name_of
from support.helpers import STAGES
from support.subprocesses import run_program

import hostcb as hcb
from hostcb import debug

pytestmark = pytest.mark.contract("H32")

F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)


def fine(*_: Any, **__: Any) -> Any:
    return ONE


FINE = name_of(fine)
ALL: dict[str, Callable[..., Any]] = {
    "id_tap": lambda x: hcb.id_tap(fine, x),
    "id_print": lambda x: hcb.id_print(x, what="x"),
    "call": lambda x: hcb.call(fine, x, result_shape=F32),
    "pure_callback": lambda x: hcb.pure_callback(fine, F32, x),
    "io_callback": lambda x: hcb.io_callback(fine, F32, x),
    "buffer_callback": lambda x: hcb.buffer_callback(fine, F32)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(fine, F32)(x),
}


def refused(call: Callable[[], Any]) -> Exception:
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        call()
    error = caught.value
    assert files_of(error)[-1] == __file__, files_of(error)
    return error


@STAGES
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (np.array([None]), "every leaf of "),
        *((number, f"the number {number} does not fit int32") for number in (2**40, -(2**31) - 1, 2**70)),
    ],
    ids=["object", "wide", "below", "of no type"],
)
def test_operands_that_are_no_values(kind: str, leaf: Any, why: str, stage: Any) -> None:
    who = "'what: x'" if kind == "id_print" else FINE
    error = refused(lambda: stage(lambda: ALL[kind](leaf))())
    assert str(error).startswith(f"{kind}: {who}: {why}")
    # As JAX's error, which programs may catch, and as what it is.
    assert isinstance(error, TypeError) and isinstance(error, OverflowError) is (type(leaf) is int)
    assert ("while jax_enable_x64 is off" in str(error)) is (type(leaf) is int)


def test_numbers_that_fit_no_type_with_x64_on() -> None:
    with jax.enable_x64(True):
        error = refused(lambda: ALL["io_callback"](2**70))
        assert "does not fit int64, the type that JAX gives an integer. Convert" in str(error)
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"the value {2**63} does not fit int64") as caught:
            jax.block_until_ready(hcb.pure_callback(lambda: 2**63, jax.ShapeDtypeStruct((), np.int64)))
        assert "Set jax_enable_x64" not in str(caught.value)
        barrier()


@pytest.mark.parametrize("kind", ["call", "pure_callback", "io_callback", "buffer_callback", "dlpack_callback"])
def test_derivatives_and_batches(kind: str) -> None:
    error = refused(lambda: jax.grad(ALL[kind])(jnp.float32(1)))
    assert str(error).startswith(f"{kind}: {FINE} was differentiated. ")
    if kind != "io_callback":
        error = refused(lambda: jax.vmap(ALL[kind])(jnp.ones(3)))
        assert str(error).startswith(f"{kind}: {FINE} was batched by vmap. ")


def test_ordered_and_once() -> None:
    error = refused(lambda: jax.vmap(lambda x: hcb.io_callback(fine, F32, x, ordered=True))(jnp.ones(3)))
    assert str(error).startswith(f"io_callback: {FINE} was batched by vmap. ")

    def branch(x: Any) -> Any:
        return jax.lax.cond(x > 0, ALL["io_callback"], lambda x: x, x)

    assert str(refused(lambda: jax.vmap(branch)(jnp.ones(3)))).startswith(f"io_callback: {FINE}: ")

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x < 3, lambda x: x + ALL["io_callback"](x), x)

    assert str(refused(lambda: jax.vmap(loop)(jnp.ones(3)))).startswith(f"io_callback: {FINE}: ")


def generator(*_: Any) -> Any:
    yield 1


ARGUMENTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "tap function": ("id_tap: tap_func must be callable", lambda: hcb.id_tap(3, ONE)),
    "function": ("call: callback_func must be callable", lambda: hcb.call(3, ONE)),
    "generator": ("pure_callback: callback must be", lambda: hcb.pure_callback(generator, F32, ONE)),
    "buffers": ("buffer_callback: callback must be callable", lambda: hcb.buffer_callback(3, F32)),
    "dlpack": ("dlpack_callback: fn must be callable", lambda: hcb.dlpack_callback(3, F32)),
    "debug": ("debug.callback: callback must be callable", lambda: debug.callback(3)),
    "two calls": ("debug.callback: callback must be callable", lambda: debug.callback(ordered=True)(3)),
    "no call": ("debug.callback received unexpected", lambda: debug.callback(x=3)),
    "jax_arrays": ("jax_arrays: function must be callable", lambda: hcb.jax_arrays(3)),
    "format of two calls": (
        "debug.print: the format string '{} {}' asks",
        lambda: debug.print(ordered=True)("{} {}", 1),
    ),
    "stream passed twice": (
        f"dlpack_callback: {FINE} was given a keyword argument `stream`",
        lambda: hcb.dlpack_callback(fine, F32, with_stream=True)(ONE, stream=ONE),
    ),
    "stream": ("id_print: output_stream must have", lambda: hcb.id_print(ONE, output_stream=3)),
    "format": ("debug.print: the format must be", lambda: debug.print(3)),
    "position": ("debug.print: the format string '{}' asks for", lambda: debug.print("{}")),
    "name": ("debug.print: the format string '{x}' asks for 'x'", lambda: debug.print("{x}")),
    "unused": ("debug.print: the format string 'a' does not match", lambda: debug.print("a", 3)),
    "path": ("hostcb.trace: path must be", lambda: hcb.trace(3)),
    "index": (f"id_tap: {FINE}: device_index must be 0", lambda: hcb.id_tap(fine, ONE, device_index=-1)),
    "no index": (f"call: {FINE}: device_index must be an", lambda: hcb.call(fine, ONE, device_index="0")),
    "method": (f"call: {FINE}: vmap_method must be", lambda: hcb.call(fine, ONE, vmap_method="all")),
    "sharding": (f"io_callback: {FINE}: sharding must be", lambda: hcb.io_callback(fine, None, ONE, sharding=3)),
    "shape": (f"call: {FINE}: result_shape='a' does not", lambda: hcb.call(fine, ONE, result_shape="a")),
    "shapes": (f"pure_callback: {FINE}: result_shape_dtypes=1.5", lambda: hcb.pure_callback(fine, 1.5, ONE)),
    "64 bits": (
        f"io_callback: {FINE}: result_shape_dtypes cannot specify 64-bit",
        lambda: hcb.io_callback(fine, jax.ShapeDtypeStruct((), np.float64)),
    ),
    "alias": (
        f"buffer_callback: {FINE}: input_output_aliases contains the mapping '3:0'",
        lambda: hcb.buffer_callback(fine, F32, input_output_aliases={3: 0})(ONE),
    ),
    "aliases": (
        f"dlpack_callback: {FINE}: input_output_aliases must be a dict",
        lambda: hcb.dlpack_callback(fine, F32, input_output_aliases=3)(ONE),
    ),
    "packed": (f"buffer_callback: {FINE}: int4 has less", lambda: ALL["buffer_callback"](jnp.ones((), jnp.int4))),
    "ref": (f"dlpack_callback: {FINE}: ", lambda: ALL["dlpack_callback"](jax.new_ref(jnp.float32(1)))),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments(argument: str) -> None:
    first, call = ARGUMENTS[argument]
    assert str(refused(call)).startswith(first)


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("barrier_wait[inner]", lambda: hcb.barrier_wait("inner")),
        ("stop_outfeed_receiver", hcb.stop_outfeed_receiver),
    ],
)
def test_a_wait_in_a_callback_ends_in_the_users_file(name: str, wait: Callable[[], None]) -> None:
    shown: list[set[str]] = []

    def tap(*_: Any) -> None:
        try:
            wait()
        except RuntimeError as error:
            shown.append({*files_of(error)})
            raise

    hcb.id_tap(tap, ONE)
    failure = barrier().failures[0]
    assert f"{name} was called from inside a callback" in failure.headline
    # Where the function catches it, and where the barrier reports it.
    assert [*shown, {*files_of(failure.exception)}] == [{__file__}] * 2


def test_frames_are_shown_to_those_who_ask() -> None:
    ended = run_program(
        """
import traceback
jax.config.update("jax_traceback_filtering", "off")
def fail(*_): raise OSError
try:
    hcb.id_tap(3, 1.0)
except TypeError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
hcb.id_tap(fail, 1.0)
try:
    hcb.barrier_wait()
except hcb.CallbackException as error:
    print([frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)])
""",
        devices=None,
    ).check()
    wanted = ["['<module>', 'id_tap', 'check_callable']", "['deliver', 'hand_to', '<lambda>', 'fail']"]
    assert ended.lines == wanted, str(ended)


def test_a_mistake_of_hostcb_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostcb._api import host_callback

    monkeypatch.setattr(host_callback, "bind", None)
    with pytest.raises(TypeError, match="not callable") as caught:
        hcb.call(fine, ONE)
    assert files_of(caught.value)[-1] == host_callback.__file__
