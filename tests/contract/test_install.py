"""H27: `install` sends what programs and libraries take from JAX through hostcb, and `uninstall` undoes it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import helpers
import jax
import jax.debug
import jax.experimental.buffer_callback
import jax.numpy as jnp
import numpy as np
import pytest
import test_debug
from jax.debug import callback as debug_callback
from jax.debug import print as debug_print
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.buffer_callback import buffer_callback

# What a library takes before the program installs hostcb.
from jax import pure_callback  # isort: skip

import hostcb as hcb
from hostcb import _compat
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


@pytest.mark.parametrize("stage", ["eager", "jit"])
@pytest.mark.parametrize("name", ["pure_callback", "io_callback", "debug.callback", "debug.callback in two calls"])
def test_functions_get_what_jax_gives_them(name: str, stage: str) -> None:
    """Arrays that have `at`, on a CPU device, which is the default meanwhile."""
    seen: list[Any] = []

    def look(*args: Any, more: Any = None) -> Any:
        seen.append([(type(arg), arg.dtype, arg.shape, arg.devices(), arg.committed) for arg in (*args, more)])
        seen.append((jnp.zeros(()).devices(), np.asarray(args[0].at[0].set(7)).tolist()))
        return args[0]

    def program(x: Any) -> Any:
        arguments, more = (x, jnp.int8(1), jnp.ones((2, 0), jnp.bfloat16)), jnp.bool_(True)
        if name.startswith("debug"):
            if "two" in name:
                return debug_callback(ordered=True)(look, *arguments, more=more)
            return debug_callback(look, *arguments, more=more)
        function = pure_callback if name == "pure_callback" else io_callback
        return function(look, x, *arguments, more=more)

    def run() -> list[Any]:
        seen.clear()
        jax.block_until_ready((jax.jit(program) if stage == "jit" else program)(X))
        jax.effects_barrier()
        return [*seen]

    expected = run()
    with hcb.installed():
        assert through(lambda x: pure_callback(double, x, x)) == "hostcb"
        assert run() == expected
    assert len(expected) == 2


def test_64_bits_are_what_jax_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def look(x: Any) -> None:
        seen.append((x.dtype, x.item()))

    def run() -> None:
        with jax.enable_x64(True):
            jax.jit(lambda x: debug_callback(look, x))(np.int64(2**40))
            jax.effects_barrier()

    run()
    with hcb.installed():
        run()
    assert seen[0] == seen[1] == (np.int64, 2**40)


@pytest.mark.parametrize("text", test_debug.TEXTS)
def test_prints_are_those_of_jax(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    def printed() -> str:
        jax.jit(lambda: test_debug.TEXTS[text](debug_print))()
        jax.effects_barrier()
        return capsys.readouterr().out

    expected = printed()
    with hcb.installed():
        assert printed() == expected
    assert expected


def test_transformations_do_what_jax_does() -> None:
    """Under vmap by each method, and with derivatives of the program around it."""

    def program(x: Any, method: str) -> Any:
        y = pure_callback(lambda x: np.sin(x), x, x, vmap_method=method)
        return y + io_callback(double, x, x)

    def outcome() -> list[Any]:
        methods = ("sequential", "expand_dims", "broadcast_all")
        values = [jax.vmap(lambda x, m=method: program(x, m))(X).tolist() for method in methods]
        return [*values, jax.jit(jax.grad(lambda x: jnp.sum(x * pure_callback(double, X, X))))(X).tolist()]

    expected = outcome()
    with hcb.installed():
        assert outcome() == expected


def test_a_failure_has_the_error_that_programs_catch() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("the reason")

    with hcb.installed():
        with pytest.raises(jax.errors.JaxRuntimeError, match="the reason"):
            jax.block_until_ready(jax.jit(lambda x: pure_callback(fails, x, x))(X))
        with pytest.raises(TypeError, match=r"pure_callback: callback must be callable, got 7"):
            pure_callback(7, X, X)


def test_a_failure_is_logged_as_jax_logs_it_and_no_barrier_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    """The program has had its error, and has dealt with it: it knows of no barrier."""

    def fails(*args: Any) -> Any:
        raise ValueError("the reason")

    programs = [
        lambda x: pure_callback(fails, x, x),
        lambda x: io_callback(fails, x, x, ordered=True),
        lambda x: debug_callback(fails, x),
        lambda x: debug_callback(ordered=True)(fails, x) or x,
    ]

    def logged() -> list[Any]:
        caplog.clear()
        for program in programs:
            with pytest.raises(jax.errors.JaxRuntimeError, match="the reason"):
                jax.block_until_ready(jax.jit(program)(X))
                jax.effects_barrier()
        return [
            (record.name, record.levelname, record.getMessage(), record.exc_info and record.exc_info[0])
            for record in caplog.records
            if record.levelno >= logging.ERROR
        ]

    expected = logged()
    with hcb.installed():
        assert logged() == expected
        hcb.barrier_wait()
    assert len(expected) == len(programs)


def test_all_keep_one_order_with_the_taps_of_the_old_module() -> None:
    seen: list[Any] = []
    note = lambda x: seen.append(int(x))
    with hcb.installed():
        old = importlib.import_module(OLD)

        @jax.jit
        def program(x: Any) -> Any:
            def step(i: Any, x: Any) -> Any:
                old.id_tap(lambda x, transforms: seen.append(int(x)), 3 * i)
                io_callback(note, None, 3 * i + 1, ordered=True)
                debug_callback(note, 3 * i + 2, ordered=True)
                return x

            return jax.lax.fori_loop(0, 50, step, x)

        program(0.0)
        old.barrier_wait()
    assert seen == [*range(150)]


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


def test_what_is_no_value_of_jax_arrives_as_it_is() -> None:
    seen: list[Any] = []
    with hcb.installed():
        for static in (np.array(["w", "b"]), np.array([1, "a"], object), np.array("2020-01-01", "M8[D]")):
            debug_callback(lambda value, static: seen.append((type(value), static)), X, static)
            assert isinstance(X, seen[-1][0]) and seen[-1][1] is static


def test_an_error_that_no_barrier_reports_does_not_say_so_and_counts() -> None:
    def bad(x: Any) -> Any:
        raise KeyError("planted")

    before = hcb.stats()
    with hcb.installed(), pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda x: pure_callback(bad, x, x))(X))
    assert "barrier_wait" not in str(raised.value)
    assert sum(each.failures for each in (hcb.stats() - before).devices.values()) == 1
    hcb.barrier_wait()


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
        with hcb.installed():
            pass
        assert is_installed()
    assert not is_installed()
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


def kernel(x_ref: Any, out_ref: Any) -> None:
    debug_print("in the kernel: {}", x_ref[0])
    pl.debug_print("of pallas: {}", x_ref[1])
    out_ref[...] = 2 * x_ref[...]


def test_jax_keeps_its_own_in_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    program = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype), interpret=True)
    with hcb.installed():
        text = str(jax.make_jaxpr(program)(X))
        assert "debug_print" in text and "host_callback" not in text
        np.testing.assert_array_equal(jax.jit(program)(X), 2 * X)
        jax.effects_barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["in the kernel: 0.0", "of pallas: 1.0"]


def test_jax_keeps_its_own_in_its_debugger_and_its_log(caplog: pytest.LogCaptureFixture) -> None:
    with hcb.installed():
        assert through(lambda x: jax.debug.breakpoint(ordered=True)) == "jax"
        with caplog.at_level(logging.INFO):
            jax.jit(lambda x: jax.debug.log("x is {}", x))(1.0)
            jax.effects_barrier()
        (record,) = [record for record in caplog.records if "x is 1.0" in record.getMessage()]
    assert record.filename == "test_install.py", "the line of the user"


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


def test_what_is_no_plain_function_cannot_be_exchanged() -> None:
    signature = inspect.signature(pure_callback)
    holds = own_callbacks._FUNCTIONS["pure_callback"].signature
    assert holds is not None and holds.problem(pure_callback) is None

    @functools.wraps(pure_callback)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return pure_callback(*args, **kwargs, sharding=signature)

    assert "no plain function" in str(holds.problem(wrapped))
    assert "no plain function" in str(holds.problem(functools.partial(pure_callback)))


def test_hostcb_looks_for_the_bugs_of_jax_with_jaxs_own_callback() -> None:
    """The test of the program with memory kinds lowers JAX's own ordered callback."""
    from hostcb._compat import token_bugs

    with hcb.installed():
        text = str(jax.make_jaxpr(lambda x: token_bugs._ordered_identity(x))(X))
    assert "io_callback" in text and "host_callback" not in text


def test_the_doctor_says_whether_it_is_installed() -> None:
    assert "JAX's callbacks: they are JAX's own; hostcb.install()" in str(hcb.doctor())
    with hcb.installed():
        assert "JAX's callbacks: they go through hostcb, which is installed" in str(hcb.doctor())


def test_exchanging_twice_keeps_the_code_of_jax() -> None:
    """As when an interrupt comes between the steps of `install`, and the program calls it once more."""
    code = pure_callback.__code__
    with hcb.installed():
        _compat.exchange.make(dict.fromkeys(own_callbacks.NAMES, double.__code__))
    assert pure_callback.__code__ is code


def test_on_several_devices_it_does_what_jax_does(devices: list[jax.Device]) -> None:
    """Under jit over a mesh, with parts, and under `shard_map`."""
    mesh = jax.make_mesh((2,), ("x",), devices=devices[:2], axis_types=(jax.sharding.AxisType.Auto,))
    part, x = jax.sharding.PartitionSpec("x"), jnp.arange(4.0)
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    over_mesh = jax.device_put(x, jax.sharding.NamedSharding(mesh, part))
    seen: list[Any] = []
    note = lambda x: seen.append((type(x), x.shape))

    def outcome() -> tuple[Any, ...]:
        seen.clear()

        def whole(x: Any) -> Any:
            debug_callback(note, x)
            debug_callback(note, x, partitioned=True)
            return pure_callback(double, x, x) + io_callback(double, x, x)

        def parts(x: Any) -> Any:
            debug_callback(note, x, ordered=False)
            return pure_callback(double, shape, x)

        results = jax.jit(whole)(over_mesh), jax.jit(jax.shard_map(parts, mesh=mesh, in_specs=part, out_specs=part))(x)
        jax.block_until_ready(results)
        jax.effects_barrier()
        return [each.tolist() for each in results], sorted(map(str, seen))

    expected = outcome()
    with hcb.installed():
        assert outcome() == expected
    assert len(seen) == 5
