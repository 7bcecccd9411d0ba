"""X1, X6, D3: the guide to external callbacks, example by example, and what it says in passing."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import Record, like

import hostcb as hcb

# Printing --------------------------------------------------------------------------------------------------------


@pytest.mark.contract("X6")
def test_print_shows_the_value_where_python_shows_a_tracer(capsys: pytest.CaptureFixture[str]) -> None:
    @jax.jit
    def f(x):
        y = x + 1
        print(f"traced: {y}")
        hcb.debug.print("run: {}", y)
        return y * 2

    assert int(f(2)) == 6 and int(f(3)) == 8
    jax.effects_barrier()
    first, *others = capsys.readouterr().out.splitlines()
    assert "Tracer" in first and first.startswith("traced: "), first
    assert others == ["run: 3", "run: 4"], f"printed {others}"


# pure_callback ---------------------------------------------------------------------------------------------------


def sine(x: Any, **options: Any) -> Any:
    return hcb.pure_callback(lambda x: np.sin(x).astype(x.dtype), like(x), x, **options)


@pytest.mark.contract("X6")
def test_sine_in_numpy() -> None:
    x = jnp.arange(5.0)
    for name, out in {
        "eager": sine(x),
        "jit": jax.jit(sine)(x),
        "vmap": jax.vmap(functools.partial(sine, vmap_method="sequential"))(x),
        "scan": lax.scan(lambda c, x: (c, sine(x)), None, x)[1],
    }.items():
        np.testing.assert_allclose(out, np.sin(np.arange(5.0)), rtol=1e-6, err_msg=name)
    with pytest.raises(ValueError, match="JVP"):
        jax.grad(lambda x: sine(x).sum())(x)


@pytest.mark.contract("X6")
def test_unused_results_are_eliminated() -> None:
    record = Record()

    def something() -> Any:
        record.add("called")
        return np.int32(0)

    used = jax.jit(lambda: hcb.pure_callback(something, np.int32(0)))
    unused = jax.jit(lambda: (hcb.pure_callback(something, np.int32(0)), 1.0)[1])
    assert float(unused()) == 1.0 and record.all == [], "nobody used it"
    assert int(used()) == 0 and len(record.all) == 1, "used once"


# io_callback -----------------------------------------------------------------------------------------------------


class Generator:
    """A stateful generator of NumPy's, on the host."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)
        self.shapes: list[Any] = []

    def like(self, x: Any) -> Any:
        self.shapes.append(x.shape)
        return self.generator.uniform(size=x.shape).astype(x.dtype)


def drawn(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(size=count).astype(np.float32)


@pytest.mark.contract("X6")
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_random_numbers_from_a_stateful_generator(ordered: bool) -> None:
    def fresh() -> Any:
        host = Generator()
        return jax.jit(lambda x: hcb.io_callback(host.like, x, x, ordered=ordered)), host.shapes

    x = jnp.zeros(5)
    random_like, shapes = fresh()
    helpers.equal(random_like(x), drawn(5), "the first five")
    helpers.equal(random_like(x), drawn(10)[5:], "the next five")
    assert shapes == [(5,)] * 2, f"shapes {shapes}"
    random_like, shapes = fresh()
    helpers.equal(lax.scan(lambda c, x: (c, random_like(x)), None, x)[1], drawn(5), "one in each step")
    assert shapes == [()] * 5, f"shapes {shapes}"
    with pytest.raises(ValueError, match="JVP"):
        jax.grad(lambda x: random_like(x).sum())(x)
    random_like, _ = fresh()
    if ordered:
        with pytest.raises(ValueError, match="vmap"):
            jax.vmap(random_like)(x)
    else:
        assert sorted(jax.vmap(random_like)(x).tolist()) == sorted(drawn(5).tolist()), "in any order"


@pytest.mark.contract("X6")
def test_io_that_nothing_depends_on_still_runs_under_grad() -> None:
    record = Record()

    @jax.jit
    def f(x):
        hcb.io_callback(lambda: record.add("hello"), None)
        return x

    assert float(jax.grad(f)(1.0)) == 1.0
    hcb.barrier_wait()
    assert record.args == ["hello"]


# debug.callback --------------------------------------------------------------------------------------------------


@pytest.mark.contract("X6")
def test_log_a_value_through_all_transformations() -> None:
    record = Record()

    @jax.jit
    def f(x):
        hcb.debug.callback(record.add, x)
        return x

    for transformed, expected in ((f, [1.0]), (jax.grad(f), [1.0]), (lambda x: jax.vmap(f)(jnp.arange(5.0)),
                                                                     [0, 1, 2, 3, 4])):  # fmt: skip
        record.all.clear()
        transformed(1.0)
        jax.effects_barrier()
        assert sorted(record.values) == expected


# The table -------------------------------------------------------------------------------------------------------


def outcome(function: Any, expected: Any) -> str:
    try:
        out = jax.block_until_ready(function())
    except (ValueError, NotImplementedError, TypeError):
        return "no"
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), out, expected)
    return "yes"


# Returns a value, jit, vmap, grad, scan and while_loop, certain to run.
ROWS = {
    "pure_callback": ("yes", "yes", "yes", "no", "yes", "no"),
    "io_callback": ("yes", "yes", "yes", "no", "yes", "yes"),
    "ordered_io_callback": ("yes", "yes", "no", "no", "yes", "yes"),
    "debug_callback": ("no", "yes", "yes", "yes", "yes", "yes"),
}


@pytest.mark.contract("X1")
@pytest.mark.parametrize("row", ROWS)
def test_the_guides_table(row: str) -> None:
    """Where the table says that a debug callback may not run, this implementation promises that it does."""
    record = Record()

    def host(x: Any) -> Any:
        record.add(x)
        return x + 1

    def call(x):
        if row == "pure_callback":
            return hcb.pure_callback(host, like(x), x, vmap_method="sequential")
        if row == "debug_callback":
            return hcb.debug.callback(host, x)
        return hcb.io_callback(host, like(x), x, ordered=row.startswith("ordered"))

    def function(x):
        out = call(x)
        return x + 1 if out is None else out

    x = np.arange(3, dtype=np.float32)
    loop = lambda: lax.while_loop(lambda c: c[0] < 5, lambda c: function(c), jnp.asarray(x))
    found = (
        "no" if call(jnp.asarray(x)) is None else "yes",
        outcome(lambda: jax.jit(function)(x), x + 1),
        outcome(lambda: jax.vmap(function)(x), x + 1),
        outcome(lambda: jax.grad(function)(np.float32(1)), 1.0),
        outcome(lambda: (lax.scan(lambda c, y: (c, function(y)), None, x)[1], loop()), (x + 1, x + 5)),
    )
    record.all.clear()
    jax.block_until_ready(jax.jit(lambda x: (call(x), x)[1])(x))
    hcb.barrier_wait()
    assert (*found, "yes" if record.all else "no") == ROWS[row]


# A progress bar, and large arrays ---------------------------------------------------------------------------------


@pytest.mark.contract("X6")
def test_progress_bar_in_a_scan() -> None:
    """Reports every fourth step and the end, from inside a differentiated scan."""
    lines: list[str] = []
    steps = 10

    def show(step: Any) -> None:
        done = int(step) + 1
        lines.append("[" + "#" * done + "." * (steps - done) + f"] {done}/{steps}")

    def body(c, step):
        due = (step % 4 == 3) | (step == steps - 1)
        lax.cond(due, lambda: hcb.io_callback(show, None, step, ordered=True), lambda: None)
        return jnp.sin(c), c

    expected = ["[####......] 4/10", "[########..] 8/10", "[##########] 10/10"]
    program = lambda x: lax.scan(body, x, jnp.arange(steps))[0]
    for run in (program, jax.jit(program), jax.grad(program), jax.jit(jax.value_and_grad(program))):
        lines.clear()
        jax.block_until_ready(run(1.0))
        hcb.barrier_wait()
        assert lines == expected, f"lines {lines}"


IDENTITIES = {
    "pure_callback": lambda x: hcb.pure_callback(lambda x: x, like(x), x),
    "io_callback": lambda x: hcb.io_callback(lambda x: x, like(x), x, ordered=True),
    "buffer_callback": lambda x: hcb.buffer_callback(
        lambda ctx, out, x: np.copyto(np.asarray(out), np.asarray(x)), like(x)
    )(x),
    "aliased": lambda x: hcb.buffer_callback(lambda ctx, out, x: None, like(x), input_output_aliases={0: 0})(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(np.from_dlpack, lambda x: x)(x),
    "call": lambda x: hcb.call(lambda x: x, x, result_shape=like(x)),
}


@pytest.mark.contract("D3")
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("identity", IDENTITIES)
def test_identity_on_large_arrays(identity: str, size: int) -> None:
    x = jnp.arange(size << 20, dtype=jnp.float32).reshape(size, 1024, 1024)
    out = jax.jit(IDENTITIES[identity])(x)
    assert out.shape == (size, 1024, 1024) and bool(jnp.array_equal(out, x)), "not the identity"


# jax.Arrays ------------------------------------------------------------------------------------------------------

BINDINGS = {
    "pure_callback": lambda f, x: hcb.pure_callback(f, like(x), x),
    "io_callback": lambda f, x: hcb.io_callback(f, like(x), x),
    "ordered_io_callback": lambda f, x: hcb.io_callback(f, like(x), x, ordered=True),
    "debug.callback": lambda f, x: (hcb.debug.callback(f, x), x.at[0].set(7))[1],
}


@pytest.mark.contract("X2")
@pytest.mark.parametrize("how", ["wrapped", "option"])
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("layout", [helpers.EAGER, helpers.JIT, helpers.JIT_DEVICE_5, helpers.MESH], ids=helpers.named)
def test_callbacks_written_for_jax_arrays(layout: helpers.Layout, binding: str, how: str) -> None:
    """JAX's own callbacks get `jax.Array`s; here they ask for them."""
    seen = Record()

    def host(x: Any) -> Any:
        seen.add((type(x), isinstance(x, jax.Array) and x.devices()))
        return x.at[0].set(7) if isinstance(x, jax.Array) else x

    value = np.arange(4, dtype=np.float32)
    wrapped = hcb.jax_arrays(host) if how == "wrapped" else host
    if how == "option":
        jax.config.update("hostcb_jax_arrays", True)
    try:
        program = layout.compile(lambda x: BINDINGS[binding](wrapped, x))
        helpers.equal(np.asarray(jax.block_until_ready(program([value]))), np.float32([7, 1, 2, 3]), binding)
    finally:
        jax.config.update("hostcb_jax_arrays", False)
    hcb.barrier_wait()
    ((kind, where),) = [each.arg for each in seen.all]
    assert issubclass(kind, jax.Array) and {d.platform for d in where} == {"cpu"}, f"{kind} on {where}"


@pytest.mark.contract("X2")
def test_jax_arrays_is_equal_for_equal_functions_and_refuses_what_cannot_be_called() -> None:
    assert hcb.jax_arrays(np.sin) == hcb.jax_arrays(np.sin) == hcb.jax_arrays(hcb.jax_arrays(np.sin))
    assert hash(hcb.jax_arrays(np.sin)) == hash(hcb.jax_arrays(np.sin))
    with pytest.raises(TypeError, match="3"):
        hcb.jax_arrays(3)
    assert type(hcb.pure_callback(lambda x: np.float32(type(x) is np.ndarray), like(1.0), 1.0).item()) is float
    assert hcb.pure_callback(lambda x: np.float32(type(x) is np.ndarray), like(1.0), 1.0) == 1, "NumPy by default"
