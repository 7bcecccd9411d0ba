"""Fault cells of what a program imports, or sets, after its first callback: kernels of Pallas, and flags of absl."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

INLINE = "jax_host_callback_inline"


# Where Pallas has not been imported yet.
@planted("jit", "id_tap call", "H4", functions="barrier_wait", isolated=True)
def in_kernels_imported_later(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In an interpreted kernel whose result is unused a callback runs, also if its function was called before."""
    seen: list[list[float]] = []

    def host(operand: Any) -> Any:
        seen.append(np.asarray(operand).tolist())
        return np.asarray(operand) + np.float32(1)

    def host_of_kernel(operand: Any) -> Any:
        return host(operand)

    # Both ways of a function before: the kernel traces the first one again.
    def tap(operand: Any, transforms: Any) -> None:
        host(operand)

    def apply(x: Any, again: bool) -> Any:
        if callback.function == "id_tap" and again:
            # The same function, and no new one around it.
            return bench.implementation.tap(tap, x)
        return bench.apply(callback, host if again else host_of_kernel, x)

    operand = np.arange(4, dtype=np.float32)
    # It stays alive: what was known of its function counts.
    before = jax.jit(lambda x: apply(x, True))
    wanted = bench.expected(callback, operand)
    anomalies = check_value("a program without kernels", lambda: before(operand), wanted)
    anomalies += check_quiet_barrier(bench, "after a program without kernels")
    pallas = importlib.import_module("jax.experimental.pallas")
    for what, again in (("a function that was called before", True), ("a function of its own", False)):

        def kernel(x: Any, out: Any, again: bool = again) -> None:
            out[...] = apply(x[...], again) * 2

        def held(x: Any, kernel: Callable[..., None] = kernel) -> Any:
            return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

        def unused(x: Any, held: Callable[[Any], Any] = held) -> Any:
            held(x + 1)
            return x

        for use, program, given, due in (
            ("is unused", unused, operand + 1, operand),
            ("is used", held, operand, wanted * 2),
        ):
            seen.clear()
            label = f"{what}, in a kernel whose result {use}"
            anomalies += check_value(label, lambda run=program: jax.jit(run)(operand), due)  # type: ignore[misc]
            anomalies += check_quiet_barrier(bench, f"after {label}")
            if seen != [given.tolist()]:
                anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{label}: it saw {seen}"))
    return anomalies + check_value("the first program again", lambda: before(operand), wanted)


@planted("jit", "id_tap call", "H16", functions="barrier_wait", isolated=True)
def flags_of_absl_set_later(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H16: a flag of absl that is set after the first callback, and again later, is that of the next callback."""
    if importlib.util.find_spec("absl") is None:
        # Without absl there are no such flags.
        return []
    flags: Any = importlib.import_module("absl.flags")
    values = flags.FLAGS
    values(["conformance"])
    threads: list[int] = []

    def host(operand: Any) -> Any:
        threads.append(threading.get_ident())
        return np.asarray(operand)

    here = threading.get_ident()
    anomalies: list[Anomaly] = []
    for number, (by_absl, by_config, wanted) in enumerate(
        (
            (None, None, False),
            (True, None, True),
            (False, None, False),
            (True, None, True),
            (True, False, False),
            (False, True, True),
            (False, None, False),
        )
    ):
        threads.clear()
        if by_absl is not None:
            setattr(values, INLINE, by_absl)
        jax.config.update(INLINE, by_config)
        bench.apply(callback, host, jnp.float32(number))
        # A call outside jit runs in the calling thread in any case, and a tap in it only if it runs at once.
        at_once = [*threads] == [here]
        anomalies += check_quiet_barrier(bench, "after a flag")
        if len(threads) != 1 or (callback.function == "id_tap" and at_once != wanted):
            witness = (
                f"with the flag {by_absl} by absl and {by_config} by jax.config, step {number}: it ran"
                f" {len(threads)} times, inline {at_once}, expected {wanted}"
            )
            anomalies.append(Anomaly("mistaken", Stage.CALLBACK, witness))
    return anomalies
