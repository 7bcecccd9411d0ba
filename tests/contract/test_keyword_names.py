"""Keyword arguments of the user's function may have any name: those of the parameters of hostcb's wrappers too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostcb as hcb

X = jnp.float32(2)
SCALAR = jax.ShapeDtypeStruct((), np.float32)
NAMES = (
    *("self", "cls", "context", "out", "stream", "function", "args", "kwargs", "text", "device", "not a name", "fun"),
    *("spec", "tree", "values", "format", "printer", "operands", "sharding_", "kind", "callback_func", "tap_func"),
    *("fn", "host", "result", "arg", "other", "index", "transforms", "primitive", "params", "name", "dtype", "shape"),
)
# All in one call, each with a value of its own: one that goes astray, or into another's place, shows in the sum.
WEIGHTS = {name: float(place) for place, name in enumerate(NAMES, 1)}
TOTAL = float(X) * sum(weight * weight for weight in WEIGHTS.values())
WAYS = pytest.mark.parametrize("stage", [jax.jit, lambda f: f, jax.vmap], ids=["jit", "eager", "vmap"])


def run(stage: Any, function: Callable[[Any], Any]) -> Any:
    out = stage(function)(jnp.full(3, X) if stage is jax.vmap else X)
    hcb.barrier_wait()
    return out


def named_values(x: Any) -> dict[str, Any]:
    return {name: weight * x for name, weight in WEIGHTS.items()}


def total(named: dict[str, Any]) -> Any:
    """`TOTAL` if each name came with its own value."""
    assert {*named} == {*NAMES}, f"keyword arguments {sorted(named)}"
    return sum(np.asarray(named[name]) * np.float32(weight) for name, weight in WEIGHTS.items())


def check(out: Any) -> None:
    np.testing.assert_array_equal(out, np.full_like(out, TOTAL))


@pytest.fixture(params=[False, True], ids=["numpy", "jax_arrays"])
def jax_arrays(request: pytest.FixtureRequest) -> Iterator[bool]:
    jax.config.update("hostcb_jax_arrays", request.param)
    yield request.param
    jax.config.update("hostcb_jax_arrays", False)


EXTERNAL = {
    "pure": lambda f, x, named: hcb.pure_callback(f, SCALAR, x, vmap_method="sequential", **named),
    "io": lambda f, x, named: hcb.io_callback(f, SCALAR, x, **named),
    "wrapped": lambda f, x, named: hcb.io_callback(hcb.jax_arrays(f), SCALAR, x, **named),
}


@pytest.mark.contract("X1")
@pytest.mark.usefixtures("jax_arrays")
@WAYS
@pytest.mark.parametrize("kind", EXTERNAL)
def test_external_callbacks(kind: str, stage: Any) -> None:
    check(run(stage, lambda x: EXTERNAL[kind](lambda _, **named: total(named), x, named_values(x))))


@pytest.mark.contract("X4")
@pytest.mark.usefixtures("jax_arrays")
@WAYS
@pytest.mark.parametrize("two_calls", [False, True])
def test_debug_callback(two_calls: bool, stage: Any) -> None:
    seen: list[float] = []

    def see(**named: Any) -> None:
        seen.append(float(total(named)))

    def show(x: Any) -> Any:
        if two_calls:
            hcb.debug.callback(ordered=True)(see, **named_values(x))
        else:
            hcb.debug.callback(see, **named_values(x), ordered=True)
        return x

    run(stage, show)
    assert {*seen} == {TOTAL}


@pytest.mark.contract("X4")
@pytest.mark.parametrize("name", ["callback", "fmt", "ordered", "partitioned", "skip_format_check", "sharding"])
def test_names_of_the_functions_own_parameters_go_into_the_second_call(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[float] = []
    hcb.debug.callback()(lambda **named: seen.append(float(named[name])), **{name: X})
    hcb.debug.print()(f"{{{name}}}", **{name: X})
    hcb.barrier_wait()
    assert seen == [2.0]
    assert capfd.readouterr().out == "2.0\n"


@pytest.mark.contract("X4")
@WAYS
def test_debug_print(stage: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def show(x: Any) -> Any:
        hcb.debug.print(" ".join(f"{{{name}}}" for name in NAMES), **named_values(x))
        hcb.debug.print("values", **named_values(x), skip_format_check=True)
        return x

    run(stage, show)
    values = {name: float(X) * weight for name, weight in WEIGHTS.items()}
    labelled = " ".join(f"{name}={value}" for name, value in sorted(values.items()))
    lines = {" ".join(map(str, values.values())), f"values {labelled}"}
    assert {*capfd.readouterr().out.splitlines()} == lines


@pytest.mark.contract("D1")
@WAYS
@pytest.mark.parametrize("in_place", [False, True], ids=["returns", "in_place"])
@pytest.mark.parametrize("by_function", [False, True], ids=["shape", "shape_function"])
def test_dlpack_callback(stage: Any, in_place: bool, by_function: bool) -> None:
    def write(result: Any, /, x: Any, **named: Any) -> None:
        np.asarray(result)[...] = total(named)

    def shape_of_all(x: Any, /, **named: Any) -> Any:
        assert {*named} == {*NAMES}, f"keyword arguments {sorted(named)}"
        return x

    # A parameter of the function itself has one of the names already.
    function = write if in_place else (lambda x, /, **named: total(named))
    f = hcb.dlpack_callback(
        function, shape_of_all if by_function else SCALAR, in_place=in_place, vmap_method="sequential"
    )
    check(run(stage, lambda x: f(x, **named_values(x))))


@pytest.mark.contract("B1")
@WAYS
def test_buffer_callback(stage: Any) -> None:
    def write(_ctx: Any, _out: Any, /, x: Any, **named: Any) -> None:
        np.asarray(_out)[...] = total(named)

    f = hcb.buffer_callback(write, SCALAR, vmap_method="sequential")
    check(run(stage, lambda x: f(x, **named_values(x))))


@pytest.mark.contract("H2")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("arg", "result")])
def test_labels_of_id_print(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    hcb.id_print(X, **{name: 1})  # type: ignore[arg-type]
    hcb.barrier_wait()
    assert capfd.readouterr().out == f"{name}: 1\n2.\n"
