"""One `shard_map` inside of another, together manual over all axes of the mesh (H4, H5, H9)."""

from __future__ import annotations

import jax
import pytest
from support.subprocesses import run_program

# Where the compiler would end the process, ordered callbacks are refused; in a process of its own in case they are not.
REFUSED = jax.__version_info__ < (0, 11, 2)

PROGRAM = """
chosen, constructs, partitioner = sys.argv[1:]
jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
seen = []

def note(value):
    seen.append(np.asarray(value).tolist())

def double(value, device=None):
    note(value)
    if device is not None:
        devices.append((device.id, seen[-1]))
    return np.asarray(value) * 2

def debug(x, **options):
    hcb.debug.callback(note, x, **options)
    return x * 2

def fill(context, out, value):
    note(value)
    np.asarray(out)[...] = np.asarray(value) * 2

devices = []
shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
kinds = {
    "id_tap": lambda x: 2 * hcb.id_tap(lambda value, _, device: double(value, device), x, tap_with_device=True),
    "call": lambda x: hcb.call(double, x, result_shape=shape(x), call_with_device=True),
    "io_callback ordered": lambda x: hcb.io_callback(double, shape(x), x, ordered=True),
    "debug.callback ordered": lambda x: debug(x, ordered=True),
    "io_callback": lambda x: hcb.io_callback(double, shape(x), x),
    "pure_callback": lambda x: hcb.pure_callback(double, shape(x), x),
    "debug.callback": lambda x: debug(x),
    "debug.callback partitioned": lambda x: debug(x, partitioned=True),
    "buffer_callback": lambda x: hcb.buffer_callback(fill, shape(x), has_side_effect=True)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(lambda v: double(np.from_dlpack(v)), shape(x))(x),
}

def run(construct, refusals):
    sizes = {"a": 2, "b": 2}
    order = ["a", "b"]
    between = inside = lambda function: function
    match construct:
        case "reversed":
            order = ["b", "a"]
        case "three":
            sizes, order = {"a": 2, "c": 1, "b": 2}, ["a", "c", "b"]
        case "outer of size 1":
            sizes = {"a": 1, "b": 4}
        case "inner of size 1":
            sizes = {"a": 4, "b": 1}
        case "loop between":
            between = lambda function: lambda x: jax.lax.fori_loop(0, 1, lambda i, x: function(x), x)
        case "loop inside":
            inside = lambda function: lambda x: jax.lax.scan(lambda x, _: (function(x), None), x, None, length=1)[0]
        case "cond":
            between = lambda function: lambda x: jax.lax.cond(x.sum() >= 0, function, lambda x: x, x)
        case "jit":
            between = inside = jax.jit
        case "checkpoint":
            between = inside = jax.checkpoint

    mesh = jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        devices=jax.devices()[:4],
        axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
    )
    specs = {"a": P("a"), "b": P(None, "b"), "c": P("c")}
    operand = jnp.arange(16.0).reshape(4, 4)
    rows, columns = sizes["a"], sizes["b"]
    parts = [part.tolist() for row in np.split(np.asarray(operand), rows) for part in np.split(row, columns, axis=1)]
    for kind in chosen.split(","):
        seen.clear()
        devices.clear()
        nested = inside(kinds[kind])
        for level, axis in enumerate(reversed(order)):
            outermost = level == len(order) - 1
            body = nested if level == 0 else between(lambda x, inner=nested: inner(x))
            nested = jax.shard_map(
                body, mesh=mesh if outermost else None, in_specs=specs[axis], out_specs=specs[axis], axis_names={axis}
            )
        try:
            result = jax.jit(nested)(operand)
            hcb.barrier_wait()
        except NotImplementedError as error:
            refusals[kind] = str(error)
            continue
        assert np.array_equal(result, 2 * operand), (kind, result)
        assert sorted(seen) == sorted(parts), (kind, seen)
        if devices:
            assert sorted(devices) == list(enumerate(parts)), (kind, devices)

found = {construct: {} for construct in constructs.split(",")}
for construct, refusals in found.items():
    run(construct, refusals)
print(json.dumps(found))
"""

ORDERED = ["id_tap", "call", "io_callback ordered", "debug.callback ordered"]
OTHERS = [
    "io_callback",
    "pure_callback",
    "debug.callback",
    "debug.callback partitioned",
    "buffer_callback",
    "dlpack_callback",
]


def check(kinds: list[str], partitioner: str, *constructs: str, refused: list[str]) -> None:
    found = run_program(PROGRAM, ",".join(kinds), ",".join(constructs), partitioner, devices=4, timeout=120.0).json()
    assert {construct: sorted(refusals) for construct, refusals in found.items()} == dict.fromkeys(
        constructs, sorted(refused)
    )
    for refusals in found.values():
        for kind, text in refusals.items():
            assert text.startswith(f"{kind.removesuffix(' ordered')}: "), text
            assert "shard_map inside of another" in text, text


@pytest.mark.contract("H9")
def test_each_device_calls_with_its_part() -> None:
    check(ORDERED + OTHERS, "shardy", "plain", refused=ORDERED if REFUSED else [])


@pytest.mark.contract("H9")
def test_the_same_with_gspmd() -> None:
    check(ORDERED + OTHERS, "gspmd", "plain", refused=[])


@pytest.mark.contract("H4")
def test_in_other_constructs() -> None:
    constructs = ("reversed", "three", "loop between", "loop inside", "cond", "jit", "checkpoint")
    check(["call", "io_callback"], "shardy", *constructs, refused=["call"] if REFUSED else [])


@pytest.mark.contract("H9")
def test_axes_of_size_1() -> None:
    check(["id_tap", "call", "io_callback"], "shardy", "outer of size 1", "inner of size 1", refused=[])
