"""H27: what differs from JAX's own callbacks on purpose. A JAX that changed its side would show here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import pure_callback
from jax.debug import callback as debug_callback
from jax.debug import print as debug_print
from jax.experimental import io_callback
from test_install import X, double

import hostcb as hcb

pytestmark = pytest.mark.contract("H27")

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def caught(program: Callable[[], Any]) -> type[BaseException] | None:
    try:
        jax.block_until_ready(program())
        jax.effects_barrier()
    except Exception as error:
        return type(error)
    return None


def refusals(program: Callable[[], Any]) -> tuple[type[BaseException] | None, type[BaseException] | None]:
    """The classes of the error with JAX's own callbacks and under `install`."""
    own = caught(program)
    with hcb.installed():
        return own, caught(program)


def test_no_function_is_refused_while_tracing() -> None:
    own, ours = refusals(lambda: jax.jit(lambda x: pure_callback(7, x, x))(X))
    assert (own, ours) == (jax.errors.JaxRuntimeError, TypeError)


def test_what_describes_no_result_or_device_is_refused_with_errors_of_values() -> None:
    own, ours = refusals(lambda: pure_callback(double, 1.0, X))
    assert own is AttributeError and ours is not None and issubclass(ours, ValueError)
    assert refusals(lambda: pure_callback(double, X, X, sharding="cpu")) == (NotImplementedError, TypeError)


@pytest.mark.parametrize("stage", ["eager", "jit"])
def test_what_only_hostcb_accepts(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    staged = jax.jit if stage == "jit" else lambda function: function
    programs: list[Callable[[], Any]] = [
        lambda: staged(lambda: debug_print("{{x}} is {x}", x=2))(),
        lambda: staged(lambda: debug_print("{}", 2**70))(),
        lambda: staged(lambda x: pure_callback(lambda x: np.arange(3, dtype=">f4"), x, x))(X),
        lambda: staged(lambda: pure_callback(lambda: jax.random.key(0), jax.random.key(0)))(),
    ]
    for program in programs:
        own, ours = refusals(program)
        assert own is not None and ours is None
    assert capsys.readouterr().out == "{x} is 2\n1180591620717411303424\n"


def test_a_result_is_replicated_over_the_mesh(devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((2,), ("x",), devices=devices[:2], axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    program = lambda x: pure_callback(double, x, x)
    assert not isinstance(jax.jit(program)(x).sharding, jax.sharding.NamedSharding)
    with hcb.installed():
        assert jax.jit(program)(x).sharding == jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def test_ordered_debug_callbacks_run_on_several_devices(devices: list[jax.Device]) -> None:
    seen: list[float] = []
    note = lambda x: seen.append(float(x))
    program = lambda: jax.pmap(lambda x: debug_callback(note, x, ordered=True), devices=devices[:2])(jnp.arange(2.0))
    assert refusals(program) == (ValueError, None)
    assert sorted(seen) == [0.0, 1.0]


def test_an_io_callback_that_runs_once_is_not_refused_in_a_branch() -> None:
    def branch(x: Any) -> Any:
        return jax.lax.cond(True, lambda x: io_callback(double, NUMBER, x), lambda x: x, x)

    assert refusals(lambda: jax.vmap(branch)(X)) == (NotImplementedError, None)


def test_a_float0_leaf_arrives_as_such() -> None:
    seen: list[Any] = []
    tangent = np.zeros(2, jax.dtypes.float0)

    def program() -> None:
        jax.jit(lambda: debug_callback(lambda x: seen.append(x.dtype), tangent))()
        jax.effects_barrier()

    program()
    with hcb.installed():
        program()
    assert seen == [np.bool_, jax.dtypes.float0]
