"""The transport of GPUs, run on CPU devices: the same handlers behind the CPU's target of the same kind."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostcb as hcb
from hostcb._lowering import transports, views

TARGET = "xla_ffi_python_cpu_callback"


@pytest.fixture(autouse=True)
def gpu_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_arrays(site: Any, devices: Any, sharding: Any) -> transports.Emitted:
        del devices
        program = site.crossing.host.program
        if sharding is None:
            return transports.arrays(site, TARGET, lambda _: program.device_at(0), None, None)
        position = hlo.PartitionIdOp().result
        return transports.arrays(site, TARGET, lambda extra: program.device_at(int(extra[0])), position, sharding)

    monkeypatch.setattr(views, "views", by_arrays)


def recording() -> tuple[list[Any], Any]:
    """A program with a tap and a call, and what its callbacks see."""
    seen: list[Any] = []

    def tap(value, transforms, *, device):
        seen.append(("tap", device, value.tolist()))

    def double(value, *, device):
        seen.append(("call", device, value.tolist()))
        return value * 2

    def program(x):
        x = hcb.id_tap(tap, x, tap_with_device=True)
        return hcb.call(double, x, result_shape=x, call_with_device=True)

    return seen, program


@pytest.mark.contract("H5", "H9")
def test_one_device() -> None:
    seen, program = recording()
    device = jax.devices()[3]
    out = jax.jit(program)(jax.device_put(jnp.arange(2.0), device))
    np.testing.assert_array_equal(out, [0.0, 2.0])
    assert seen == [("tap", device, [0.0, 1.0]), ("call", device, [0.0, 1.0])]


LAYOUTS = {
    "pmap": lambda program, devices: jax.pmap(program, devices=devices),
    "shard_map": lambda program, devices: jax.jit(
        jax.shard_map(program, mesh=Mesh(np.array(devices), ("x",)), in_specs=P("x"), out_specs=P("x"))
    ),
}


@pytest.mark.contract("H9")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_devices_by_their_position(layout: str) -> None:
    seen, program = recording()
    devices = jax.devices()[5:2:-1]
    out = LAYOUTS[layout](program, devices)(np.arange(6.0, dtype=np.float32).reshape(3, 2))
    np.testing.assert_array_equal(np.asarray(out), np.arange(6.0).reshape(3, 2) * 2)
    hcb.barrier_wait()
    for position, device in enumerate(devices):
        mine = [(kind, np.ravel(value).tolist()) for kind, where, value in seen if where == device]
        own = [2.0 * position, 2.0 * position + 1]
        assert mine == [("tap", own), ("call", own)], f"{device} called back with {mine}, expected {own}"


@pytest.mark.contract("H15")
def test_failed_call() -> None:
    program = jax.jit(lambda x: hcb.call(lambda value: value[:1], x, result_shape=x))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"float32\[2\]"):
        program(jnp.arange(2.0)).block_until_ready()
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    np.testing.assert_array_equal(jax.jit(recording()[1])(jnp.arange(2.0)), [0.0, 2.0])
