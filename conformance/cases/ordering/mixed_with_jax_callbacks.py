"""Cases of ordered callbacks beside JAX's own ordered ones: each has its own token in the same program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from ...oracle.verdicts import Stage
from ..barriers.what_they_wait_for import EARLY_SECONDS
from ..harness.case import BEGINS_WITHIN, Case, case
from ..harness.hosts import Held, error_of, fail
from ..harness.programs import repeated

STEPS = 3
START = np.float32(10)

Step = Callable[[Any], Any]


@case("jit", "id_tap call", "H5 H13")
def beside_ordered_ones_of_jax(case: Case) -> None:
    """Taps and calls beside JAX's ordered callbacks keep their order, and JAX's theirs, in a loop and one by one."""
    hosts = {name: case.host(name=name) for name in ("hostcb", "io", "debug")}
    steps: dict[str, Step] = {
        "hostcb": lambda x: case.apply(hosts["hostcb"], x, START),
        "io": lambda x: io_callback(hosts["io"], jax.ShapeDtypeStruct((), np.float32), x, ordered=True),
        "debug": lambda x: (jax.debug.callback(hosts["debug"], x, ordered=True), x)[1],
    }
    for order in (("hostcb", "io"), ("io", "hostcb"), ("io", "hostcb", "debug"), ("debug", "io", "hostcb")):

        def step(x: Any, order: tuple[str, ...] = order) -> Any:
            for name in order:
                x = steps[name](x)
            return x + 1

        for program in repeated(step, STEPS):
            with case.part(f"{', '.join(order)}, {program.__name__}"):
                for result in case.runs(program, START):
                    case.gave(result, START + np.float32(STEPS))
                    case.barrier()
                    jax.effects_barrier()
                    for name in order:
                        case.saw(hosts[name], [START + np.float32(number) for number in range(STEPS)])


@case("jit", "id_tap call io_callback_ordered debug_callback_ordered", "H4 H5 X3 X4", needs="effects_barrier")
def between_branches_of_platforms(case: Case) -> None:
    """Callbacks in branches for other platforms do not run, and those before, after and here keep their order."""
    host = case.host()

    def through(x: Any) -> Any:
        return case.apply(host, x)

    def twice(x: Any) -> Any:
        return x * 2

    here = case.devices[0].platform
    elsewhere = "tpu" if here != "tpu" else "cpu"
    cases: dict[str, tuple[dict[str, Callable[[Any], Any]], list[float]]] = {
        "for another platform": ({elsewhere: through, "default": twice}, [1.0, 2.0]),
        "by default alone": ({here: twice, "default": through}, [1.0, 2.0]),
        "here alone": ({here: lambda x: through(x + 5), "default": twice}, [1.0, 6.0, 6.0]),
    }
    for what, (branches, expected) in cases.items():
        for beside in (True, False):

            def program(x: Any, branches: Any = branches, beside: bool = beside) -> Any:
                x = through(x) if beside else x
                x = jax.lax.platform_dependent(x, **branches)
                return through(x) if beside else x

            compiled = jax.jit(program)
            for run in range(3):
                case.forget()
                where = f"{what}, {'between others' if beside else 'alone'}, run {run}"
                case.gives(np.float32(6.0 if expected[-1] == 6 else 2.0), compiled, np.float32(1), what=where)
                jax.effects_barrier()
                case.saw(host, [np.float32(each) for each in (expected if beside else expected[1:-1])])


@case("shard_map", "id_tap", "H13", minimum_devices=2, isolated=True, deadline=40.0)
def jaxs_barrier_that_raises(case: Case) -> None:
    """H13: `jax.effects_barrier` waits for taps also where it raises the failure of JAX's own callback."""
    held, tapped = Held(), threading.Event()
    ended: list[tuple[bool, Exception | None]] = []

    def computation(x: Any) -> Any:
        jax.debug.callback(fail, x)
        return x

    program = case.compile(computation)
    program.lower(case.operand).compile()

    def run() -> None:
        # One thread alone, since the tokens for which JAX's barrier waits are those of its thread.
        error_of(program, case.operand)
        case.implementation.tap(held, np.float32(1))
        tapped.set()
        error = error_of(jax.effects_barrier)
        ended.append((held.release.is_set(), error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    tapped.wait(BEGINS_WITHIN)
    # One-sided: a slow machine can only miss a barrier that returns too early.
    thread.join(5 * EARLY_SECONDS)
    held.release.set()
    thread.join(BEGINS_WITHIN)
    case.drain()
    returned_late, error = ended[0] if ended else (False, None)
    case.check(returned_late, "early barrier", Stage.BARRIER, f"JAX's barrier did not wait for a tap: {ended}")
    case.check(error is not None, "swallowed error", Stage.BARRIER, "JAX's barrier did not raise the failure of JAX's")
