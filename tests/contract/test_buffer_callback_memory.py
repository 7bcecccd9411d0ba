"""B2, B3: buffers are the memory of the device, and an aliased operand and result are one piece of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record, address, like

import hostcb as hcb

X = np.arange(8, dtype=np.float32)


def add_one(ctx: Any, out: Any, x: Any) -> None:
    np.add(np.asarray(x), 1, out=np.asarray(out))


@pytest.mark.contract("B2")
@pytest.mark.parametrize("protocol", ["__array__", "__dlpack__"])
def test_operands_are_the_memory_of_the_device_without_a_copy(protocol: str) -> None:
    view = np.asarray if protocol == "__array__" else np.from_dlpack
    seen = []

    def fill(ctx: Any, out: Any, x: Any) -> None:
        seen.append((address(view(x)), view(out).flags.writeable, x.__dlpack_device__()))
        view(out)[...] = view(x) * 2

    x = jax.block_until_ready(jnp.arange(1 << 16, dtype=jnp.float32))
    out = jax.block_until_ready(jax.jit(hcb.buffer_callback(fill, x))(x))
    helpers.equal(out, np.arange(1 << 16, dtype=np.float32) * 2, "result")
    ((where, result_writable, device),) = seen
    assert where == x.unsafe_buffer_pointer(), "the operand should be the array's own memory"
    assert result_writable, "results are to be written to"
    assert tuple(device) == (1, 0), f"DLPack device {device}"


@pytest.mark.contract("B2")
def test_each_device_has_its_number_in_dlpack(devices: list[Any]) -> None:
    record = Record()

    def fill(ctx: Any, out: Any, x: Any) -> None:
        record.add((tuple(x.__dlpack_device__()), address(x)))
        add_one(ctx, out, x)

    values = jax.device_put(np.stack([X] * 8), jax.sharding.NamedSharding(helpers.mesh_of(devices), jax.P("d")))
    mapped = helpers.shard_map(lambda x: hcb.buffer_callback(fill, like(x))(x), helpers.mesh_of(devices))
    helpers.equal(jax.jit(mapped)(values), np.stack([X] * 8) + 1, "results")
    expected = {
        shard.data.unsafe_buffer_pointer(): shard.device.local_hardware_id for shard in values.addressable_shards
    }
    got = {where: device for (_, device), where in record.args}
    assert got == expected, f"device by address {got}"


@pytest.mark.contract("B3")
@pytest.mark.parametrize("effect", [False, True])
def test_aliased_operand_and_result_are_one_piece_of_memory(effect: bool) -> None:
    seen = []

    def fill(ctx: Any, out: Any, x: Any, y: Any) -> None:
        seen.append((address(x), address(out[1]), address(y), address(out[0])))
        np.asarray(out[1])[...] += 1
        np.asarray(out[0])[...] = np.asarray(y)

    x, y = jnp.asarray(X), jnp.asarray(X * 10)
    f = hcb.buffer_callback(fill, (y, x), input_output_aliases={0: 1}, has_side_effect=effect)
    for n in range(3):
        helpers.equal(jax.jit(f)(x, y), (X * 10, X + 1), f"run {n}")
        helpers.equal(x, X, "JAX's own array must stay as it is")
    helpers.equal(f(x, y), (X * 10, X + 1), "eager")
    assert all(a == b and len({a, c, d}) == 3 for a, b, c, d in seen), f"addresses {seen}"


@pytest.mark.contract("B3")
def test_aliases_of_leaves_and_of_donated_operands() -> None:
    seen = []

    def fill(ctx: Any, out: Any, tree: Any, *, k: Any) -> None:
        seen.append(address(out["b"]))
        np.asarray(out["a"])[...] *= 2
        np.asarray(out["b"])[...] -= 1

    x, y = jnp.asarray(X), jax.block_until_ready(jnp.arange(1 << 14, dtype=jnp.int32))
    shapes = {"a": like(x), "b": like(y)}
    # Leaves are numbered through: x is 0, y is 1 and the keyword argument is 2.
    f = hcb.buffer_callback(fill, shapes, input_output_aliases={0: 0, 2: 1})
    jitted = jax.jit(lambda x, y: f({"x": x, "z": x + 1}, k=y), donate_argnums=1)
    where = y.unsafe_buffer_pointer()
    out = jitted(x, y)
    helpers.equal(out, {"a": X * 2, "b": np.arange(1 << 14, dtype=np.int32) - 1}, "results")
    assert seen == [where] and out["b"].unsafe_buffer_pointer() == where, "a donated operand is worked on where it is"


@pytest.mark.contract("B3")
def test_aliases_in_a_loop() -> None:
    def fill(ctx: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    f = hcb.buffer_callback(fill, like(X), input_output_aliases={0: 0})
    helpers.equal(jax.jit(lambda x: lax.fori_loop(0, 5, lambda _, y: f(y), x))(X), X + 5, "fori")
    helpers.equal(jax.jit(lambda x: lax.scan(lambda c, _: (f(c), c), x, None, length=3))(X)[0], X + 3, "scan")


@pytest.mark.contract("B3")
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_typed_keys_alias_their_words(transform: Any) -> None:
    def fill(ctx: Any, out: Any, words: Any) -> None:
        np.asarray(out)[...] = np.asarray(words) + 1

    keys = jax.random.split(jax.random.key(0), 3)
    shape = () if transform is jax.vmap else keys.shape
    like_keys = jax.ShapeDtypeStruct(shape, keys.dtype)
    f = hcb.buffer_callback(fill, like_keys, input_output_aliases={0: 0}, vmap_method="sequential")
    helpers.equal(jax.random.key_data(transform(f)(keys)), np.asarray(jax.random.key_data(keys)) + 1, "the words")
    words = hcb.buffer_callback(fill, jax.ShapeDtypeStruct((3, 2), np.uint32), input_output_aliases={0: 0})
    with pytest.raises(ValueError, match=r"key<fry>\[3\].*uint32\[3,2\]"):
        words(keys)


ALIASES: dict[str, tuple[dict[Any, Any], str]] = {
    "input_range": ({3: 0}, r"mapping '3:0' with input index 3 outside the range \[0, 3\)"),
    "input_negative": ({-1: 0}, r"mapping '-1:0' with input index -1 outside the range \[0, 3\)"),
    "output_range": ({0: 2}, r"mapping '0:2' with output index 2 outside the range \[0, 2\)"),
    "output_negative": ({0: -1}, r"mapping '0:-1' with output index -1 outside the range \[0, 2\)"),
    "shape": ({2: 0}, r"mapping '2:0' referring to an input with abstract value float32\[3\] and an output with a "
                      r"different abstract value float32\[8\]"),
    "dtype": ({0: 1}, r"mapping '0:1' referring to an input with abstract value float32\[8\].*int32\[8\]"),
    "twice": ({0: 0, 1: 0}, r"mapping '1:0', but output 0 shares its memory with another input already"),
}  # fmt: skip


@pytest.mark.contract("B3")
@STAGES
@pytest.mark.parametrize("what", ALIASES)
def test_aliases_are_checked_before_anything_runs(stage: Any, what: str) -> None:
    aliases, match = ALIASES[what]
    record = Record()
    shapes = (like(X), jax.ShapeDtypeStruct((8,), np.int32))
    f = hcb.buffer_callback(lambda *_: record.add(0), shapes, input_output_aliases=aliases, has_side_effect=True)
    with pytest.raises(ValueError, match="input_output_aliases contains the " + match):
        stage(f)(X, X, X[:3])
    assert record.all == [], "nothing should have run"
