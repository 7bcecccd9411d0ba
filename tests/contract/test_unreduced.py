"""Operands of which each device of a mesh has a term of their sum: refused, or summed, and the process lives (H10)."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

# In processes of their own, since the compiler of JAX's own callbacks ends them.
PROGRAM = """
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import AxisType, PartitionSpec as P

places, names = sys.argv[1:]
if names == "jax":
    hcb.install()
    library, io, buffer = jax, io_callback, buffer_callback
else:
    library, io, buffer = hcb, hcb.io_callback, hcb.buffer_callback
like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
plus = lambda x: np.asarray(x) + np.float32(1)

def fill(context, out, value):
    np.asarray(out)[...] = plus(value)

kinds = {
    "pure_callback": lambda x: library.pure_callback(plus, like(x), x),
    "io_callback": lambda x: io(plus, like(x), x),
    "io_callback ordered": lambda x: io(plus, like(x), x, ordered=True),
    "in a tree": lambda x: library.pure_callback(lambda a: plus(a["b"][1]), like(x), {"b": (np.float32(1), x)}),
    "debug.callback": lambda x: library.debug.callback(lambda x: None, x),
    "debug.callback ordered": lambda x: library.debug.callback(lambda x: None, x, ordered=True),
    "debug.callback partitioned": lambda x: library.debug.callback(lambda x: None, x, partitioned=True),
    "debug.print": lambda x: library.debug.print("{}", x),
    "buffer_callback": lambda x: buffer(fill, like(x))(x),
}
if names == "hostcb":
    kinds |= {
        "id_tap": lambda x: hcb.id_tap(lambda x, transforms: None, x),
        "id_print": lambda x: hcb.id_print(x),
        "call": lambda x: hcb.call(plus, x, result_shape=x),
        "dlpack_callback": lambda x: hcb.dlpack_callback(lambda x: plus(np.from_dlpack(x)), like(x))(x),
    }
mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Explicit,))
jax.set_mesh(mesh)
rows = jax.device_put(jnp.arange(4.0), P("a"))
columns = jax.device_put(jnp.arange(4.0).reshape(4, 1), P("a", None))

def terms(rows, columns):
    return jnp.einsum("i,ij->j", rows, columns, out_sharding=P(None, unreduced={"a"}))

def added(rows, columns):
    return jax.sharding.reshard(terms(rows, columns), P(None))

def run(place, kind):
    try:
        if place == "traced":
            result = jax.jit(lambda rows, columns: kind(terms(rows, columns))).trace(rows, columns)
            result = result.lower().compile()(rows, columns)
        elif place == "operand":
            result = jax.jit(kind)(terms(rows, columns))
        elif place == "eager":
            result = kind(terms(rows, columns))
        elif place == "shard_map":
            inside = lambda rows: (kind(jax.lax.pcast(rows, "a", to="unreduced")), rows)[1]
            result = jax.jit(jax.shard_map(inside, in_specs=P("a"), out_specs=P("a")))(rows)
        elif place == "added in shard_map":
            inside = lambda rows: (kind(jax.lax.psum(jax.lax.pcast(rows, "a", to="unreduced"), "a")), rows)[1]
            result = jax.jit(jax.shard_map(inside, in_specs=P("a"), out_specs=P("a")))(rows)
        elif place == "added":
            result = jax.jit(lambda rows, columns: kind(added(rows, columns)))(rows, columns)
        else:
            result = jax.jit(kind)(jax.sharding.reshard(jnp.float32([14]), P(None, reduced={"a"})))
        jax.effects_barrier()
        return None if result is None else np.asarray(result).tolist()
    except NotImplementedError as error:
        return "refused" if "unreduced over ['a']" in str(error) else str(error)

print(json.dumps({place: {name: run(place, kind) for name, kind in kinds.items()} for place in places.split(",")}))
"""
# A buffer is memory of each device: the compiler adds the terms.
IN_PLACE = ("buffer_callback", "dlpack_callback")
WITHOUT_RESULT = ("debug.callback", "debug.callback ordered", "debug.callback partitioned", "debug.print")


@pytest.mark.contract("H10", "H27")
@pytest.mark.parametrize("names", ["jax", "hostcb"])
def test_an_unreduced_operand_is_refused(names: str) -> None:
    found = run_program(PROGRAM, "traced,operand,eager,shard_map", names, devices=4, timeout=120.0).json()
    for place, ended in found.items():
        assert len(ended) == (9 if names == "jax" else 13)
        for name, result in ended.items():
            summed = name in IN_PLACE and place != "shard_map"
            assert result == ([15.0] if summed else "refused"), (place, name, result)


@pytest.mark.contract("H10")
def test_a_value_that_is_added_up_is_passed() -> None:
    """The advice of the error, and an array whose cotangent alone is unreduced."""
    found = run_program(PROGRAM, "added,added in shard_map,reduced", "hostcb", devices=4, timeout=120.0).json()
    for place, ended in found.items():
        for name, result in ended.items():
            wanted = None if name in WITHOUT_RESULT else [14.0] if name.startswith("id_") else [15.0]
            assert result == ([0.0, 1.0, 2.0, 3.0] if place == "added in shard_map" else wanted), (place, name, result)
