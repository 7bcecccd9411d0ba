"""The numbers in hostcb at which the way of a value, or of a program, changes: cells ask for both sides of each.

The suite has its own copy of each number, since it also runs where hostcb is not installed. A test reads hostcb's
source, and fails where the two differ, and where hostcb has a number that is neither here nor in `NOT_THRESHOLDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    value: int
    what: str
    """What is different at it."""
    constant: str = ""
    """The module below `hostcb/` and the constant; empty if no name in the source has the number."""
    same: tuple[str, ...] = ()
    """Further constants that are equal to it, or that follow from it."""
    asked_by: str = ""
    """The test that asks for both sides, where a cell would take too long; empty if cells do."""

    @property
    def around(self) -> tuple[int, int, int]:
        """Below, at and above it."""
        return self.value - 1, self.value, self.value + 1


THRESHOLDS: Mapping[str, Threshold] = {
    "ring_value": Threshold(
        1 << 16,
        "bytes of an operand of a tap that is in the ring in C; larger ones are in memory that is reused",
        "_native/library.py:MOST_BYTES",
        ("_runtime/blocks.py:LEAST_QUEUED_BYTES", "_native/handover.c:PAGE", "_native/handover.h:MOST_INSIDE"),
    ),
    "block": Threshold(
        1 << 20,
        "bytes of an operand whose copy is in memory that is reused",
        "_runtime/blocks.py:LEAST_BYTES",
        ("_runtime/queues.py:CACHED", "_native/handover.c:CACHED", "_api/formatting.py:MOST_BYTES_IN_REPR"),
    ),
    "small_operands": Threshold(
        1 << 20,
        "bytes of a tap's operands of up to 64 KiB together; more go through Python",
        "_runtime/sites.py:MOST_IN_RECORD",
        asked_by="tests/contract/test_handover_large.py",
    ),
    "past_caches": Threshold(
        4 << 20,
        "bytes that are copied past the caches, and of a result whose memory is in large pages",
        "_runtime/copying.py:LEAST_BYTES",
        (
            "_runtime/pages.py:LEAST_BYTES",
            "_native/copying.c:LEAST_PAST_CACHES",
            "_native/blocks.c:LEAST_IN_LARGE_PAGES",
        ),
    ),
    "mapped_anew": Threshold(
        32 << 20,
        "bytes that the C library maps anew each time, and that are always copied past the caches",
        "_runtime/copying.py:MOST_TRIED_BYTES",
    ),
    "ready_blocks": Threshold(
        64 << 20,
        "bytes of the memory that is kept for reuse",
        "_runtime/blocks.py:MOST_BYTES",
        ("_native/blocks.c:MOST_READY",),
    ),
    "ring": Threshold(1 << 24, "bytes of a device's ring, which begins anew at its end", "_runtime/rings.py:CAPACITY"),
    "read_ahead": Threshold(256, "records of a ring that are read at once", "_runtime/rings.py:MOST_READ"),
    "queue_bytes": Threshold(256_000_000, "bytes that a queue holds, a flag; cells set it to less"),
    "queue_values": Threshold(
        500_000,
        "values that a queue holds",
        "_runtime/queues.py:MOST_VALUES",
        asked_by="tests/unit/test_queue_values.py",
    ),
    "fast_operations": Threshold(8, "operations of a program with fast dispatch", "_runtime/native.py:MOST_OPERATIONS"),
    "fast_bytes": Threshold(
        16384, "bytes of a value in such a program, at 16 an element", "_runtime/native.py:MOST_BYTES"
    ),
    "fast_steps": Threshold(1000, "steps of the loops in such a program", "_runtime/native.py:MOST_STEPS"),
    "unrolled_elements": Threshold(
        16, "batch elements of a vmap whose callbacks are unrolled", "_primitive/batching.py:MOST_UNROLLED"
    ),
    "live_executions": Threshold(64, "executions that are tracked", "_runtime/executions.py:MANY"),
    "waiting_executions": Threshold(
        16,
        "programs that wait on a device, which leave room for those of callbacks",
        "_runtime/executions.py:MOST_WAITING",
    ),
    "least_turn": Threshold(
        32,
        "calls of each device in quick succession, from which on devices take turns",
        "_runtime/turns.py:LEAST_CALLS",
    ),
    "most_turn": Threshold(1024, "calls of one turn", "_runtime/turns.py:MOST_CALLS"),
    "numbered_targets": Threshold(
        512,
        "taps of a program that have FFI targets of their own",
        "_native/handover.c:MOST_NUMBERED",
        asked_by="tests/contract/test_order.py",
    ),
    "eager_programs": Threshold(
        16, "programs of buffer callbacks outside jit that are kept", "_primitive/eager.py:MOST_COMPILED"
    ),
    "generations": Threshold(
        16,
        "programs, each started by a callback of the one before, for which a barrier waits",
        "_runtime/barrier.py:GENERATIONS",
    ),
    "printed_elements": Threshold(
        1024,
        "elements of an array that id_print writes in full",
        "_api/printing.py:THRESHOLD",
        asked_by="tests/contract/test_printing.py",
    ),
}

NOT_THRESHOLDS: Mapping[str, str] = {
    "_api/printing.py:WIDTH": "the width of printed lines; tests/contract/test_printing.py has both sides",
    "_compat/fast_dispatch.py:MOST_TRIALS": "how often hostcb tries, once a process, what this JAX tells",
    "_native/blocks.c:STEP": "sizes of memory are rounded up to it: those of case.sizes leave a rest",
    "_native/copying.c:LINE": "the processor's cache line: sizes around past_caches leave a rest of every group",
    "_native/copying.c:LINES": "lines that are copied in turn, as LINE",
    "_native/copying.c:PAGE": "pages that are copied in turn, as LINE",
    "_native/copying.c:PAGES": "pages that are copied in turn, as LINE",
    "_native/cuda.c:PORTABLE": "a flag of CUDA's driver",
    "_native/handover.h:ALIGNMENT": "the place of operands in a record; trees of odd sizes are asked by case.trees",
    "_native/handover.h:MOST_DEVICES": "a run has at most eight devices; above it taps go through Python, as elsewhere",
    "_runtime/barrier.py:REPORT_INTERVAL": "seconds between log messages",
    "_runtime/consumers.py:LEISURE": "a share of a consumer's time; no value depends on it",
    "_runtime/consumers.py:QUICK": "seconds between values below which a consumer sleeps on; no value depends on it",
    "_runtime/consumers.py:STEADY": "seconds for which a consumer sleeps on (H11): a unit test has them",
    "_runtime/consumers.py:LINGER": "seconds for which a consumer sleeps on; no value depends on it",
    "_runtime/consumers.py:MOST_LINGERS": "how often a consumer sleeps on; no value depends on it",
    "_runtime/consumers.py:RAPID": "taps in a linger; no value depends on it",
    "_runtime/copying.py:COPIES_BEFORE_TRIAL": "copies before the quicker way is found out; tests/unit/test_copying.py",
    "_runtime/copying.py:ROUNDS_OF_TRIAL": "rounds of that trial, which only cost time",
    "_runtime/failures.py:KEPT_FAILURES": "failures that a barrier keeps: tests/contract/test_failures.py",
    "_runtime/failures.py:KEPT_FRAMES": "frames of a kept traceback",
    "_runtime/from_dlpack.py:_TYPE_AT": "a place in a structure of DLPack",
    "_runtime/from_dlpack.py:_UNSIGNED": "a code of DLPack",
    "_runtime/lent.py:_ON_CPU": "a code of DLPack",
    "_runtime/pool.py:LEAST_THREADS": "threads of the runtime, which hostcb asks for before it starts",
    "_runtime/pool.py:THREADS_PER_DEVICE": "threads of the runtime, which hostcb asks for before it starts",
    "_runtime/deadlines.py:LOOK_AT_EXIT": "seconds between two looks at an execution",
    "_runtime/exiting.py:GRACE": "seconds that a refused thread has to end",
    "_runtime/exiting.py:SECONDS_FOR_DAEMONS": "seconds that the exit waits for programs of daemon threads",
    "_runtime/exiting.py:SECONDS_AFTER_TIMEOUT": "seconds that the exit waits after a barrier has waited in vain",
    "_runtime/progress.py:LOOK_AGAIN": "seconds between two looks at a queue",
    "_runtime/recording.py:MOST_CHARACTERS": "characters of an error in a trace",
    "_runtime/recording.py:_BEHIND_DEVICES": "the number of a track in a trace",
    "_runtime/rings.py:PATIENCE": "seconds, on CUDA",
    "_runtime/sites.py:_ALIGNMENT": "as ALIGNMENT in C",
    "_runtime/thread_states.py:MOST_KEPT": "threads of a runtime that has a fixed number of them",
    "_runtime/trace_file.py:CHUNK": "events of a trace that are written at once; tests/unit/test_trace_file.py",
    "_runtime/trace_file.py:LAST_WRITES": "seconds",
    "_runtime/turns.py:LEAST_PROGRESS": "calls in a look at the progress, which only cost time",
    "_runtime/turns.py:LOOK_UP": "seconds between looks at the progress",
    "_runtime/turns.py:MOST_SLOW": "slow looks at the progress, which only cost time",
    "_spec/naming.py:MOST_CHARACTERS": "characters of a name in a message",
    "_spec/naming.py:MOST_WRAPPERS": "wrappers that are followed for a name",
}
