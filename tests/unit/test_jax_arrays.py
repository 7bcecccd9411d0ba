"""X1, H16: JAX operations in the function of `jax_arrays` run on its CPU device, also those without operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
