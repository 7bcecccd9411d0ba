"""Programs of `test_handover_cuda.py`, each of which gets the stand-in for the driver, and raises where it is wrong."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from support import stand_in_for_cuda as stand_in
from support.stand_in_for_cuda import ALLOCATE, CALL, CONTEXT, COPY, POP, PUSH, WAIT, Driver
from support.taps_in_loops import Seen, ring_of, rows, taps_in_loop, until
from support.taps_on_gpus import script_for_gpus  # noqa: F401

import hostcb as hcb
from hostcb._runtime.queue import rings, sites
from hostcb._runtime.queue.queues import queues

BUDGET = "jax_host_callback_max_queue_byte_size"


def contents(driver: Driver) -> None:
    """Each leaf arrives; the first value goes through Python, all others by the ring, without waiting."""
    seen, steps = Seen(), 500
    values = {
        "flag": np.bool_(True),
        "half": jnp.asarray([1.5, -2], jnp.bfloat16),
        "none": np.zeros((0, 3), np.int8),
        "whole": np.arange(6, dtype=np.int64).reshape(2, 3),
    }

    def step(n: Any, carried: Any) -> Any:
        return hcb.id_tap(seen.tap, {**carried, "n": n})["n"] * 0 + carried["flag"], carried

    program = jax.jit(lambda given: jax.lax.fori_loop(0, steps, lambda n, c: step(n, c)[1], given))
    waited, launched = driver.calls(WAIT), driver.calls(CALL)
    jax.block_until_ready(program(values))
    assert (driver.calls(WAIT) - waited, driver.calls(CALL) - launched) == (1, steps - 1)
    driver.barrier()
    told = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), values)
    seen.must_be({**told, "n": n} for n in range(steps))


def order(driver: Driver) -> None:
    """Taps, calls and eager taps keep their order, although the stream is slow."""
    seen: list[Any] = []
    driver.delay(200)

    def labelled(label: str) -> Any:
        return lambda arg, transforms: seen.append((label, float(arg)))

    def doubled(arg: Any) -> Any:
        seen.append(("call", float(arg)))
        return arg

    def step(_: Any, x: Any) -> Any:
        x = hcb.id_tap(labelled("one"), hcb.id_tap(labelled("zero"), x) + 1)
        x = hcb.call(doubled, x + 1, result_shape=x)
        return hcb.id_tap(labelled("three"), x + 1) + 1

    program = jax.jit(lambda x: jax.lax.fori_loop(0, 50, step, x))
    for _ in range(2):
        jax.block_until_ready(program(0.0))
        # The token of a program on a GPU is ready when its values have arrived.
        driver.arrive()
        hcb.id_tap(labelled("eager"), np.float32(-1))
    driver.barrier()
    labels = ("zero", "one", "call", "three")
    once = [(label, float(4 * n + k)) for n in range(50) for k, label in enumerate(labels)]
    assert seen == [*once, ("eager", -1.0)] * 2, seen[:12]
    driver.delay(0)


def full_ring(driver: Driver) -> None:
    """What the ring has no room for goes through Python, which waits for the stream; memory is used again."""
    seen, width = Seen(), 1 << 12
    steps = 3 * rings.CAPACITY // (4 * width)
    program = taps_in_loop(lambda arg, _: seen.append([float(arg[0]), float(arg[-1])]), steps, width)
    program(0)
    driver.barrier()
    seen.must_be(rows(steps, 2))
    waited = driver.calls(WAIT)
    thread = threading.Thread(target=program, args=(0,))
    with driver.held():
        thread.start()
        # A handler waits for the stream, without the interpreter lock, with the ring full of values on their way.
        until(lambda: driver.calls(WAIT) > waited)
        assert ring_of().is_expecting() and not seen
    thread.join()
    driver.barrier()
    seen.must_be(rows(steps, 2))


def small_budget(driver: Driver) -> None:
    """Values on their way count, too; and a function may run JAX while the queue is full."""
    seen, steps = Seen(), 200
    inner = jax.jit(lambda x: hcb.id_tap(seen.tap, x + 1) * 2)
    jax.config.update(BUDGET, 4096)

    def tap(arg: Any, transforms: Any) -> None:
        seen.append(arg.tolist()[:1])
        if arg[0] % 50 == 0:
            jax.block_until_ready(inner(np.full(1, arg[0] + 0.25, np.float32)))

    program = taps_in_loop(tap, steps, 256)
    before = driver.calls(WAIT)
    program(0)
    driver.barrier()
    assert driver.calls(WAIT) - before > steps // 10
    expected: list[Any] = []
    for n in range(steps):
        expected += [[float(n)]] + [[n + 1.25]] * (n % 50 == 0)
    seen.must_be(expected)
    jax.config.update(BUDGET, None)


def large_values(driver: Driver) -> None:
    """Values of more than 64 KiB go as without the library, in order with small ones."""
    seen = Seen()

    def step(n: Any, x: Any) -> Any:
        hcb.id_tap(lambda arg, _: seen.append(int(arg)), n)
        return hcb.id_tap(lambda arg, _: seen.append(float(arg[-1])), x) + 1

    driver.delay(100)
    jax.block_until_ready(jax.jit(lambda x: jax.lax.fori_loop(0, 20, step, x))(jnp.zeros(1 << 15)))
    driver.barrier()
    driver.delay(0)
    seen.must_be(each for n in range(20) for each in (n, float(n)))


def traced(driver: Driver) -> None:
    """While a trace is on, values go through Python."""
    seen = Seen()
    program = taps_in_loop(seen.tap, 20)
    program(0)
    driver.barrier()
    launched = driver.calls(CALL)
    with tempfile.TemporaryDirectory() as folder, hcb.trace(f"{folder}/trace.json"):
        program(0)
        driver.barrier()
    assert driver.calls(CALL) == launched
    seen.must_be(rows(20) * 2)


def nested(driver: Driver) -> None:
    """Taps of a program that a callback starts run at once; once that has happened, its taps go through Python."""
    seen = Seen()
    inner = taps_in_loop(seen.tap, 3)

    def function(arg: Any) -> Any:
        inner(0)
        seen.append("outer")
        return arg

    for _ in range(3):
        inner(0)
        driver.arrive()
        jax.block_until_ready(jax.jit(lambda x: hcb.call(function, x, result_shape=x))(1.0))
        driver.barrier()
        seen.must_be([*rows(3), *rows(3), "outer"])


def raising(driver: Driver) -> None:
    """The failure of a user function is reported by the barrier, and the device goes on."""
    seen = Seen()

    def tap(arg: Any, transforms: Any) -> None:
        seen.tap(arg, transforms)
        if arg[0] == 5:
            raise ValueError("planted")

    taps_in_loop(tap, 20)(0)
    try:
        driver.barrier()
        raise AssertionError("the barrier says nothing of the failure")
    except hcb.CallbackException as error:
        assert "planted" in str(error)
    seen.must_be(rows(20))


def stopped(driver: Driver) -> None:
    """Stopping runs what has arrived; values that arrive later run, too."""
    seen = Seen()
    program = taps_in_loop(seen.tap, 20)
    program(0)
    driver.arrive()
    hcb.stop_outfeed_receiver()
    seen.must_be(rows(20))
    program(0)
    driver.barrier()
    with driver.held():
        program(0)
        hcb.stop_outfeed_receiver()
    driver.barrier()
    program(0)
    driver.barrier()
    seen.must_be(rows(20) * 3)


def dropped_program(driver: Driver) -> None:
    """Values of an executable that has been dropped still arrive."""
    seen = Seen()
    program = taps_in_loop(seen.tap, 30)
    program(0)
    driver.arrive()
    with driver.held():
        program(0)
        del program
        jax.clear_caches()
        gc.collect()
        assert ring_of().is_expecting()
    driver.barrier()
    seen.must_be(rows(30) * 2)
    gc.collect()
    assert not sites.leaving


def forked(driver: Driver) -> None:
    """A forked child has none of the values that are on their way."""
    seen = Seen()
    program = taps_in_loop(seen.tap, 5)
    program(0)
    driver.barrier()
    # JAX warns of every fork.
    with driver.held(), warnings.catch_warnings(action="ignore"):
        program(0)
        assert ring_of().is_expecting()
        child = os.fork()
        if child == 0:
            hcb.barrier_wait()
            os._exit(int(len(seen) != 5))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    driver.barrier()
    seen.must_be(rows(5) * 2)


def per_device(driver: Driver) -> None:
    """Under shard_map each device has its own ring and stream."""
    seen: list[Any] = []
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    def body(x: Any) -> Any:
        tap = lambda arg, _, device: seen.append((device.id, float(arg[0])))
        step = lambda _, y: hcb.id_tap(tap, y, tap_with_device=True) + 1
        return jax.lax.fori_loop(0, 100, step, x)

    spec = PartitionSpec("d")
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    jax.block_until_ready(program(np.array([0.0, 1000.0], np.float32)))
    driver.barrier()
    for device, first in ((0, 0.0), (1, 1000.0)):
        assert [value for where, value in seen if where == device] == [first + n for n in range(100)]
    assert ring_of(0) is not ring_of(1)


def threads(driver: Driver) -> None:
    """Taps of programs in several threads, beside one that computes: nothing is lost or out of order."""
    steps, seen, ended = int(os.environ.get("STEPS", "3000")), [list[float]() for _ in range(4)], threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    def program_of(number: int) -> Any:
        mine = taps_in_loop(lambda arg, _: seen[number].append(float(arg[0])), steps)

        def run() -> None:
            with jax.default_device(jax.devices()[number % 2]):
                mine(0)

        return run

    workers = [threading.Thread(target=program_of(number)) for number in range(4)]
    computing = threading.Thread(target=compute)
    for each in (*workers, computing):
        each.start()
    for each in workers:
        each.join()
    driver.barrier()
    ended.set()
    computing.join()
    assert all(values == [float(n) for n in range(steps)] for values in seen), [len(values) for values in seen]


def out_of_order(driver: Driver) -> None:
    """On several streams values arrive in another order; Python sees those before the first that is missing."""
    seen = Seen()
    program = taps_in_loop(seen.tap, 41)
    program(0)
    driver.barrier()
    seen.must_be(rows(41))
    with driver.held(2):
        program(0)
        for stream in (0, 1, 3):
            driver._functions.stand_in_wait(stream)
        until(lambda: not queues[jax.devices()[0]].is_pending())
        early = len(seen)
        assert early <= 3 and ring_of().is_expecting(), early
    driver.barrier()
    seen.must_be(rows(41))


# JAX's fast dispatch, which CPU devices take here, raises an operation's own error as a ValueError.
ENDED = (jax.errors.JaxRuntimeError, ValueError)


def failures(driver: Driver) -> None:
    """Each failure of the driver fails the program with its name and number, and those that follow are well."""
    seen = Seen()
    words = {700: "CUDA_ERROR_ILLEGAL_ADDRESS (700)", 2: "CUDA_ERROR_OUT_OF_MEMORY (2)"}

    def fails(program: Any, function: int, after: int, name: str, code: int = 700) -> None:
        driver.fail(function, after, code)
        try:
            program(0)
        except ENDED as error:
            wanted = f"hostcb: {name} failed with {words.get(code, f'an error without a name ({code})')}"
            assert wanted in str(error), str(error)
        else:
            raise AssertionError(f"{name} failed, and the program did not")
        driver.arrive()
        try:
            hcb.barrier_wait()
        except hcb.CallbackException as error:
            raise AssertionError("no user function has failed") from error
        came = len(seen)
        assert seen == rows(came) and came <= after + 1, (name, seen)
        seen.clear()
        program(0)
        driver.barrier()
        seen.must_be(rows(20))
        assert driver.contexts_left() == 0

    # No value has been handed over yet, so there is no ring.
    fails(taps_in_loop(seen.tap, 20), ALLOCATE, 0, "cuMemHostAlloc", 2)
    fails(taps_in_loop(seen.tap, 20), COPY, 0, "cuMemcpyDtoHAsync_v2")
    fails(taps_in_loop(seen.tap, 20), WAIT, 0, "cuStreamSynchronize")
    for after in (0, 7):
        fails(taps_in_loop(seen.tap, 20), CONTEXT, after, "cuStreamGetCtx")
        fails(taps_in_loop(seen.tap, 20), PUSH, after, "cuCtxPushCurrent_v2", 999)
        fails(taps_in_loop(seen.tap, 20), COPY, after + 1, "cuMemcpyDtoHAsync_v2")
        fails(taps_in_loop(seen.tap, 20), CALL, after, "cuLaunchHostFunc", 2)
    # The value was handed over before.
    fails(taps_in_loop(seen.tap, 20), POP, 7, "cuCtxPopCurrent_v2")
    # The second operand's copy and the wait for the first one's fail: nobody may use the memory again.
    pair = jax.jit(lambda x: hcb.id_tap(lambda arg, _: seen.append([float(arg[0])]), (x, x * 2)))
    pair(0.0)
    driver.fail(COPY, 1)
    driver.fail(WAIT)
    try:
        jax.block_until_ready(pair(1.0))
        raise AssertionError("the copy failed, and the program did not")
    except ENDED as error:
        assert "cuMemcpyDtoHAsync_v2 failed" in str(error)
    launched = driver.calls(CALL)
    for n in range(1, 20):
        jax.block_until_ready(pair(float(n)))
    driver.barrier()
    seen.must_be(rows(20))
    assert driver.calls(CALL) == launched, "the ring was used after its memory was given up"


def broken_stream(driver: Driver) -> None:
    """Values that never arrive hold nothing up: a call is refused, a barrier and the exit end."""
    seen = Seen()
    rings.PATIENCE = 0.1
    program = taps_in_loop(seen.tap, 5)
    program(0)
    driver.barrier()
    with driver.held():
        program(0)
        driver.break_stream(0)
    try:
        jax.block_until_ready(jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x))(1.0))
        raise AssertionError("the call came although the order is not known")
    except ENDED as error:
        assert "have not come from the device in 0.1 s, so their order is not known" in str(error), str(error)
    try:
        hcb.barrier_wait()
        raise AssertionError("a call was refused, and the barrier says nothing")
    except hcb.CallbackException:
        pass
    seen.must_be(rows(5))


if __name__ == "__main__":
    path, streams, *names = sys.argv[1:]
    with stand_in.installed(path, int(streams)) as driver:
        for name in names:
            globals()[name](driver)
            print(name, "holds", flush=True)
