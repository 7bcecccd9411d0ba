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
