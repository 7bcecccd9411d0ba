"""Cases of callbacks and their process: callbacks end it, outlive it, fork it, or run during its signals."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from ...oracle.stages import stacks_in
from ...oracle.verdicts import Stage
from ...spec.external_callbacks import ALL_CALLBACKS
from ..harness.case import Case, case
from ..harness.child_processes import run_child
from ..harness.registry import ONE_OF_EACH

EXIT_STATUS = 7
"""As in `child_programs`."""

_BY_NAME = {callback.name: callback for callback in ALL_CALLBACKS}


@case("pmap", ONE_OF_EACH)
def os_exit(case: Case) -> None:
    """A callback can end the process, with its own status, and no thread waits for the callback."""
    ended = run_child(case.bench, "os_exit", case.callback.name)
    ended.check(EXIT_STATUS)


@case("jit pjit pmap shard_map", "pure_callback", also="H17")
@case("pmap", "call io_callback debug_callback", also="H17")
def running_at_exit(case: Case) -> None:
    """The interpreter ends while callbacks run: the callbacks finish, and the process ends with status 0."""
    # A fork of a warm process ends as an interpreter ends. One layout asks an interpreter that is no fork, too.
    ended = run_child(case.bench, "running_at_exit", case.callback.name, fresh=case.layout == "jit")
    if ended.signal is not None:
        # Which signal differs from run to run.
        witness = f"callbacks were running, and {ended.signal} ended the process: {stacks_in(ended.errors)}"
        case.wrong("crash", ended.stage, witness)
        return
    ended.check()
    count = ended.said.count("ended")
    if count == case.copies:
        return
    case.wrong("lost", Stage.EXIT, f"{count} of {case.copies} callbacks ended before the process")


_IN_ONE_VICTIM = {
    "io_callback": ("io_callback", "io_callback_ordered"),
    "debug_callback": ("debug_callback", "debug_callback_ordered"),
    "buffer_callback": ("buffer_callback", "buffer_callback_side_effect", "dlpack_callback"),
}
"""Further kinds that a child tries, because each child takes two seconds to start."""


@case("jit", f"{ONE_OF_EACH} buffer_callback")
def shared_executables(case: Case) -> None:
    """#38405: two processes share a cache of executables; each program calls the function of its own process."""
    kinds = [_BY_NAME[name] for name in _IN_ONE_VICTIM.get(case.callback.name, (case.callback.name,))]
    # An implementation that does not say what it lacks is tried with this kind alone.
    lacks = getattr(case.implementation, "lacks", lambda kind: kind != case.callback)
    names = [kind.name for kind in kinds if not lacks(kind)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        for mark in ("first", "second"):
            ended = run_child(case.bench, "shared_executables", " ".join(names), mark, environment=environment)
            ended.check()
            wanted = tuple(f"{one} {name} of the {mark} process" for name in names for one in ("one", "another"))
            if ended.said != wanted:
                witness = f"the {mark} process called back as {ended.said}, expected {wanted}"
                case.wrong("value", Stage.CALLBACK, witness)


@case("jit", ONE_OF_EACH)
def forks(case: Case) -> None:
    """A callback forks a process that ends at once, as `subprocess` may: this has no other effect."""
    statuses: list[int] = []

    def host(operand: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(EXIT_STATUS)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return np.asarray(operand) + np.float32(1)

    compiled = case.applying(host)
    wanted = case.expected
    case.value("the program", lambda: compiled(case.operand), wanted)
    case.value("the program again", lambda: compiled(case.operand), wanted)
    case.barrier()
    if statuses != [EXIT_STATUS] * 2 * case.copies:
        case.wrong("wrong count", Stage.CALLBACK, f"the forked processes ended with {statuses}")


@case("jit", ONE_OF_EACH)
def signals(case: Case) -> None:
    """A handler runs while the callback runs; a KeyboardInterrupt is raised or reported once."""
    ended = run_child(case.bench, "signals", case.callback.name)
    ended.check()
    wanted = case.expected.tolist()
    while_handled, handled, interrupted, afterwards = ended.said
    if while_handled != wanted or not handled:
        witness = (
            f"with a handled signal the program gave {while_handled}, the handler {'ran' if handled else 'did not'}"
        )
        case.wrong("result", Stage.RESULT, witness)
    if "KeyboardInterrupt" not in interrupted:
        witness = f"Ctrl-C in a callback became {interrupted or 'nothing'!r}"
        case.wrong("swallowed error", Stage.CALLBACK, witness)
    if afterwards != wanted:
        case.wrong("result", Stage.RESULT, f"after Ctrl-C the program gave {afterwards}")
