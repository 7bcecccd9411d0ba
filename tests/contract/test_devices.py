"""H9 and H10: which device calls back, with which part of the operand, and where the result goes."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import helpers
from support.helpers import STAGES, Record
from support.pairwise import in_turns

import hostcb as hcb


def parts(layout: helpers.Layout) -> list[np.ndarray]:
    """A value for each caller, told apart by the device that should get it."""
    return [np.arange(8, dtype=np.float32) + 100 * index for index in layout.callers]


@pytest.mark.contract("H9", "H10")
@pytest.mark.parametrize("layout", helpers.LAYOUTS, ids=helpers.named)
def test_each_device_calls_with_its_part_and_gets_its_result(layout: helpers.Layout, devices: list[jax.Device]) -> None:
    """Also without an operand, where no buffer says which device it is."""
    record, without, keywords = Record(), Record(), []
    add_number = lambda arg, device: arg + np.float32(1000 * (device.id + 1))
    shape = jax.ShapeDtypeStruct((8,), np.float32)

    def program(x):
        hcb.id_tap(record.tap, x, tap_with_device=True)
        hcb.id_tap(without.tap, (), tap_with_device=True)
        hcb.id_tap(lambda arg, transforms, **options: keywords.append(options), x)
        hcb.call(lambda arg, **options: keywords.append(options), x)
        number = hcb.call(lambda _, device: np.float32(device.id), (), result_shape=1.0, call_with_device=True)
        return hcb.call(add_number, x, result_shape=shape, call_with_device=True), number

    given = parts(layout)
    outs = layout.run(program, given)
    hcb.barrier_wait()
    got = {seen.device.id: seen.arg.tolist() for seen in record.all}
    assert got == {index: part.tolist() for index, part in zip(layout.callers, given, strict=True)}
    assert all(seen.device is devices[seen.device.id] for seen in record.all), "the device should be JAX's own object"
    for calls in (record, without):
        assert sorted(seen.device.id for seen in calls.all) == sorted(layout.callers)
    assert keywords == [{}] * (2 * len(layout.callers)), "the device is passed only on request"
    for index, part, (result, number) in zip(layout.callers, given, outs, strict=True):
        helpers.equal(result, part + np.float32(1000 * (index + 1)), f"{layout.name}: result on device {index}")
        assert float(number) == index


MESHES = {
    "1d": lambda devices: helpers.mesh_of(devices),
    "reversed": lambda devices: helpers.mesh_of(devices[::-1]),
    "subset": lambda devices: helpers.mesh_of(devices[3:7]),
    "2d": lambda devices: helpers.mesh_of(devices, "a", "b", shape=(2, 4)),
    "2d_mixed": lambda devices: helpers.mesh_of([devices[i] for i in (3, 1, 7, 0, 5, 2)], "a", "b", shape=(3, 2)),
    "one": lambda devices: helpers.mesh_of(devices[5:6]),
}


@pytest.mark.contract("H10")
@pytest.mark.parametrize("name", MESHES)
def test_device_index_counts_the_devices_of_the_mesh(name: str, devices: list[jax.Device]) -> None:
    """Indices of every mesh, taps and calls, for a sharded operand and for a replicated one."""
    mesh = MESHES[name](devices)
    flat = list(mesh.devices.flat)
    x = jax.device_put(np.arange(24, dtype=np.float32), NamedSharding(mesh, P(mesh.axis_names[0])))
    for index in {1, len(flat) - 1} & set(range(len(flat))):
        record = Record()

        def program(x, index=index, record=record):
            hcb.id_tap(record.tap, x, tap_with_device=True, device_index=index)
            hcb.id_tap(record.tap, jnp.sum(x), tap_with_device=True, device_index=index)
            return hcb.call(record.caller(result=lambda a: a * 2), x, result_shape=x, call_with_device=True,
                            device_index=index)  # fmt: skip

        out = helpers.finish(jax.jit(program)(x))
        helpers.equal(np.asarray(out), np.arange(24, dtype=np.float32) * 2, "result of the call")
        got = [seen.device for seen in record.all]
        assert got == [flat[index]] * 3, f"device_index={index}: {got}, but should be {flat[index]} each time"
        helpers.equal(record.args[0], np.arange(24, dtype=np.float32), "the whole operand")


@pytest.mark.contract("H10")
def test_two_indices_in_one_program(devices: list[jax.Device]) -> None:
    """Each device keeps its own order."""
    mesh = helpers.mesh_of(devices)
    record = Record()

    @jax.jit
    def program(x):
        for n in range(6):
            hcb.id_tap(record.labelled(n), x, tap_with_device=True, device_index=3 + 2 * (n % 2))
            x = hcb.call(record.caller(n + 100), x, result_shape=x, call_with_device=True, device_index=5 - 2 * (n % 2))
        return x

    helpers.finish(program(jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("d")))))
    for device, expected in ((3, [0, 101, 2, 103, 4, 105]), (5, [100, 1, 102, 3, 104, 5])):
        got = [seen.label for seen in record.on(devices[device])]
        assert got == expected, f"order on device {device}: {got}, but should be {expected}"


@pytest.mark.contract("H10", "H18")
@pytest.mark.parametrize("kind", ["tap", "call"])
def test_one_function_on_each_device_in_one_program(kind: str, devices: list[jax.Device]) -> None:
    record = Record()
    function = record.caller()

    def program(x):
        for index in range(len(devices)):
            if kind == "tap":
                x = hcb.id_tap(record.tap, x, tap_with_device=True, device_index=index)
            else:
                x = hcb.call(function, x, result_shape=x, call_with_device=True, device_index=index)
        return x

    compiled = jax.jit(program)
    for run in range(1, 3):
        helpers.finish(compiled(helpers.sharded(np.arange(8, dtype=np.float32), helpers.mesh_of(devices))))
        assert sorted(seen.device.id for seen in record.all) == sorted(device.id for device in devices * run)


def bind(kind: str, x: Any, index: Any) -> Any:
    if kind == "tap":
        return hcb.id_tap(lambda arg, transforms: None, x, device_index=index)
    if kind == "print":
        return hcb.id_print(x, device_index=index, output_stream=io.StringIO())
    return hcb.call(lambda arg: arg, x, result_shape=x, device_index=index)


@pytest.mark.contract("H10")
@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("kind", ["tap", "call"])
def test_device_index_out_of_range(kind: str, size: int, devices: list[jax.Device]) -> None:
    mesh = helpers.mesh_of(devices[:size])
    x = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("d")))
    with pytest.raises(ValueError, match="device_index"):
        jax.jit(lambda x: bind(kind, x, size))(x)
    jax.block_until_ready(jax.jit(lambda x: bind(kind, x, size - 1))(x))


class Number:
    """An object of another library that is an integer."""

    def __index__(self) -> int:
        return 6


@pytest.mark.contract("H10")
@pytest.mark.parametrize(
    ("index", "order"),
    [(np.int64(6), 1), (np.uint8(6), -1), (np.asarray(6), -1), (Number(), 1)],
    ids=["int64", "uint8", "array", "Number"],
)
@STAGES
def test_any_integer_as_device_index(stage: Any, index: Any, order: int, devices: list[jax.Device]) -> None:
    record = Record()
    mesh = helpers.mesh_of(devices[::order])
    x = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("d")))

    def program(x: Any) -> Any:
        x = hcb.id_tap(record.tap, x, tap_with_device=True, device_index=index)
        return hcb.call(record.caller(), x, result_shape=x, call_with_device=True, device_index=index)

    helpers.finish(stage(program)(x))
    assert [seen.device for seen in record.all] == [devices[::order][6]] * 2


SHARDINGS = {
    "rows": P("a"),
    "columns": P(None, "b"),
    "both": P("a", "b"),
    "swapped": P("b", "a"),
    "one_dimension": P(("a", "b")),
    "replicated": P(),
}


@pytest.mark.contract("H10")
@in_turns(("operand", "result"), SHARDINGS, SHARDINGS, times=2)
def test_whole_operand_and_whole_result_in_any_sharding(operand: str, result: str, devices: list[jax.Device]) -> None:
    mesh = helpers.mesh_of(devices, "a", "b", shape=(2, 4))
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    record = Record()

    def program(x):
        y = hcb.id_tap(record.tap, x)
        return hcb.call(record.caller(result=lambda a: a.T * 3), y, result_shape=x)

    x = jax.device_put(value, NamedSharding(mesh, SHARDINGS[operand]))
    out = helpers.finish(jax.jit(program, out_shardings=NamedSharding(mesh, SHARDINGS[result]))(x))
    helpers.equal(np.asarray(out), value.T * 3, "result of the call")
    for arg in record.args:
        helpers.equal(arg, value, "operand of the callback")
    assert len(record.all) == 2, f"{len(record.all)} callbacks, but should be one of each kind"
    for shard in out.addressable_shards:
        helpers.equal(np.asarray(shard.data), (value.T * 3)[shard.index], f"the shard on {shard.device}")


@pytest.mark.contract("H10")
@pytest.mark.parametrize("context", ["none", "auto", "explicit"])
def test_mesh_contexts(context: str, devices: list[jax.Device]) -> None:
    kind = jax.sharding.AxisType.Explicit if context == "explicit" else jax.sharding.AxisType.Auto
    mesh = jax.sharding.Mesh(np.array(devices), ("d",), axis_types=(kind,))
    spec, record = NamedSharding(mesh, P("d")), Record()

    @jax.jit
    def program(x):
        if context != "explicit":
            x = jax.lax.with_sharding_constraint(x, spec)
        x = hcb.id_tap(record.tap, x * 2, tap_with_device=True, device_index=2)
        y = hcb.call(record.caller(result=lambda a: a + 1), x, result_shape=x, call_with_device=True, device_index=2)
        return y + x

    with jax.set_mesh(mesh) if context != "none" else contextlib.nullcontext():
        out = helpers.finish(program(jax.device_put(np.arange(8, dtype=np.float32), spec)))
    helpers.equal(np.asarray(out), np.arange(8, dtype=np.float32) * 4 + 1, "result")
    assert [(seen.device.id, seen.arg.shape) for seen in record.all] == [(2, (8,))] * 2


@pytest.mark.contract("H9")
def test_collectives_around_callbacks(devices: list[jax.Device]) -> None:
    record = Record()

    def program(x):
        total = jax.lax.psum(x, "d")
        y = hcb.call(record.caller(result=lambda a: a + 1), total, result_shape=total, call_with_device=True)
        hcb.id_tap(record.labelled("tap"), y, tap_with_device=True)
        return jax.lax.pmean(y, "d")

    for layout in (helpers.PMAP, helpers.SHARD_MAP):
        for out in layout.run(program, [np.float32(i) for i in range(8)]):
            helpers.equal(out, np.float32(29), f"{layout.name}: result")
    hcb.barrier_wait()
    for device in devices:
        got = [(seen.label, float(seen.arg)) for seen in record.on(device)]
        assert got == [(None, 28.0), ("tap", 29.0)] * 2, f"{device}: {got}"


@pytest.mark.contract("H9")
@pytest.mark.parametrize("outer", ["vmap_of_pmap", "pmap_of_vmap", "jit_of_pmap", "grad_of_pmap", "pmap_of_grad"])
def test_pmap_composed(outer: str, devices: list[jax.Device]) -> None:
    record = Record()

    def tapped(x):
        return hcb.id_tap(record.tap, jnp.sin(x), tap_with_device=True)

    value = np.arange(16, dtype=np.float32).reshape(2, 8)
    if outer == "vmap_of_pmap":
        out = jax.vmap(jax.pmap(tapped))(value)
        wanted = np.sin(value)
    elif outer == "pmap_of_vmap":
        out = jax.pmap(jax.vmap(tapped))(value.T)
        wanted = np.sin(value.T)
    elif outer == "jit_of_pmap":
        out = jax.jit(jax.pmap(tapped))(value[0])
        wanted = np.sin(value[0])
    elif outer == "grad_of_pmap":
        out = jax.grad(lambda x: jnp.sum(jax.pmap(tapped)(x)))(value[0])
        wanted = np.cos(value[0])
    else:
        out = jax.pmap(jax.grad(tapped))(value[0])
        wanted = np.cos(value[0])
    np.testing.assert_allclose(helpers.finish(out), wanted, rtol=1e-5)
    assert sorted(seen.device.id for seen in record.all) == list(range(8)), "each device should call back once"
    for seen in record.all:
        i = seen.device.id
        np.testing.assert_allclose(seen.arg, np.sin(value[:, i] if "vmap" in outer else value[0, i]), rtol=1e-5)


@pytest.mark.contract("H9")
def test_uncommitted_default_device(devices: list[jax.Device]) -> None:
    record = Record()
    with jax.default_device(devices[2]):
        hcb.id_tap(record.tap, 1.0, tap_with_device=True)
        helpers.finish(jax.jit(lambda x: hcb.id_tap(record.tap, x, tap_with_device=True))(1.0))
        hcb.call(record.caller(), 1.0, result_shape=1.0, call_with_device=True)
    got = [seen.device for seen in record.all]
    assert got == [devices[2]] * 3, f"devices {got}, but should be {devices[2]}"


@pytest.mark.contract("H9")
def test_a_committed_operand_decides_on_the_device_outside_jit(devices: list[jax.Device]) -> None:
    free, chosen = jnp.float32(1), jax.device_put(np.float32(2), devices[3])
    for operands in ((free, chosen), (chosen, free)):
        record = Record()
        hcb.id_tap(record.tap, operands, tap_with_device=True)
        result = hcb.call(record.caller(result=lambda both: both[0]), operands, result_shape=1.0, call_with_device=True)
        hcb.barrier_wait()
        assert [seen.device for seen in record.all] == [devices[3]] * 2
        assert result.devices() == {devices[3]} and result.committed


@pytest.mark.contract("H10")
def test_outside_jit_the_first_or_the_named_device_of_a_mesh_calls_and_all_have_the_result(
    devices: list[jax.Device],
) -> None:
    meshes = [(devices[::-1], 0), (devices[-2:], 0), (devices[-1:], 0), *((devices, n) for n in range(8))]
    for of_mesh, index in meshes:
        record, mesh = Record(), helpers.mesh_of(of_mesh)
        x = helpers.sharded(np.arange(len(of_mesh), dtype=np.float32), mesh)
        hcb.id_tap(record.tap, x, tap_with_device=True, device_index=index)
        result = hcb.call(record.caller(), x, result_shape=x, call_with_device=True, device_index=index)
        hcb.barrier_wait()
        assert [seen.device for seen in record.all] == [of_mesh[index]] * 2
        assert result.sharding.is_equivalent_to(NamedSharding(mesh, P()), 1), result.sharding


@pytest.mark.contract("H9")
def test_one_program_on_several_devices_at_once(devices: list[jax.Device]) -> None:
    """The same jitted function, by turns and without waiting, on device after device and on two meshes."""
    record = Record()

    def program(x):
        hcb.id_tap(record.tap, x, tap_with_device=True)
        return hcb.call(lambda a, device: a * 0 + np.float32(device.id), x, result_shape=x, call_with_device=True)

    jitted = jax.jit(program)
    mapped = [jax.pmap(program, devices=part) for part in (devices[:4], devices[4:])]
    for n in range(3):
        singles = [jitted(jax.device_put(np.float32([n, i]), device)) for i, device in enumerate(devices)]
        multiples = [f(np.float32([[n, i + 4 * k] for i in range(4)])) for k, f in enumerate(mapped)]
        assert [float(out[0]) for out in singles] == list(range(8)), "results on one device each"
        got = [float(v) for out in multiples for v in np.asarray(out)[:, 0]]
        assert got == list(range(8)), f"results of pmap: {got}"
    hcb.barrier_wait()
    assert all(seen.arg[1] == seen.device.id for seen in record.all), "a tap came with another device's value"
    assert len(record.all) == 48


@pytest.mark.contract("H9")
@pytest.mark.parametrize("kind", ["tap", "call"])
def test_partially_automatic_shard_map_is_refused_at_trace_time(kind: str, devices: list[jax.Device]) -> None:
    mesh = helpers.mesh_of(devices, "a", "b", shape=(2, 4))
    mapped = jax.shard_map(lambda x: bind(kind, x, 0), mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    with pytest.raises(NotImplementedError) as caught:
        jax.jit(mapped).trace(np.zeros(8, np.float32))
    for part in ("shard_map", "b"):
        assert part in str(caught.value), f"{part!r} is missing in {caught.value}"


@pytest.mark.contract("H9", "X4")
@pytest.mark.parametrize(("program", "times"), [("as it is", 2), ("in a scan", 4), ("in a checkpoint", 4)])
def test_a_debug_callback_without_operands_runs_once_for_the_automatic_axes(
    program: str, times: int, devices: list[jax.Device]
) -> None:
    """Without operands and results the manual computation would be gone before the compiler looks at it."""
    seen: list[None] = []
    mesh = helpers.mesh_of(devices, "a", "b", shape=(2, 4))

    def body(x: Any) -> Any:
        hcb.debug.callback(lambda: seen.append(None))
        return x * 2

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    programs: dict[str, Any] = {
        "as it is": mapped,
        "in a scan": lambda x: jax.lax.scan(lambda y, _: (mapped(y), None), x, None, length=2)[0],
        "in a checkpoint": jax.grad(lambda x: jax.checkpoint(mapped)(x).sum()),
    }
    jax.block_until_ready(jax.jit(programs[program])(np.ones(8, np.float32)))
    hcb.barrier_wait()
    assert len(seen) == times
