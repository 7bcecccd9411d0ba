"""What can be known of platforms without their hardware: which operations a program with callbacks becomes."""

from __future__ import annotations

import re
from collections import Counter
from unittest import mock

import jax
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostcb as hcb

MESH = Mesh(np.array(jax.devices()), ("x",))
SHARDED = NamedSharding(MESH, P("x"))


def program(x):
    """One tap and one call."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return hcb.call(lambda value: value, hcb.id_tap(lambda value, transforms: None, x), result_shape=shape)


LAYOUTS = {
    "single": (jax.jit(program), None),
    "mesh": (jax.jit(program), SHARDED),
    "shard_map": (jax.jit(jax.shard_map(program, mesh=MESH, in_specs=P("x"), out_specs=P("x"))), SHARDED),
}


class SendAndReceive:
    """As much of a TPU client as JAX's emitter asks for while it lowers."""

    runtime_type = "none"
    platform = "tpu"

    def __init__(self):
        self.handlers = []

    def make_python_callback_from_host_send_and_recv(self, handler, *_):
        self.handlers.append(handler)
        return handler


def lowered(layout: str, platform: str) -> tuple[str, SendAndReceive]:
    function, sharding = LAYOUTS[layout]
    client = SendAndReceive()
    operand = jax.ShapeDtypeStruct((16,), np.float32, sharding=sharding)
    if platform != "tpu":
        return function.trace(operand).lower(lowering_platforms=(platform,)).as_text(), client
    with mock.patch.object(mlir.ModuleContext, "get_backend", lambda self, optional=False: client):
        return function.trace(operand).lower(lowering_platforms=(platform,)).as_text(), client


def targets(text: str) -> Counter[str]:
    return Counter(re.findall(r"custom_call @(xla_\w+)", text))


@pytest.mark.contract("H10")
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu_targets(layout: str, platform: str) -> None:
    text, _ = lowered(layout, platform)
    expected = Counter({"xla_ffi_python_gpu_callback": 2})
    if layout == "mesh":
        # The judge of a call's result, on every device.
        expected["xla_ffi_partitioned_python_gpu_callback"] = 1
    assert targets(text) == expected, text
    # Each callback takes the token of the one before.
    assert text.count("!stablehlo.token") >= 2, text


@pytest.mark.contract("H10")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tpu_sends_and_receives(layout: str) -> None:
    text, client = lowered(layout, "tpu")
    assert text.count("stablehlo.send") >= 2, text
    assert text.count("stablehlo.recv") >= 1, text
    assert len(client.handlers) == 2, "a handler for the tap and one for the call"


@pytest.mark.contract("H15")
def test_handlers_on_tpu_check_results() -> None:
    wrong = jax.jit(lambda x: hcb.call(lambda value: value[:2], x, result_shape=x))
    client = SendAndReceive()
    with mock.patch.object(mlir.ModuleContext, "get_backend", lambda self, optional=False: client):
        wrong.trace(jax.ShapeDtypeStruct((16,), np.float32)).lower(lowering_platforms=("tpu",))
    (handler,) = client.handlers
    with pytest.raises(Exception, match=r"float32\[16\]"):
        handler(np.zeros(16, np.float32))
    with pytest.raises(hcb.CallbackException, match=r"float32\[2\]"):
        hcb.barrier_wait()


def test_several_platforms_at_once_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="several platforms"):
        LAYOUTS["single"][0].trace(jax.ShapeDtypeStruct((), np.float32)).lower(lowering_platforms=("cpu", "cuda"))


@pytest.mark.contract("H4")
def test_a_platform_without_callbacks_is_refused() -> None:
    with pytest.raises((ValueError, NotImplementedError), match="nonesuch"):
        LAYOUTS["single"][0].trace(jax.ShapeDtypeStruct((), np.float32)).lower(lowering_platforms=("nonesuch",))


@pytest.mark.contract("H8")
@pytest.mark.parametrize("dtype", ["int4", "uint2", "float4_e2m1fn"])
def test_a_loop_over_a_batch_slices_no_packed_elements(dtype: str) -> None:
    """XLA does not compile such a slice for GPUs: "Non-byte-aligned dimension in slice"."""

    def one(x):
        return hcb.call(lambda value: value, x, result_shape=x, vmap_method="sequential")

    operand = jax.ShapeDtypeStruct((3,), dtype)
    text = jax.jit(jax.vmap(one)).trace(operand).lower(lowering_platforms=("cuda",)).as_text()
    packed = {"int4": "i4", "uint2": "ui2", "float4_e2m1fn": "f4E2M1FN"}[dtype]
    slices = [line for line in text.splitlines() if "slice" in line]
    assert len(slices) >= 2
    assert not [line for line in slices if re.search(rf"x{packed}>", line)]
