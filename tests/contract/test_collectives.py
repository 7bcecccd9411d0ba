"""H15 where devices wait for each other: a failed call, and peers in a collective."""

from __future__ import annotations

import signal

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H15")

COLLECTIVES = """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.arange(64, dtype=np.float32), NamedSharding(mesh, P("d")))
fail = False
RESULTS = dict(
    returned=lambda x, before, y: y,
    unused=lambda x, before, y: before,
    reduced=lambda x, before, y: jnp.sum(y) + jnp.sum(x[::-1]),
    sliced=lambda x, before, y: jnp.ravel(y)[:1],
)

def function(a):
    if fail:
        raise ValueError("the reason")
    return a + 1

def around(result, x):
    before = jnp.sum(x)
    z = jnp.dot(x, x)
    y = hcb.call(function, WHAT, result_shape=WHAT)
    return RESULTS[result](x, before, y), z, jnp.max(x)

for result in RESULTS:
    fail = False
    program = jax.jit(functools.partial(around, result))
    wanted = [np.asarray(out) for out in program(x)]
    for n in range(20):
        fail = n % 2 == 0
        try:
            outs = jax.block_until_ready(program(x))
            assert not fail, f"{result}: round {n} should have failed"
            for out, want in zip(outs, wanted):
                assert np.array_equal(out, want), (result, n, out, want)
        except jax.errors.JaxRuntimeError as error:
            assert fail and "the reason" in str(error) and "int8[12345]" in str(error), error
            try:
                hcb.barrier_wait()
            except hcb.CallbackException:
                continue
            raise AssertionError("the barrier should report the failure")
    hcb.barrier_wait()
    print(result, flush=True)
"""


@pytest.mark.parametrize("what", ["x", "before", "x * before"], ids=["sharded", "replicated", "mixed"])
def test_failing_call_among_collectives_of_automatic_sharding(what: str) -> None:
    ended = run_program(COLLECTIVES.replace("WHAT", what)).check()
    assert ended.lines == ["returned", "unused", "reduced", "sliced"], str(ended)


PEERS = """
def function(a, device):
    if fail and device.id == 3:
        raise ValueError("the reason")
    return a + 1

def shard(x):
    y = hcb.call(function, x, result_shape=x, call_with_device=True)
    return jax.lax.psum(y, "d")

mesh = Mesh(np.array(jax.devices()), "d")
program = dict(
    pmap=jax.pmap(shard, "d"),
    shard_map=jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P(None), check_vma=False)),
)[LAYOUT]
x = np.ones((8, 4), np.float32)
for n in range(3):
    fail = n == 1
    try:
        out = np.asarray(program(x)).reshape(-1, 4)
        assert not fail and (out == 16).all(), (n, out)
    except jax.errors.JaxRuntimeError as error:
        assert fail and "the reason" in str(error), error
        print("refused", flush=True)
try:
    hcb.barrier_wait()
except hcb.CallbackException as exception:
    print(len(exception.failures))
"""


@pytest.mark.parametrize("layout", [pytest.param("pmap", marks=pytest.mark.thorough), "shard_map"])
def test_peers_in_a_collective_are_ended_by_the_runtimes_timeout(layout: str) -> None:
    """One device's call fails while the others go on into an all-reduce: no way to tell them, but a bounded wait."""
    timeouts = {"warn_stuck": 1, "terminate": 2}
    flags = " ".join(f"--xla_cpu_collective_call_{name}_timeout_seconds={value}" for name, value in timeouts.items())
    flags += " --xla_force_host_platform_device_count=8"
    ended = run_program(PEERS.replace("LAYOUT", repr(layout)), env={"XLA_FLAGS": flags}, timeout=60)
    assert ended.returncode == -signal.SIGABRT, str(ended)
    logged, _, later = ended.stderr.partition("XLA ends the process")
    assert "the reason" in logged, f"the failure itself was logged: {ended}"
    assert "Termination timeout" in later, str(ended)
