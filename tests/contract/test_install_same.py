"""H27: under `install` functions get, and programs see, what they do with JAX's own callbacks."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_debug
from jax import pure_callback
from jax.debug import callback as debug_callback
from jax.debug import print as debug_print
from jax.experimental import io_callback
from test_install import OLD, X, double, through

import hostcb as hcb

pytestmark = pytest.mark.contract("H27")


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
        with pytest.raises(TypeError, match=r"pure_callback: .*7"):
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


@pytest.mark.contract("H18")
def test_equal_prints_make_equal_programs() -> None:
    def parameters() -> Any:
        (equation,) = jax.make_jaxpr(lambda x: debug_print("{}", x))(X).jaxpr.eqns
        return equation.params["callback"]

    with hcb.installed():
        first, second = parameters(), parameters()
    assert first == second and hash(first) == hash(second)
    assert isinstance(hash(first.function), int)


def test_a_log_that_raises_does_not_replace_the_failure() -> None:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the disk of the log is full")

    def bad(x: Any) -> Any:
        raise KeyError("planted")

    handler = Full()
    logging.getLogger("jax").addHandler(handler)
    try:
        for function in (pure_callback, io_callback):
            with hcb.installed(), pytest.raises(jax.errors.JaxRuntimeError, match="planted") as raised:
                jax.block_until_ready(jax.jit(lambda x, function=function: function(bad, x, x))(X))
            assert "the disk" not in str(raised.value)
    finally:
        logging.getLogger("jax").removeHandler(handler)


def test_a_key_may_be_returned_which_jax_refuses() -> None:
    key = jax.random.key(3)
    with hcb.installed():
        found = jax.jit(lambda key: pure_callback(lambda _: jax.random.key(5), key, key))(key)
    assert jax.random.key_data(found).tolist() == jax.random.key_data(jax.random.key(5)).tolist()


def test_a_buffer_callback_with_a_side_effect_runs_although_its_result_is_unused() -> None:
    from jax.experimental.buffer_callback import buffer_callback

    seen: list[str] = []

    def fill(context: Any, out: Any, x: Any) -> None:
        seen.append("filled")
        np.asarray(out)[...] = np.asarray(x)

    with hcb.installed():
        program = jax.jit(lambda x: (buffer_callback(fill, X, has_side_effect=True)(x), x)[1])
        for _ in range(3):
            jax.block_until_ready(program(X))
        hcb.barrier_wait()
    assert seen == ["filled"] * 3


@pytest.mark.contract("X5")
@pytest.mark.parametrize("function", [pure_callback, io_callback])
def test_the_device_that_a_sharding_names_calls_back(function: Any, devices: list[jax.Device]) -> None:
    over_mesh = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(jax.make_mesh((8,), ("x",)), jax.P("x")))
    for device in (devices[-1], devices[1]):
        there = jax.sharding.SingleDeviceSharding(device)
        with hcb.installed():
            before = hcb.stats()
            jax.block_until_ready(
                jax.jit(lambda x, there=there: function(lambda y: y, x, x, sharding=there))(over_mesh)
            )
        called = [name for name, of in (hcb.stats() - before).devices.items() if of.calls]
        assert called == [f"cpu:{device.id}"]


@pytest.mark.parametrize("partitioned", [False, True])
def test_each_form_prints_and_receives_its_parts(
    partitioned: bool, devices: list[jax.Device], capsys: pytest.CaptureFixture[str]
) -> None:
    mesh = jax.make_mesh((2,), ("x",), devices=devices[:2])
    parts = jax.device_put(np.arange(2, dtype=np.int32), jax.sharding.NamedSharding(mesh, jax.P("x")))
    seen: list[Any] = []
    note = lambda x: seen.append(np.asarray(x).tolist())

    def program(x: Any) -> Any:
        debug_callback(note, x, partitioned=partitioned)
        debug_callback(partitioned=partitioned)(note, x)
        debug_print("one {}", x, partitioned=partitioned)
        debug_print(partitioned=partitioned)("two {}", x)
        return x + 1

    def outcome() -> tuple[Any, ...]:
        seen.clear()
        jax.block_until_ready(jax.jit(lambda x: program(x))(parts))
        jax.effects_barrier()
        return sorted(seen), sorted(capsys.readouterr().out.splitlines())

    expected = outcome()
    with hcb.installed():
        assert outcome() == expected
    assert len(expected[0]) == len(expected[1]) == (4 if partitioned else 2)


def test_an_operand_outside_jit_keeps_its_devices(devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((2,), ("x",), devices=devices[:2])
    over_mesh = jax.device_put(jnp.arange(2.0), jax.sharding.NamedSharding(mesh, jax.P("x")))
    seen: list[Any] = []

    def outcome() -> list[Any]:
        seen.clear()
        debug_callback()(lambda *, x: seen.append((x.devices(), x.tolist())), x=jax.device_put(2.0, devices[-1]))
        debug_callback(lambda x: seen.append((x.devices(), x.tolist())), over_mesh)
        jax.effects_barrier()
        return [*seen]

    expected = outcome()
    with hcb.installed():
        assert outcome() == expected
    assert len(expected) == 2


@pytest.mark.contract("H32")
@pytest.mark.parametrize("name", ["float64", "int64"])
def test_a_wide_result_of_another_shape_is_named_as_it_came(name: str) -> None:
    with hcb.installed(), pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda x: pure_callback(lambda x: np.zeros(4, name), x, x))(X))
    assert f"returned {name}[4] in place of float32[3]" in str(raised.value)


def test_buffers_in_place_are_those_of_jax() -> None:
    from jax.experimental.buffer_callback import buffer_callback

    def adds_one(context: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    def outcome() -> Any:
        return np.asarray(jax.jit(buffer_callback(adds_one, X, input_output_aliases={0: 0}))(X + 1)).tolist()

    expected = outcome()
    with hcb.installed():
        assert outcome() == expected == [2, 3, 4]


def test_a_print_has_the_options_of_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    def printed() -> str:
        with np.printoptions(precision=2):
            program = jax.jit(lambda x: debug_print("{}", x)).lower(X).compile()
        program(X / 3)
        jax.effects_barrier()
        return capsys.readouterr().out

    expected = printed()
    with hcb.installed():
        assert printed() == expected
