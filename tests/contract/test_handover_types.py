"""H12, H24: values of every type arrive by each way with the bytes that the program gave."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostcb as hcb
from hostcb._native.library import library
from hostcb._runtime.queue.queues import queues


def values_of_every_type() -> dict[str, Any]:
    """A value of each element type of JAX, of other sizes, and a tree of several."""
    names = [
        *("bool", "int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
        *(name for name in vars(jnp) if name.startswith("float4_") or name.startswith("float8_")),
        *("bfloat16", "float16", "float32", "complex64"),
    ]
    found: dict[str, Any] = {name: jnp.zeros(1000, getattr(jnp, name, None) or name) for name in names}
    found["float4_e2m1fn, large"] = jnp.zeros(200_000, jnp.float4_e2m1fn)
    found["keys"] = jax.random.split(jax.random.key(0), 5)
    found["scalar"], found["empty"] = jnp.float32(1), jnp.zeros((3, 0), jnp.int4)
    found["tree"] = {"a": found["float4_e2m1fn"], "b": (found["int4"], found["bool"], found["keys"])}
    return found


@pytest.mark.contract("H12", "H24")
@pytest.mark.parametrize("way", ["c", "python"])
@pytest.mark.parametrize("name", values_of_every_type())
def test_the_same_bytes_at_both_ends_for_every_type(
    name: str, way: str, devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if way == "c" and library.problem is not None:
        pytest.skip(f"the native extension: {library.problem}")
    value = values_of_every_type()[name]
    wanted = sum(
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).nbytes
        for leaf in jax.tree_util.tree_leaves(value)
    )
    held: list[int] = []
    program = jax.jit(lambda x: hcb.id_tap(lambda *_: held.append(queues[devices[0]].held()), x))
    # The first value goes through Python.
    jax.block_until_ready(program(value))
    hcb.barrier_wait()
    held.clear()
    before = hcb.stats()

    def runs() -> None:
        for _ in range(3):
            program(value)
            hcb.barrier_wait()

    if way == "python":
        with hcb.trace(str(tmp_path / "trace")):
            runs()
    else:
        runs()
    here = (hcb.stats() - before)[devices[0]]
    assert (here.taps, here.taps_run, here.bytes, here.queued, here.queued_bytes) == (3, 3, 3 * wanted, 0, 0)
    # While its function runs, a value counts for the budget with the same bytes.
    assert held == [wanted] * 3
