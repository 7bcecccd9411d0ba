"""H27: where JAX's own callbacks stay in use while hostcb is installed, and how their code is exchanged."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

import jax
import numpy as np
import pytest
from jax import pure_callback
from jax.debug import print as debug_print
from jax.experimental import pallas as pl
from test_install import X, double, through

import hostcb as hcb
from hostcb import _compat
from hostcb._compat import own_callbacks

pytestmark = pytest.mark.contract("H27")


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
    assert record.filename == "test_install_own.py", "the line of the user"


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
    from hostcb._workarounds import memory_kinds

    with hcb.installed():
        text = str(jax.make_jaxpr(lambda x: memory_kinds._ordered_identity(x))(X))
    assert "io_callback" in text and "host_callback" not in text


def test_exchanging_twice_keeps_the_code_of_jax() -> None:
    """As when an interrupt comes between the steps of `install`, and the program calls it once more."""
    code = pure_callback.__code__
    with hcb.installed():
        _compat.exchange.make(dict.fromkeys(own_callbacks.NAMES, double.__code__))
    assert pure_callback.__code__ is code
