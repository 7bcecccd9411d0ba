"""X1, H16: JAX operations in the function of `jax_arrays` run on its CPU device, also those without operands."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb


@pytest.mark.contract("X1", "H16")
@pytest.mark.parametrize("named", [False, True])
def test_all_arrays_of_the_function_are_on_one_device(named: bool) -> None:
    first, other = jax.devices()[:2]

    def function(x: Any) -> set[Any]:
        return {*x.devices(), *jnp.zeros(2).devices()}

    # As an accelerator would be the default one.
    with jax.default_device(other):
        call = hcb.jax_arrays(function)
        assert (call(x=np.ones(2)) if named else call(np.ones(2))) == {first}


@pytest.mark.contract("D3")
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128", "float32"])
def test_arrays_have_the_types_and_values_of_the_operands(dtype: str) -> None:
    array = np.array([0, 1, 2**40]).astype(dtype)
    made = hcb.jax_arrays(lambda x: x)(array)
    assert isinstance(made, jax.Array) and made.dtype == array.dtype
    assert made.tolist() == array.tolist()


@pytest.mark.contract("D3")
def test_arrays_come_in_a_program_that_forbids_implicit_transfers() -> None:
    with jax.transfer_guard("disallow"):
        made = hcb.jax_arrays(lambda x: x)(np.arange(3, dtype=np.float32))
    assert isinstance(made, jax.Array) and made.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.contract("X1", "H16")
def test_the_device_is_a_cpu_where_another_platform_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    plain = jax.local_devices

    def local_devices(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs)
        return plain(*args, **kwargs)

    monkeypatch.setattr(jax, "local_devices", local_devices)
    hcb.jax_arrays(lambda x: x)(np.ones(2))
    assert asked == [{"backend": "cpu"}]


FORMS: dict[str, Any] = {
    "by place": lambda x: ((x[:0], x, x[0]), {}),
    "in containers": lambda x: (([x, {"a": x[:0], "b": (x[0],)}],), {}),
    "by name": lambda x: ((), {"one": x, "other": [x[None, :0]]}),
}


@pytest.mark.contract("X2", "X3", "X4", "H16")
@STAGES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["wrapper", "setting", "setting, of a partial"])
@pytest.mark.parametrize("kind", ["pure", "io", "debug"])
def test_each_leaf_is_a_jax_array(kind: str, way: str, form: str, stage: Any) -> None:
    seen: list[Any] = []

    def host(*args: Any, **named: Any) -> Any:
        seen.append([(isinstance(leaf, jax.Array), leaf.shape) for leaf in jax.tree.leaves((args, named))])
        return np.float32(1)

    function = {"wrapper": hcb.jax_arrays(host), "setting": host}.get(way, functools.partial(host))
    scalar = jax.ShapeDtypeStruct((), np.float32)

    def program(x: Any) -> Any:
        args, named = FORMS[form](x)
        if kind == "debug":
            return hcb.debug.callback(function, *args, **named)
        call = {"pure": hcb.pure_callback, "io": hcb.io_callback}[kind]
        return call(function, scalar, *args, **named)

    jax.config.update("hostcb_jax_arrays", way != "wrapper")
    try:
        x = jnp.arange(3, dtype=np.float32)
        jax.block_until_ready(stage(program)(x))
        hcb.barrier_wait()
    finally:
        jax.config.update("hostcb_jax_arrays", False)
    assert seen == [[(True, leaf.shape) for leaf in jax.tree.leaves(FORMS[form](x))]]
