"""Fault cells of taps and calls that take long, start others, or are batched along odd axes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_failed_barrier, check_quiet_barrier, check_value
from .harness.child_processes import run_victim
from .harness.prints import PrintingTo
from .harness.registry import EVERY_LAYOUT, planted
from .traces import library

SLOW_SECONDS = 0.1
SLOW_TAPS = 3
LATEST_SECONDS = 2.0
"""A callback that has not run after this time counts as lost."""


@planted("jit pmap", "id_tap", "H13", isolated=True)
def slow(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier waits for slow callbacks."""
    return _check_barrier_waits(bench, lambda run: run())


@planted("jit", "id_tap", "H13", isolated=True)
def slow_in_another_thread(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier waits, too, for callbacks that another thread has started."""

    def in_thread(run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return _check_barrier_waits(bench, in_thread)


def _check_barrier_waits(bench: Bench, start: Callable[[Callable[[], None]], None]) -> list[Anomaly]:
    begun: list[None] = []
    ended: list[None] = []
    overlaps: list[int] = []

    def slow(operand: Any, transforms: Any) -> None:
        begun.append(None)
        overlaps.append(len(begun) - len(ended))
        time.sleep(SLOW_SECONDS)
        ended.append(None)

    def computation(x: Any) -> Any:
        for _ in range(SLOW_TAPS):
            x = bench.implementation.tap(slow, x)
        return x

    compiled = bench.compile(computation)

    def run() -> None:
        compiled(bench.operand)

    start(run)
    bench.implementation.barrier()
    in_time, wanted = len(ended), SLOW_TAPS * bench.callbacks_per_run
    if in_time == wanted and max(overlaps) > bench.callbacks_per_run:
        # Devices may run concurrently, and each device runs one callback at a time.
        witness = f"{max(overlaps)} callbacks of {bench.callbacks_per_run} devices were running at the same time"
        return [Anomaly("overlap", Stage.CALLBACK, witness)]
    if in_time == wanted:
        return []
    if _becomes_true(lambda: len(ended) == wanted):
        witness = f"{wanted - in_time} of {wanted} callbacks ended after the barrier had returned"
        return [Anomaly("early barrier", Stage.BARRIER, witness)]
    return [Anomaly("lost", Stage.CALLBACK, f"{wanted - len(ended)} of {wanted} slow callbacks never ended")]


def _becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + LATEST_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@planted("jit", "id_tap", "H12", kind="starts_callbacks", deadline=10.0, isolated=True)
def tap_starts_callbacks(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap runs a program that taps and calls, and waits for its result."""
    return _check_inner_program(bench, lambda inner, x: bench.implementation.tap(lambda operand, _: inner(operand), x))


@planted("jit", "call", "H3", kind="starts_callbacks", deadline=10.0, isolated=True)
def call_starts_callbacks(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As above from a call, whose result comes from the inner program's result."""

    def call(inner: Callable[[Any], Any], x: Any) -> Any:
        return bench.implementation.call(inner, x, jax.ShapeDtypeStruct(jnp.shape(x), np.float32)) - 1.0

    return _check_inner_program(bench, call)


def _check_inner_program(bench: Bench, outer: Callable[[Callable[[Any], Any], Any], Any]) -> list[Anomaly]:
    seen: list[Any] = []
    results: list[Any] = []

    def computation(x: Any) -> Any:
        tapped = bench.implementation.tap(lambda operand, _: seen.append(operand), x)
        wanted = jax.ShapeDtypeStruct(jnp.shape(x), np.float32)
        return bench.implementation.call(lambda operand: operand + np.float32(1), tapped, wanted)

    inner = jax.jit(computation)

    def host(operand: Any) -> Any:
        results.append(np.asarray(inner(operand)))
        return results[-1]

    compiled = bench.compile(lambda x: outer(host, x))
    anomalies = check_value("the outer program", lambda: compiled(bench.operand), bench.operand)
    anomalies += check_quiet_barrier(bench, "after callbacks that started others")
    for what, arrays, wanted in (("taps", seen, bench.operand), ("results", results, bench.operand + 1)):
        if len(arrays) != 1 or not np.array_equal(arrays[0], wanted):
            witness = f"the inner program's {what} are {arrays}, expected {wanted} alone"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H7", isolated=True)
def nested_batch(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Every vmap reports its axis, the innermost first, also to a tap that is told its device; here the axes differ."""
    told: list[Any] = []

    def host(operand: Any, transforms: Any, device: Any = None) -> None:
        shapes = [leaf.shape for leaf in jax.tree.leaves(operand)]
        told.append((shapes, device is not None, [(name, dict(entry)) for name, entry in transforms]))

    def batches(*dims: tuple[int | None, ...]) -> list[Any]:
        return [("batch", {"batch_dims": each}) for each in dims]

    anomalies: list[Anomaly] = []
    for with_device in (False, True):

        def tap(x: Any, with_device: bool = with_device) -> Any:
            return library(bench).id_tap(host, x, tap_with_device=with_device)

        def tap_two(x: Any, y: Any, tap: Any = tap) -> Any:
            return tap((x, y))

        # The outer vmap maps axis 0. The inner vmap maps axis 2, which is axis 1 inside the outer vmap.
        twice = jax.vmap(jax.vmap(tap, in_axes=1, out_axes=1))
        apart = jax.vmap(jax.vmap(tap_two, (0, None), (0, None)), (None, 0), (None, 0))
        thrice = jax.vmap(jax.vmap(jax.vmap(tap, 1, 1), 1, 1))
        cube, two, three = np.zeros((2, 3, 4), np.float32), np.zeros(2, np.float32), np.zeros(3, np.float32)
        programs: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
            (twice, (cube,)),
            (apart, (two, three)),
            (thrice, (np.zeros((2, 3, 4, 5), np.float32),)),
        )
        for how in ("in jit", "outside jit"):
            told.clear()
            for program, operands in programs:
                run = bench.compile(program) if how == "in jit" else program
                jax.block_until_ready(run(*operands))
                bench.implementation.barrier()
            wanted = [
                ([(2, 3, 4)], with_device, batches((1,), (0,))),
                ([(2,), (3,)], with_device, batches((0, None), (None, 0))),
                ([(2, 3, 4, 5)], with_device, batches((1,), (1,), (0,))),
            ]
            if told != wanted:
                witness = f"{how} the shapes, whether it knew its device, and what it was told: {told}, not {wanted}"
                anomalies.append(Anomaly("wrong transforms", Stage.CALLBACK, witness))
    return anomalies


@planted(EVERY_LAYOUT, "id_tap", kind="raises")
def raising_tap(bench: Bench, callback: Callback) -> list[Anomaly]:
    return _failing_tap(bench, ValueError(PLANTED))


@planted("jit", "id_print", kind="raises")
def raising_print(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The stream of a print raises."""

    def raising(operand: Any) -> None:
        raise ValueError(PLANTED)

    later: list[float] = []
    stream = PrintingTo(lambda operand: later.append(float(np.sum(operand))))

    def computation(x: Any) -> Any:
        printed = bench.apply(callback, raising, x)
        return bench.implementation.print_labelled(printed * 2.0, output_stream=stream)

    compiled = bench.compile(computation)
    wanted = bench.operand * 2
    anomalies = check_value("the computation that prints", lambda: compiled(bench.operand), wanted)
    anomalies += check_failed_barrier(bench, PLANTED)
    if later != [float(wanted.sum())]:
        witness = f"after a print had raised, later ones wrote sums {later}, expected {wanted.sum()}"
        anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", isolated=True)
def keyboard_interrupt(bench: Bench, callback: Callback) -> list[Anomaly]:
    return _failing_tap(bench, KeyboardInterrupt(PLANTED))


def _failing_tap(bench: Bench, failure: BaseException) -> list[Anomaly]:
    later: list[float] = []

    def raising(operand: Any, transforms: Any) -> None:
        raise failure

    def recording(operand: Any, transforms: Any) -> None:
        later.append(float(operand.sum()))

    def computation(x: Any) -> Any:
        tapped = bench.implementation.tap(raising, x)
        return bench.implementation.tap(recording, tapped * 2.0)

    compiled = bench.compile(computation)
    wanted = bench.operand * 2
    anomalies = check_value("the tapped computation", lambda: compiled(bench.operand), wanted)
    anomalies += check_failed_barrier(bench, PLANTED)
    rows = wanted if bench.callbacks_per_run > 1 else [wanted]
    sums = sorted(float(row.sum()) for row in rows)
    if sorted(later) != sums:
        witness = f"after a tap had raised, later taps saw sums {sorted(later)}, expected {sums}"
        anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    return anomalies


@planted("pmap", "id_tap", "H17", isolated=True)
def pending_at_exit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The interpreter ends right after dispatch; every tap must run before it does."""
    ended = run_victim(bench, "pending_at_exit", fresh=True)
    if ended.status:
        return [Anomaly("error", Stage.EXIT, f"{ended.how}: {ended.errors.strip()[-300:]}")]
    ended.check()
    tapped = sorted(ended.said)
    count = len(bench.devices)
    wanted = sorted(device * 100 + step * 10 for device in range(count) for step in range(1, 6))
    if tapped != wanted:
        lost = sorted(set(wanted) - set(tapped))
        witness = f"{len(tapped)} of {len(wanted)} pending taps ran before exit; lost {lost[:5]}"
        return [Anomaly("lost", Stage.EXIT, witness)]
    return []


@planted("jit", "id_tap", "H17", isolated=True, functions="barrier_wait")
def fails_before_exit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """At the end of the process the log tells of a failure that no barrier has told of."""
    ended = run_victim(bench, "fails_before_exit", fresh=True)
    ended.check()
    lacking = [
        words
        for words in ("no barrier_wait reported it", "the failure that nobody asked for")
        if words not in ended.errors
    ]
    if lacking:
        return [Anomaly("swallowed error", Stage.EXIT, f"it wrote no {lacking}, but {ended.errors.strip()[-300:]!r}")]
    return []
