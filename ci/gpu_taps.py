"""Tries taps on this machine's NVIDIA GPU and measures them: in C with HOSTCB_NATIVE_CUDA=1, in Python without it.

Values, order, room and several devices are checked first: if a check fails, the exit status is 1, and the figures mean
nothing. It is 2 where there is no GPU, or where taps are not handed over as the environment asks for.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb as hcb
from hostcb._native.cuda import cuda

STEPS, ROUNDS = 2_000, 7


def in_loop(device: Any, callback: Callable[[Any], Any], steps: int, width: int = 1) -> Callable[[], None]:
    """A program that calls `callback` on an array of 0, 1 and so on."""

    def step(_: int, x: jax.Array) -> Any:
        callback(x)
        return x + 1

    program = jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, x))
    zeros = jax.device_put(np.zeros(width, np.float32), device)
    return lambda: jax.block_until_ready(program(zeros))


def expect(seen: list[Any], expected: list[Any], what: str) -> None:
    hcb.barrier_wait()
    if seen != expected:
        pairs = zip(seen, expected, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(seen), len(expected)))
        found, wanted = seen[at : at + 3], expected[at : at + 3]
        raise AssertionError(f"{what}: {len(seen)} of {len(expected)} came; from {at} on {found}, expected {wanted}")
    print(f"ok: {what}", flush=True)


def values(device: Any) -> None:
    seen: list[Any] = []
    leaves = {"flag": np.bool_(True), "half": jnp.asarray([1.5, -2], jnp.bfloat16), "none": np.zeros((0, 3), np.int8)}
    leaves = jax.device_put({**leaves, "whole": np.arange(6, dtype=np.int32).reshape(2, 3)}, device)
    program = jax.jit(lambda x: hcb.id_tap(lambda arg, _: seen.append(jax.tree.map(np.ndarray.tolist, arg)), x))
    for _ in range(5):
        jax.block_until_ready(program(leaves))
    expect(seen, [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), leaves)] * 5, "values of several types")


def order(device: Any) -> None:
    seen: list[Any] = []

    def doubled(arg: np.ndarray) -> np.ndarray:
        seen.append(("call", float(arg[0])))
        return arg

    def each(x: jax.Array) -> None:
        x = hcb.id_tap(lambda arg, _: seen.append(("before", float(arg[0]))), x)
        x = hcb.call(doubled, x, result_shape=x)
        hcb.id_tap(lambda arg, _: seen.append(("after", float(arg[0]))), x)

    program = in_loop(device, each, 200)
    for _ in range(3):
        program()
    expected = [(label, float(n)) for n in range(200) for label in ("before", "call", "after")]
    expect(seen, expected * 3, "taps around calls are in order")


def room(device: Any) -> None:
    seen: list[float] = []
    steps = 4_000
    program = in_loop(device, lambda x: hcb.id_tap(lambda arg, _: seen.append(float(arg[-1])), x), steps, 1 << 13)
    program()
    expect(seen, [float(n) for n in range(steps)], "more values than a ring has room for")


def devices_apart(devices: list[Any]) -> None:
    seen: list[tuple[Any, float]] = []
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def body(x: jax.Array) -> jax.Array:
        tap = lambda arg, _, device: seen.append((device, float(arg[0])))
        return jax.lax.fori_loop(0, 100, lambda _, y: hcb.id_tap(tap, y, tap_with_device=True) + 1, x)

    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    jax.block_until_ready(program(np.arange(len(devices), dtype=np.float32) * 1000))
    hcb.barrier_wait()
    for n, device in enumerate(devices):
        mine = [value for where, value in seen if where == device]
        expect(mine, [1000.0 * n + step for step in range(100)], f"a ring of its own for {device}")


def microseconds(program: Callable[[], None]) -> float:
    """What one callback of a program costs the device: the median over some runs."""
    program()
    took = []
    for _ in range(ROUNDS):
        hcb.barrier_wait()
        jax.effects_barrier()
        start = time.perf_counter()
        program()
        took.append((time.perf_counter() - start) / STEPS * 1e6)
    return statistics.median(took)


def measure(device: Any) -> None:
    ignore = lambda arg, _: None
    programs = {
        "nothing": in_loop(device, lambda x: None, STEPS),
        "id_tap": in_loop(device, lambda x: hcb.id_tap(ignore, x), STEPS),
        "id_tap of 32 KiB": in_loop(device, lambda x: hcb.id_tap(ignore, x), STEPS, 1 << 13),
        "jax.debug.callback": in_loop(device, lambda x: jax.debug.callback(lambda arg: None, x), STEPS),
    }
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1_000))

    for name, program in programs.items():
        print(f"{name}: {microseconds(program):.2f} µs a step, idle", flush=True)
    thread = threading.Thread(target=compute)
    thread.start()
    for name, program in programs.items():
        print(f"{name}: {microseconds(program):.2f} µs a step, beside a thread that computes", flush=True)
    ended.set()
    thread.join()


def main() -> int:
    try:
        devices = jax.devices("cuda")
    except RuntimeError as error:
        print(f"ERROR: JAX finds no NVIDIA GPU: {error}", file=sys.stderr)
        return 2
    print(f"{devices[0].device_kind}, JAX {jax.__version__}: {cuda.state()}", flush=True)
    if cuda.asked_for != cuda.is_ready():
        print(f"ERROR: the environment asks for taps in C, and {cuda.state()}", file=sys.stderr)
        return 2
    for check in (values, order, room):
        check(devices[0])
    if len(devices) > 1:
        devices_apart(devices)
    measure(devices[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
