"""H27: `install` sends what programs and libraries take from JAX through hostcb, and `uninstall` undoes it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.debug
import jax.experimental.buffer_callback
import jax.numpy as jnp
import numpy as np
import pytest
from jax.debug import callback as debug_callback
from jax.debug import print as debug_print
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from support import helpers

# What a library takes before the program installs hostcb.
from jax import pure_callback  # isort: skip

import hostcb as hcb
from hostcb._compat import own_callbacks

pytestmark = pytest.mark.contract("H27")

OLD = "jax.experimental.host_callback"
X = jnp.arange(3, dtype=jnp.float32)


def double(x: Any) -> Any:
    return 2 * x


def fill(context: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = 2 * np.asarray(x)


# Each of JAX's callbacks, taken before: its function, and a program with it.
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "pure_callback": (pure_callback, lambda x: pure_callback(double, x, x)),
    "io_callback": (io_callback, lambda x: io_callback(double, x, x)),
    "debug.callback": (debug_callback, lambda x: debug_callback(double, x)),
    "debug.callback in two calls": (debug_callback, lambda x: debug_callback(ordered=True)(double, x)),
    "debug.print": (debug_print, lambda x: debug_print("{}", x)),
    "debug.print in two calls": (debug_print, lambda x: debug_print(ordered=True)("{}", x)),
    "buffer_callback": (buffer_callback, lambda x: buffer_callback(fill, x)(x)),
}
EACH = pytest.mark.parametrize("name", PROGRAMS)


def kept_in_closure(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(double, x, x)


def kept_as_default(x: Any, function: Callable[..., Any] = pure_callback) -> Any:
    return function(double, x, x)


class Keeping:
    call = staticmethod(io_callback)

    def __init__(self) -> None:
        self.function = pure_callback


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "closure": kept_in_closure(io_callback),
    "default": kept_as_default,
    "partial": functools.partial(pure_callback, double, X),
    "class": lambda x: Keeping.call(double, x, x),
    "instance": lambda x, kept=Keeping(): kept.function(double, x, x),
    "container": lambda x, kept=(pure_callback,): kept[0](double, x, x),
    "module": lambda x: jax.pure_callback(double, x, x),
}


def through(program: Callable[[Any], Any]) -> str:
    """The implementation of the callback of a program."""
    # A function of its own: JAX finds what it has traced by the function.
    (equation,) = jax.make_jaxpr(lambda x: program(x))(X).eqns
    return "hostcb" if "host_callback" in equation.primitive.name else "jax"


@EACH
def test_each_callback_goes_through_hostcb_while_it_is_installed(name: str) -> None:
    program = PROGRAMS[name][1]
    assert through(program) == "jax"
    hcb.install()
    try:
        assert through(program) == "hostcb"
    finally:
        hcb.uninstall()
    assert through(program) == "jax"


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_does_wherever_a_library_keeps_it(holder: str) -> None:
    assert through(HOLDERS[holder]) == "jax"
    with hcb.installed():
        assert through(HOLDERS[holder]) == "hostcb"
        np.testing.assert_array_equal(jax.jit(HOLDERS[holder])(X), 2 * X)


@EACH
def test_the_functions_of_jax_are_the_same_before_meanwhile_and_after(name: str) -> None:
    function = PROGRAMS[name][0]

    def state() -> tuple[Any, ...]:
        return (
            inspect.signature(function),
            function.__name__,
            function.__qualname__,
            function.__module__,
            function.__doc__,
            function.__defaults__,
            function.__kwdefaults__,
        )

    before, code = state(), function.__code__
    with hcb.installed():
        assert state() == before
        assert function.__code__ is not code
        parameters = inspect.signature(function).parameters.values()
        positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        assert list(function.__code__.co_varnames[: function.__code__.co_argcount]) == positional
    assert state() == before
    assert function.__code__ is code
    assert jax.pure_callback is pure_callback and jax.debug.print is debug_print


def test_a_jitted_function_is_traced_again_and_an_executable_stays() -> None:
    traced: list[str] = []

    @jax.jit
    def program(x: Any) -> Any:
        traced.append("hostcb" if pure_callback.__code__ is not code else "jax")
        return pure_callback(lambda x: np.asarray(x) + 1, x, x)

    code = pure_callback.__code__
    ahead = program.lower(X).compile()
    assert [program(X)[0], program(X)[0]] == [1, 1]
    with hcb.installed():
        assert [program(X)[0], program(X)[0]] == [1, 1]
        assert traced == ["jax", "hostcb"]
        inside = program.lower(X).compile()
        assert ahead(X)[0] == 1
    assert [program(X)[0], inside(X)[0]] == [1, 1]
    assert traced.count("hostcb") == 1, "an executable of the block can run after it; the function is JAX's again"
    with hcb.installed():
        assert program(X)[0] == 1
    assert traced.count("hostcb") == 2, "each block begins with new traces, since one may go on during a change"


def test_a_trace_that_goes_on_during_a_change_is_not_found_later() -> None:
    """It has JAX's own callback, as it came there after `uninstall`; the next `install` begins with new traces."""
    entered, change = threading.Event(), threading.Event()
    traces: list[None] = []

    @jax.jit
    def program(x: Any) -> Any:
        traces.append(None)
        if len(traces) == 1:
            entered.set()
            change.wait(60)
        return pure_callback(double, x, x)

    hcb.install()
    tracing = threading.Thread(target=program, args=(X,))
    try:
        tracing.start()
        assert entered.wait(60)
        hcb.uninstall()
        change.set()
        tracing.join()
        hcb.install()
        before = hcb.stats()
        jax.block_until_ready(program(X))
        assert sum(each.calls["pure_callback"] for each in (hcb.stats() - before).devices.values()) == 1
        assert len(traces) == 2
    finally:
        change.set()
        hcb.uninstall()


def is_installed() -> bool:
    return through(lambda x: pure_callback(double, x, x)) == "hostcb"


def test_install_is_a_switch_and_blocks_are_counted() -> None:
    hcb.uninstall()
    assert not is_installed()
    hcb.install()
    hcb.install()
    with hcb.installed():
        assert is_installed()
    assert is_installed(), "the program has asked for it"
    with hcb.installed():
        hcb.uninstall()
        assert is_installed(), "the block has asked for it"
        hcb.uninstall()
        with hcb.installed():
            pass
        assert is_installed()
    assert not is_installed()
    with hcb.installed():
        hcb.install()
    assert is_installed(), "the program has asked for it in a block"
    hcb.uninstall()
    with pytest.raises(KeyError), hcb.installed():
        raise KeyError
    assert not is_installed()


def test_blocks_of_threads_overlap() -> None:
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with hcb.installed():
            entered.set()
            assert left.wait(helpers.DEADLINE)
            seen.append(is_installed())

    seen: list[bool] = []
    thread = threading.Thread(target=other)
    with hcb.installed():
        thread.start()
        assert entered.wait(helpers.DEADLINE)
    left.set()
    thread.join(helpers.DEADLINE)
    assert seen == [True], "the block of the other thread has not ended"
    assert not is_installed()


def test_the_old_module_can_be_imported_in_each_form() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(OLD)
    with hcb.installed():
        names: dict[str, Any] = {}
        exec(f"import {OLD}\nimport {OLD} as one\nfrom jax.experimental import host_callback as two", names)
        exec(f"from {OLD} import *", names)
        assert names["one"] is names["two"] is names["jax"].experimental.host_callback is sys.modules[OLD]
        for name in ("id_tap", "id_print", "call", "barrier_wait", "stop_outfeed_receiver", "CallbackException"):
            assert names[name] is getattr(hcb, name)
        assert names["TapFunctionException"] is hcb.TapFunctionException
        assert importlib.util.find_spec(OLD) is not None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(OLD)
    assert not hasattr(jax.experimental, "host_callback")


@pytest.mark.parametrize("stub", [types.ModuleType(OLD), None], ids=["a module", "forbidden"])
def test_the_old_module_takes_the_place_of_what_a_program_has_put_there(
    stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, OLD, stub)
    with hcb.installed():
        names: dict[str, Any] = {}
        exec("from jax.experimental import host_callback", names)
        assert names["host_callback"].id_tap is importlib.import_module(OLD).id_tap is hcb.id_tap


def test_a_module_that_comes_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    later = types.ModuleType(OLD)
    hcb.install()
    try:
        monkeypatch.setitem(sys.modules, OLD, later)
        monkeypatch.setattr(jax.experimental, "host_callback", later)
    finally:
        hcb.uninstall()
    try:
        assert sys.modules[OLD] is later and jax.experimental.host_callback is later  # type: ignore[attr-defined]
    finally:
        monkeypatch.undo()
        sys.modules.pop(OLD, None)
        vars(jax.experimental).pop("host_callback", None)


@EACH
def test_a_jax_with_another_callback_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = own_callbacks._FUNCTIONS[name.partition(" ")[0]]
    monkeypatch.setattr(entry, "value", None)
    monkeypatch.setattr(entry, "problem", "takes (x)")
    code = pure_callback.__code__
    with pytest.raises(hcb.UnknownJaxError, match=r"hostcb.install\(\).*takes \(x\)"):
        hcb.install()
    with pytest.raises(hcb.UnknownJaxError), hcb.installed():
        raise AssertionError("the block runs")
    assert pure_callback.__code__ is code and OLD not in sys.modules
    monkeypatch.undo()
    assert not is_installed(), "the refused requests are not kept"


def test_the_doctor_says_whether_it_is_installed() -> None:
    assert "JAX's callbacks: they are JAX's own; hostcb.install()" in str(hcb.doctor())
    with hcb.installed():
        assert "JAX's callbacks: they go through hostcb, which is installed" in str(hcb.doctor())
