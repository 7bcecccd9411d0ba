"""H5, H9: what hostcb knows of devices ends with JAX's clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.subprocesses import run_program

from hostcb._compat import runtime


@pytest.mark.contract("H5")
def test_each_clearing_is_reported_once() -> None:
    told = run_program(
        """
        import jax.extend.backend
        from hostcb import _compat
        told = []
        def fails():
            told.append("fails")
            raise ValueError("on purpose")
        _compat.on_backends_cleared(fails)
        _compat.on_backends_cleared(lambda: told.append("last"))
        steps = []
        for step in (jax.clear_caches, jax.devices, jax.extend.backend.clear_backends, jax.clear_caches, jax.devices,
                     jax.extend.backend.clear_backends, jax.devices, jax.extend.backend.clear_backends):
            step()
            steps.append("".join(each[0] for each in told))
            told.clear()
        print(json.dumps(steps))
        """.replace("\n        ", "\n"),
        devices=2,
    ).json()
    assert told == ["", "", "fl", "", "", "fl", "", "fl"]


@pytest.mark.contract("H5")
def test_the_clearing_of_caches_is_a_second_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[Any] = []
    clients = SimpleNamespace(value={}, lost=False, now=lambda: clients.value)
    monkeypatch.setattr(runtime, "_CLIENTS", clients)
    monkeypatch.setattr(runtime, "_CLEAR", SimpleNamespace(holds=False))
    register = SimpleNamespace(holds=True, value=lambda cache, _: caches.append(cache))
    monkeypatch.setattr(runtime, "_CACHES", register)
    clearing = runtime._Clearing()
    told: list[str] = []
    clearing.tell(lambda: told.append("cleared"))
    # A JAX that clears its clients by a function unknown to hostcb.
    clients.value = {}
    assert told == []
    for _ in range(2):
        caches[0].cache_clear()
        assert told == ["cleared"]


@pytest.mark.contract("H5")
def test_jaxs_own_function_gets_its_arguments_and_returns_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = SimpleNamespace(value={}, lost=False, now=lambda: clients.value)
    given: list[Any] = []
    installed: list[Any] = []

    def clear(*args: Any, **kwargs: Any) -> str:
        given.append((args, kwargs))
        clients.value = {}
        return "cleared"

    monkeypatch.setattr(runtime, "_CLIENTS", clients)
    monkeypatch.setattr(runtime, "_CACHES", SimpleNamespace(holds=False))
    monkeypatch.setattr(runtime, "_CLEAR", SimpleNamespace(holds=True, value=clear, put=installed.append))
    told: list[str] = []
    runtime._Clearing().tell(lambda: told.append("cleared"))
    (in_its_place,) = installed
    assert in_its_place(True, named=2) == "cleared"
    assert given == [((True,), {"named": 2})]
    assert told == ["cleared"]


@pytest.mark.contract("H9")
def test_callbacks_receive_the_devices_that_there_are() -> None:
    """Those of the client that runs them, after it was cleared as well."""
    outcomes = run_program(
        """
        import jax.extend.backend
        seen, lock = [], threading.Lock()
        def tap(value, transforms, *, device):
            with lock: seen.append(device)
        def add(value, device):
            with lock: seen.append(device)
            return value + 1
        def both(x):
            x = hcb.id_tap(tap, x, tap_with_device=True)
            return hcb.call(add, x, result_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), call_with_device=True)
        jitted, fresh = jax.jit(both), lambda: jax.jit(lambda x: both(x))
        compiled = jitted.lower(jax.ShapeDtypeStruct((), np.float32)).compile()
        def ended(run, x, devices):
            seen.clear()
            out = np.asarray(run(x)).ravel().tolist()
            hcb.barrier_wait()
            return out, len(seen), all(any(each is device for device in devices) for each in seen)
        of_old, old, outcomes = jax.device_put(np.float32(1), jax.devices()[0]), jax.devices(), []
        for step in range(3):
            now = jax.devices()
            for run in (jitted, fresh(), both):
                outcomes.append(ended(run, jax.device_put(np.float32(step), now[1]), now))
            mesh = Mesh(np.array(now), "d")
            mapped = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
            outcomes.append(ended(mapped, np.arange(2, dtype=np.float32), now))
            outcomes.append(ended(compiled, of_old, old))
            if step != 1:
                jax.extend.backend.clear_backends()
        print(json.dumps(outcomes))
        """.replace("\n        ", "\n"),
        devices=2,
    ).json()
    expected = [
        each for step in range(3) for each in (*[[[step + 1.0], 2, True]] * 3, [[1.0, 2.0], 4, True], [[2.0], 2, True])
    ]
    assert outcomes == expected


@pytest.mark.contract("H5", "H13")
def test_order_and_barriers_after_the_clearing() -> None:
    """Those that are pending, and those of a program that JAX compiled before: on devices of now, in one order."""
    report = run_program(
        """
        import jax.extend.backend
        from hostcb._runtime.queue.queues import queues
        log, gate = [], threading.Event()
        def tap(value, transforms, *, device):
            gate.wait(30)
            log.append((int(value), any(device is each for each in jax.devices())))
        jitted = jax.jit(lambda x: hcb.id_tap(tap, x, tap_with_device=True))
        eager = lambda x: hcb.id_tap(tap, jnp.int32(x), tap_with_device=True)
        count = jax.jit(lambda x: hcb.call(lambda v: np.int32(len(log)), x, result_shape=x))
        report = []
        for round in range(3):
            gate.set()
            for run in (jitted, eager): run(0)
            jax.effects_barrier()
            log.clear(), gate.clear()
            # In order, in and outside jit, until each of the barriers.
            for barrier in (jax.effects_barrier, hcb.barrier_wait, hcb.stop_outfeed_receiver, lambda: count(7)):
                log.clear(), gate.clear()
                for number in range(0, 6, 2): jitted(number), eager(number + 1)
                gate.set()
                barrier()
                report.append(log == [(number, True) for number in range(6)])
            for number in range(0, 6, 2): jitted(number), eager(number + 1)
            report.append(int(count(7)) == 12)
            # What is pending runs, then the queues of devices that are gone have gone with their threads.
            log.clear(), gate.clear()
            jitted(1), eager(2)
            gate.set()
            jax.extend.backend.clear_backends()
            hcb.barrier_wait()
            report.append([number for number, _ in log] == [1, 2])
            report.append(all(any(device is each for each in jax.devices()) for device in queues))
            consumers = [each for each in threading.enumerate() if each.name.startswith("hostcb-cpu")]
            for each in consumers: each.join(10)
            report.append(not any(each.is_alive() for each in consumers))
        print(json.dumps(report))
        """.replace("\n        ", "\n"),
        devices=1,
        timeout=90,
    ).json()
    assert report == [True] * 24


@pytest.mark.contract("H5")
def test_a_tap_that_clears_the_backends_ends_before_the_taps_behind_it() -> None:
    source = """
import jax.extend.backend
go, later, order = threading.Event(), threading.Event(), []
def clears(a, t):
    go.wait(30)
    jax.extend.backend.clear_backends()
    # One-sided: a tap that runs too early has this time.
    later.wait(0.1)
    order.append(0)
def noted(a, t):
    order.append(int(a))
    later.set()
hcb.id_tap(clears, np.int32(0))
hcb.id_tap(noted, np.int32(1))
go.set()
assert later.wait(30), "it runs without a barrier"
hcb.barrier_wait()
hcb.id_tap(noted, np.int32(2))
hcb.barrier_wait()
assert order == [0, 1, 2], order
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]
