"""H13: inside of JAX's own callbacks hostcb waits for nothing that waits for them."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H13")

COMMON = """
import jax.experimental
mesh = Mesh(np.array(jax.devices()), "d")
inner = jax.jit(lambda x: hcb.call(lambda v: v + 1, x, result_shape=x))
inner(np.float32(0))
does = {
    "barrier": lambda v: hcb.barrier_wait(),
    "stop": lambda v: hcb.stop_outfeed_receiver(),
    "effects_barrier": lambda v: jax.effects_barrier(),
    "jit": lambda v: inner(v),
    "eager": lambda v: hcb.call(lambda v: v + 1, jnp.asarray(v), result_shape=v),
    "tap": lambda v: hcb.id_tap(lambda v, t: None, jnp.asarray(v)),
}
outcomes, lock = {}, threading.Lock()
def inside(name, before=lambda: None):
    def callback(value, *_):
        before()
        try:
            does[name](np.asarray(value).reshape(()))
            outcome = "ran"
        except RuntimeError as error:
            outcome = "refused" if "from inside a callback" in str(error) else repr(error)
        with lock:
            outcomes.setdefault(name, set()).add(outcome)
        return np.asarray(value)
    return callback
def shape(x): return jax.ShapeDtypeStruct(x.shape, x.dtype)
kinds = {
    "pure": lambda f, x: jax.pure_callback(f, shape(x), x),
    "io": lambda f, x: jax.experimental.io_callback(f, shape(x), x),
    "debug": lambda f, x: (jax.debug.callback(lambda v: (f(v), None)[1], x), x)[1],
}
def sharded(program):
    return jax.jit(jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
ways = {
    "jit": lambda program: jax.jit(lambda x: program(x[0])),
    "pmap": jax.pmap,
    "shard_map": sharded,
    "scan": lambda program: jax.jit(lambda x: jax.lax.scan(lambda c, y: (c, program(y)), 0, x)[1]),
}
x = jnp.arange(2.0)
"""
EXPECTED = {
    "barrier": ["refused"],
    "stop": ["refused"],
    "effects_barrier": ["ran"],
    "jit": ["ran"],
    "eager": ["ran"],
    "tap": ["ran"],
}


def test_in_a_program_with_callbacks_of_hostcb() -> None:
    outcomes = run_program(
        COMMON
        + """
report = {}
for number, name in enumerate(does):
    for kind, make in kinds.items():
        for way, run in ways.items():
            outcomes.clear()
            # The tap is lowered before JAX's callback, or after it.
            first = lambda x: make(inside(name), hcb.id_tap(lambda v, t: None, x))
            last = lambda x: hcb.id_tap(lambda v, t: None, make(inside(name), x))
            jax.block_until_ready(run((first, last)[number % 2])(x))
            hcb.barrier_wait()
            report.setdefault(name, []).append(sorted(outcomes.get(name, ["not run"])))
print(json.dumps({name: sorted({tuple(each) for each in found}) for name, found in report.items()}))
""",
        devices=2,
        timeout=120,
    ).json()
    assert outcomes == {name: [expected] for name, expected in EXPECTED.items()}


@pytest.mark.parametrize("way", ["pmap", "shard_map"])
def test_in_a_program_that_has_none_before_one_on_the_same_devices(way: str) -> None:
    """The second program cannot begin before the first one has ended, whose callback must not wait for it."""
    outcomes = run_program(
        COMMON
        + """
second = ways[sys.argv[1]](lambda x: hcb.id_tap(lambda v, t: None, x))
second(x), hcb.barrier_wait()
for name in does:
    started = threading.Event()
    first = ways[sys.argv[1]](lambda x: kinds["pure"](inside(name, started.wait), x))(x)
    then = second(x)
    started.set()
    jax.block_until_ready((first, then))
    hcb.barrier_wait()
print(json.dumps({name: sorted(found) for name, found in outcomes.items()}))
""",
        way,
        devices=2,
        timeout=90,
    ).json()
    assert outcomes == EXPECTED
