"""H9: the threads of the CPU runtime, of which callbacks that run JAX need more than JAX starts by itself."""

from __future__ import annotations

import os

import pytest
from support.subprocesses import run_program

from hostcb import _compat
from hostcb._threads import pool

pytestmark = pytest.mark.contract("H9")


@pytest.mark.parametrize(("devices", "threads"), [(1, None), (2, "32"), (8, "32"), (9, "36")])
def test_threads_are_asked_for_where_there_are_several_devices(
    devices: int, threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one device JAX's number is enough, and a larger one slows its matrix products."""
    monkeypatch.setattr(_compat, "forced_cpu_devices", lambda: devices)
    monkeypatch.setattr(pool, "_asked_for", 0)
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    for variable in pool.VARIABLES:
        # Set first, so that it is put back afterwards.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    with pool.enough_threads():
        assert [os.environ.get(variable) for variable in pool.VARIABLES] == [threads, None]
    assert not any(variable in os.environ for variable in pool.VARIABLES)
    assert pool._is_large_enough(devices) == (threads is not None)
    assert not pool._is_large_enough(10)


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of another process, such as the first of a container."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: {4, 5, 6}}[pid], raising=False)
    assert pool.usable_cores() == 3


CHOICES = {
    "update": 'jax.config.update("jax_num_cpu_devices", 4)',
    "flags": 'os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"',
    "started_again": 'jax.devices(); jax.extend.backend.clear_backends(); jax.config.update("jax_num_cpu_devices", 4)',
    "one": 'jax.config.update("jax_num_cpu_devices", 1)',
}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_number_of_devices_may_be_chosen_after_the_import(choice: str) -> None:
    """Until JAX starts its devices, which `import hostcb` does not."""
    ended = run_program(
        f"""
import jax.extend.backend
from hostcb._threads import pool
assert "PJRT_NPROC" not in os.environ
{CHOICES[choice]}
devices = jax.devices()
mesh = Mesh(np.array(devices), "d")
tap = lambda x: hcb.id_tap(lambda v, t: jnp.sum(v).block_until_ready(), x)
x = jax.device_put(np.ones(len(devices), np.float32), NamedSharding(mesh, P("d")))
jax.jit(jax.shard_map(tap, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
hcb.barrier_wait()
print(len(devices), pool._asked_for, os.environ.get("PJRT_NPROC"))
""",
        devices=None,
        timeout=60.0,
    ).check()
    assert ended.lines == [{"one": "1 0 None"}.get(choice, "4 32 None")]
    assert "deadlock" not in ended.stderr
