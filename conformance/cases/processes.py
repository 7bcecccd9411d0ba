"""Fault cells of callbacks and their process: callbacks end it, outlive it, fork it, or run during its signals."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stacks_in
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.external_callbacks import ALL_CALLBACKS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.child_processes import run_victim
from .harness.registry import ONE_OF_EACH, planted

EXIT_STATUS = 7
"""As in `child_programs`."""

_BY_NAME = {callback.name: callback for callback in ALL_CALLBACKS}


@planted("pmap", ONE_OF_EACH)
def os_exit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback can end the process, with its own status, and no thread waits for the callback."""
    ended = run_victim(bench, "os_exit", callback.name)
    ended.check(EXIT_STATUS)
    return []


@planted("jit pjit pmap shard_map", "pure_callback", also="H17")
@planted("pmap", "call io_callback debug_callback", also="H17")
def running_at_exit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The interpreter ends while callbacks run: the callbacks finish, and the process ends with status 0."""
    # A fork of a warm process ends as an interpreter ends. One layout asks an interpreter that is no fork, too.
    ended = run_victim(bench, "running_at_exit", callback.name, fresh=bench.layout == "jit")
    if ended.signal is not None:
        # Which signal differs from run to run.
        witness = f"callbacks were running, and {ended.signal} ended the process: {stacks_in(ended.errors)}"
        return [Anomaly("crash", ended.stage, witness)]
    ended.check()
    count = ended.said.count("ended")
    if count == bench.callbacks_per_run:
        return []
    return [Anomaly("lost", Stage.EXIT, f"{count} of {bench.callbacks_per_run} callbacks ended before the process")]


_IN_ONE_VICTIM = {
    "io_callback": ("io_callback", "io_callback_ordered"),
    "debug_callback": ("debug_callback", "debug_callback_ordered"),
    "buffer_callback": ("buffer_callback", "buffer_callback_side_effect", "dlpack_callback"),
}
"""Further kinds that a victim tries, because each victim takes two seconds to start."""


@planted("jit", f"{ONE_OF_EACH} buffer_callback")
def shared_executables(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#38405: two processes share a cache of executables; each program calls the function of its own process."""
    kinds = [_BY_NAME[name] for name in _IN_ONE_VICTIM.get(callback.name, (callback.name,))]
    # An implementation that does not say what it lacks is tried with this kind alone.
    lacks = getattr(bench.implementation, "lacks", lambda kind: kind != callback)
    names = [kind.name for kind in kinds if not lacks(kind)]
    anomalies = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        for mark in ("first", "second"):
            ended = run_victim(bench, "shared_executables", " ".join(names), mark, environment=environment)
            ended.check()
            wanted = tuple(f"{one} {name} of the {mark} process" for name in names for one in ("one", "another"))
            if ended.said != wanted:
                witness = f"the {mark} process called back as {ended.said}, expected {wanted}"
                anomalies.append(Anomaly("value", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", ONE_OF_EACH)
def forks(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback forks a process that ends at once, as `subprocess` may: this has no other effect."""
    statuses: list[int] = []

    def host(operand: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(EXIT_STATUS)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    wanted = bench.expected(callback, bench.operand)
    anomalies = check_value("the program", lambda: compiled(bench.operand), wanted)
    anomalies += check_value("the program again", lambda: compiled(bench.operand), wanted)
    anomalies += check_quiet_barrier(bench, "after forks")
    if statuses != [EXIT_STATUS] * 2 * bench.callbacks_per_run:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"the forked processes ended with {statuses}"))
    return anomalies


@planted("jit", ONE_OF_EACH)
def signals(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A handler runs while the callback runs; a KeyboardInterrupt is raised or reported once."""
    ended = run_victim(bench, "signals", callback.name)
    ended.check()
    wanted = bench.expected(callback, bench.operand).tolist()
    while_handled, handled, interrupted, afterwards = ended.said
    anomalies = []
    if while_handled != wanted or not handled:
        witness = (
            f"with a handled signal the program gave {while_handled}, the handler {'ran' if handled else 'did not'}"
        )
        anomalies.append(Anomaly("result", Stage.RESULT, witness))
    if "KeyboardInterrupt" not in interrupted:
        witness = f"Ctrl-C in a callback became {interrupted or 'nothing'!r}"
        anomalies.append(Anomaly("swallowed error", Stage.CALLBACK, witness))
    if afterwards != wanted:
        anomalies.append(Anomaly("result", Stage.RESULT, f"after Ctrl-C the program gave {afterwards}"))
    return anomalies
