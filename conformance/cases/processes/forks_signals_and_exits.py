"""Cases of callbacks and their process: callbacks end it, outlive it, fork it, or run during its signals."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ...oracle.stages import stacks_in
from ...oracle.verdicts import Stage
from ...spec.external_callbacks import callback_named
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.registry import ONE_OF_EACH

EXIT_STATUS = 7
"""As in `child_programs`."""


@case("pmap", ONE_OF_EACH)
def os_exit(case: Case) -> None:
    """A callback can end the process, with its own status, and no thread waits for the callback."""
    ended = case.child("os_exit")
    ended.check(EXIT_STATUS)


@case("jit pjit pmap shard_map", "pure_callback", also="H17")
@case("pmap", "call io_callback debug_callback", also="H17")
def running_at_exit(case: Case) -> None:
    """The interpreter ends while callbacks run: the callbacks finish, and the process ends with status 0."""
    # A fork of a warm process ends as an interpreter ends. One layout asks an interpreter that is no fork, too.
    ended = case.child("running_at_exit", fresh=case.layout == "jit")
    if ended.signal is not None:
        # Which signal differs from run to run.
        case.wrong(
            "crash", ended.stage, f"callbacks ran, and {ended.signal} ended the process: {stacks_in(ended.errors)}"
        )
        return
    ended.check()
    case.same("lost", Stage.EXIT, ended.said.count("ended"), case.copies, "callbacks that ended before the process")


_TOGETHER = {
    "id_tap": ("id_tap", "call"),
    "pure_callback": ("pure_callback", "buffer_callback", "dlpack_callback"),
    "io_callback": (
        *("io_callback", "io_callback_ordered", "debug_callback", "debug_callback_ordered"),
        "buffer_callback_side_effect",
    ),
}
"""The kinds that one child tries, because each child takes seconds to start."""


@case("jit", "id_tap pure_callback io_callback")
def shared_executables(case: Case) -> None:
    """#38405: two processes share a cache of executables; each program calls the function of its own process."""
    kinds = [callback_named(name) for name in _TOGETHER[case.callback.name]]
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
            ended = case.child("shared_executables", " ".join(names), mark, environment=environment)
            ended.check()
            wanted = tuple(f"{one} {name} of the {mark} process" for name in names for one in ("one", "another"))
            case.same("value", Stage.CALLBACK, ended.said, wanted, f"the {mark} process called back as")


@case("jit", ONE_OF_EACH)
def forks(case: Case) -> None:
    """A callback forks a process that ends at once, as `subprocess` may: this has no other effect."""
    statuses: list[int] = []

    def host(operand: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(EXIT_STATUS)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return add_one(operand)

    program = case.program(host)
    for _ in range(2):
        case.gives(case.expected, program, case.operand)
    case.barrier()
    case.same(
        "wrong count", Stage.CALLBACK, statuses, [EXIT_STATUS] * 2 * case.copies, "the forked processes ended with"
    )


@case("jit", ONE_OF_EACH)
def signals(case: Case) -> None:
    """A handler runs while the callback runs; a KeyboardInterrupt is raised or reported once."""
    ended = case.child("signals")
    ended.check()
    while_handled, handled, interrupted, afterwards = ended.said
    wanted = case.expected.tolist()
    case.same("result", Stage.RESULT, (while_handled, handled), (wanted, True), "with a handled signal")
    witness = f"Ctrl-C in a callback became {interrupted or 'nothing'!r}"
    case.check("KeyboardInterrupt" in interrupted, "swallowed error", Stage.CALLBACK, witness)
    case.same("result", Stage.RESULT, afterwards, wanted, "after Ctrl-C the program gave")
