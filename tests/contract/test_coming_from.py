"""Each row of the tables of differences, for those who come from host_callback or from JAX's own callbacks, is true."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from subprocesses import run_program

import hostcb as hcb

DOCS = Path(__file__).parents[2] / "docs"
F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)
JAX = SimpleNamespace(
    name="jax",
    pure=jax.pure_callback,
    io=jax.experimental.io_callback,
    debug=jax.debug.callback,
    print=jax.debug.print,
)
HOSTCB = SimpleNamespace(
    name="hostcb", pure=hcb.pure_callback, io=hcb.io_callback, debug=hcb.debug.callback, print=hcb.debug.print
)
Library = Any


def rows(page: str, title: str) -> list[str]:
    """The first cells of the tables of a section."""
    section = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", (DOCS / page).read_text(), re.M | re.S)
    assert section, f"{page} has a section {title}"
    tables = re.findall(r"^\| ?(.*?) ?\|", section[1], re.M)
    return [cell for cell in tables if cell not in ("", "---", "what fails", "what happens", "flag")]


@pytest.fixture(autouse=True)
def after() -> Iterator[None]:
    logging.getLogger("jax").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("jax").setLevel(logging.NOTSET)
    # The rows look at the errors of computations; the barrier's are in test_first_lines.py.
    with contextlib.suppress(hcb.CallbackException):
        hcb.barrier_wait()


def error_of(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        jax.block_until_ready(call())
        jax.effects_barrier()
    return caught.value


def fail(*_: Any) -> Any:
    raise OSError("disk full")


def generator(*_: Any) -> Iterator[int]:
    yield 1


def first_run(lib: Library) -> None:
    for function in (lambda x: lib.pure(fail, F32, x), lambda x: lib.io(fail, F32, x, ordered=True)):
        error = error_of(lambda: jax.jit(function)(ONE))
        assert type(error) is jax.errors.JaxRuntimeError
        if lib is JAX:
            assert error.__cause__ is None
            assert str(error).startswith("INTERNAL: CpuCallback error calling callback")
        else:
            assert isinstance(error.__cause__, OSError)
            assert "_callback: fail (" in str(error).splitlines()[0]


def later_run(lib: Library) -> None:
    armed = [False]

    def function(x: Any) -> Any:
        return fail() if armed[0] else np.asarray(x)

    program = jax.jit(lambda x: lib.pure(function, F32, x) + 1)
    for _ in range(3):
        assert program(ONE) == 2
    armed[0] = True
    assert type(error_of(lambda: program(ONE))) is (ValueError if lib is JAX else jax.errors.JaxRuntimeError)


def debug_outside_jit(lib: Library) -> None:
    assert type(error_of(lambda: lib.debug(fail, ONE))) is (OSError if lib is JAX else jax.errors.JaxRuntimeError)
    assert type(error_of(lambda: jax.jit(lambda x: lib.debug(fail, x))(ONE))) is jax.errors.JaxRuntimeError


def wrong_results(lib: Library) -> None:
    for returned in (np.zeros(3, np.float32), np.int32(1), (ONE, ONE)):
        error = error_of(lambda: jax.jit(lambda x: lib.pure(lambda _: returned, F32, x))(ONE))
        assert type(error) is jax.errors.JaxRuntimeError
        assert (" in place of float32[]" in str(error).splitlines()[0]) == (lib is HOSTCB)


def no_functions(lib: Library) -> None:
    for function in (3, generator):
        program = jax.jit(lambda x: lib.pure(function, F32, x))
        if lib is HOSTCB:
            assert type(error_of(lambda: program.trace(ONE))) is TypeError
        else:
            program.trace(ONE)
            assert type(error_of(lambda: program(ONE))) is jax.errors.JaxRuntimeError


def formats(lib: Library) -> None:
    for text, kind in (("{}", IndexError), ("{x}", KeyError)):
        error = error_of(lambda: lib.print(text))
        assert isinstance(error, kind)
        assert (repr(text) in str(error)) == (lib is HOSTCB)


def refusals(lib: Library) -> None:
    x = jnp.ones(2)
    for call, kind in (
        (lambda: jax.vmap(lambda x: lib.pure(fail, F32, x))(x), NotImplementedError),
        (lambda: jax.vmap(lambda x: lib.io(fail, F32, x, ordered=True))(x), ValueError),
        (lambda: jax.grad(lambda x: lib.pure(fail, F32, x))(ONE), ValueError),
    ):
        error = error_of(call)
        assert type(error) is kind
        assert ("fail (" in str(error)) == (lib is HOSTCB)


def arrays(lib: Library) -> None:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(x)
        if lib is HOSTCB:
            x[...] = 7
        return ONE

    lib.pure(look, F32, ONE)
    jax.jit(lambda x: lib.io(look, F32, x))(ONE)
    lib.debug(look, ONE)
    jax.effects_barrier()
    assert len(seen) == 3
    assert all(isinstance(x, np.ndarray if lib is HOSTCB else jax.Array) for x in seen)


def differentiated_scans(lib: Library) -> None:
    for callback in (lambda f: lib.io(f, None), lambda f: lib.debug(f)):
        seen: list[int] = []

        def step(carry: Any, _: Any) -> Any:
            callback(lambda: seen.append(1))
            return carry * 2, None

        def program(x: Any) -> Any:
            return jax.lax.scan(step, x, None, length=3)[0]

        jax.block_until_ready(jax.jit(jax.grad(program))(ONE))
        jax.effects_barrier()
        assert len(seen) == (3 if lib is HOSTCB else 1)


def ordered_debug_on_devices(lib: Library) -> None:
    seen: list[float] = []

    def program(x: Any) -> Any:
        lib.debug(lambda x: seen.append(float(x)), x, ordered=True)
        lib.debug(lambda x: seen.append(float(x) + 10), x, ordered=True)
        return x

    if lib is JAX:
        assert type(error_of(lambda: jax.pmap(program)(jnp.arange(8.0)))) is ValueError
        return
    jax.block_until_ready(jax.pmap(program)(jnp.arange(8.0)))
    jax.effects_barrier()
    assert sorted(seen) == [*range(8), *range(10, 18)]
    assert all(seen.index(n) < seen.index(n + 10) for n in range(8))


def orders(lib: Library) -> None:
    """JAX passes a token for each kind from callback to callback, hostcb one for all."""

    def program(x: Any) -> Any:
        lib.io(print, None, ordered=True)
        lib.debug(print, ordered=True)
        lib.io(print, None, ordered=True)
        return x

    (main,) = [line for line in jax.jit(program).lower(ONE).as_text().splitlines() if "func public @main" in line]
    assert len(re.findall(r"%arg\d+: !stablehlo\.token", main)) == (2 if lib is JAX else 1), main


def failures(lib: Library) -> None:
    error_of(lambda: lib.io(fail, None))
    if lib is JAX:
        hcb.barrier_wait()
    else:
        with pytest.raises(hcb.CallbackException):
            hcb.barrier_wait()


def devices(lib: Library) -> None:
    told: list[Any] = []
    if lib is HOSTCB:
        hcb.id_tap(lambda _, transforms, device: told.append(device), ONE, tap_with_device=True)
        hcb.call(lambda _, device: told.append(device), ONE, call_with_device=True)
        hcb.barrier_wait()
        assert told == [jax.devices()[0]] * 2
    else:
        error = error_of(lambda: lib.io(lambda _: None, None, ONE, call_with_device=True))
        assert "call_with_device" in str(error)


FAILURES: dict[str, Callable[[Library], None]] = {
    "a function, in the first run of a program": first_run,
    "a `pure_callback`'s function, in a later run": later_run,
    "a `debug.callback`'s function, outside `jit`": debug_outside_jit,
    "a result of another shape, dtype or number of leaves": wrong_results,
    "an object that is no function, a generator function": no_functions,
    "a format string that lacks an argument": formats,
    "`vmap` without a method, of an ordered callback; `grad`": refusals,
}
DIFFERENCES: dict[str, Callable[[Library], None]] = {
    "arrays in a function": arrays,
    "`io_callback` and `debug.callback` without operands, in a `scan` that is differentiated": differentiated_scans,
    "`debug.callback(ordered=True)` on several devices": ordered_debug_on_devices,
    "ordered `io_callback`s and ordered `debug.callback`s": orders,
    "failures": failures,
    "devices": devices,
}


@pytest.mark.contract("H32", "X3", "X4")
@pytest.mark.parametrize("lib", [JAX, HOSTCB], ids=lambda lib: lib.name)
@pytest.mark.parametrize("row", [*FAILURES, *DIFFERENCES])
def test_rows_for_those_who_come_from_jax(row: str, lib: Library) -> None:
    {**FAILURES, **DIFFERENCES}[row](lib)


def test_each_row_is_tried() -> None:
    page = "coming-from-jax-callbacks.md"
    assert rows(page, "Errors, and where they are raised") == [*FAILURES]
    assert rows(page, "What else differs") == [*DIFFERENCES]


@pytest.mark.contract("H1")
def test_jax_has_no_host_callback() -> None:
    assert "jax.experimental.host_callback" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        import jax.experimental.host_callback  # noqa: F401


@pytest.mark.contract("H13")
def test_the_names_of_host_callback() -> None:
    cells = " ".join(re.findall(r"^\| .*", (DOCS / "coming-from-host-callback.md").read_text(), re.M))
    for name in {*re.findall(r"hcb\.(\w+)", cells)}:
        assert hasattr(hcb, name), name
    assert hcb.TapFunctionException is hcb.CallbackException


@pytest.mark.contract("H16")
def test_the_flags_of_host_callback() -> None:
    """They exist from the import of hostcb on, and before it they do not."""
    flags = rows("coming-from-host-callback.md", "Flags")
    assert len(flags) == 4
    values = {flag.strip("`"): "1" if flag.endswith("size`") else "False" for flag in flags}
    ended = run_program(
        f"""
import jax
for flag, value in {values}.items():
    try:
        jax.config.update(flag, value)
    except AttributeError:
        print("unknown")
import hostcb
for flag, value in {values}.items():
    jax.config.update(flag, value)
print("known")
""",
        devices=None,
        prelude="",
    ).check()
    assert ended.lines == ["unknown"] * 4 + ["known"], str(ended)


def call_of(function: Callable[[Any], Any], **options: Any) -> Callable[[Any], Any]:
    return lambda x: hcb.call(function, x, result_shape=F32, **options)


@pytest.mark.contract("H1", "H3", "H8")
def test_errors_of_those_who_come_from_host_callback() -> None:
    for call, kind in (
        (lambda: hcb.id_tap(print, ONE, what="x"), TypeError),
        (lambda: hcb.call(print, ONE, result_shape="text"), ValueError),
        (lambda: jax.jvp(call_of(fail), (ONE,), (ONE,)), NotImplementedError),
        (lambda: jax.grad(call_of(fail))(ONE), NotImplementedError),
        (lambda: jax.vmap(call_of(fail))(jnp.ones(2)), NotImplementedError),
    ):
        assert isinstance(error_of(call), kind)
    double = call_of(lambda x: 2 * x, vmap_method="sequential")
    assert jax.vmap(double)(jnp.ones(2)).tolist() == [2, 2]
