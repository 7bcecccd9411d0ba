"""Which programs of pure callbacks may take JAX's fast dispatch, in which a failure is raised only at the end.

`postponed` raises it. Until then the program computes with zeros, and this must be harmless. A program without effects
shows them to no one. But a loop whose predicate depends on them could run for ever. And in a larger program the runtime
may call a handler from another thread than the dispatching one, where the hook cannot be set. So only short programs
take the fast dispatch, with loops whose trip count the compiler knows and is small. JAX dispatches all others in
Python, where errors need no help.

This module reads the compiler's optimized instructions. Every opcode must be on an allowlist; for a few opcodes it also
reads the attributes that the compiler prints.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..._native.library import PYTHON_TARGET, TARGET

# XLA's CPU runtime runs up to so many operations, on values of up to so many bytes, one after another in the
# dispatching thread. It splits larger work over its pool, and goes on in the pool's thread that finishes last.
MOST_OPERATIONS = 8
MOST_BYTES = 16384
# The limit for the steps of all loops of a program. After a failure the loops run to their end, a microsecond a step.
# An interrupt in this time may make the next dispatch at the same place fail too; see `postponed`.
MOST_STEPS = 1_000
# The targets of hostcb's callbacks: the runtime's, and those of taps in C, which may end with a number.
_TARGET = ', custom_call_target="'
_OWN = re.compile(rf'{_TARGET}({PYTHON_TARGET}|{TARGET}(_\d+)?)"')

# Opcodes by their names in jaxlib's `HloOpcode`. FREE ones cost nothing. One thread computes an ALONE one before it
# goes on to the next (measured with JAX 0.10.2 and 0.12.0.1). The others choose operations by value (conditional), run
# in other threads (convolution), wait for other devices or the host, or come with a later release and are unknown.
FREE = frozenset(("kParameter", "kConstant", "kTuple", "kGetTupleElement", "kBitcast"))
ALONE = frozenset(
    re.findall(
        r"\S+",
        """
    kAbs kAcos kAcosh kAdd kAnd kAsin kAsinh kAtan2 kAtanh kBitcastConvert kBroadcast kCbrt kCeil kClamp kClz kCompare
    kComplex kConcatenate kConvert kCopy kCos kCosh kCustomCall kDivide kDot kDynamicSlice kDynamicUpdateSlice kErf kExp
    kExpm1 kFloor kFusion kGather kImag kIota kIsFinite kLog kLog1p kLogistic kMap kMaximum kMinimum kMultiply kNegate
    kNot kOr kPad kPopulationCount kPower kReal kReduce kReducePrecision kReduceWindow kRemainder kReshape kReverse
    kRoundNearestAfz kRoundNearestEven kRsqrt kSelect kShiftLeft kShiftRightArithmetic kShiftRightLogical kSign kSin
    kSinh kSlice kSort kSqrt kSubtract kTan kTanh kTranspose kWhile kXor
        """,
    )
)
# Fusions of these kinds are one kernel. Others may run in libraries that have threads of their own.
_KERNELS = ("kLoop", "kInput", "kOutput")

_ENTRY = re.compile(r"^ENTRY %([\w.-]+) ", re.MULTILINE)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_STEPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SIZES = re.compile(r"\b[a-z]\w*\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class _Instruction:
    """One HLO instruction: its opcode, and its text as the compiler prints it."""

    opcode: str
    text: str

    @classmethod
    def of(cls, instruction: Any) -> _Instruction:
        return cls(instruction.opcode.name, instruction.to_string())

    @property
    def _without_strings(self) -> str:
        # Strings may contain any text, such as the names of user functions.
        return _STRING.sub("", self.text)

    def attribute(self, name: str) -> str | None:
        """Return the value of an attribute: the name of a computation, or a word."""
        found = re.search(rf", {name}=%?([\w.-]+)", self._without_strings)
        return found[1] if found else None

    @property
    def size(self) -> int:
        """An upper bound for the bytes of its largest value: 16 bytes an element."""
        sizes = _SIZES.findall(self._without_strings)
        return max((16 * math.prod(map(int, filter(None, each.split(",")))) for each in sizes), default=0)


def is_simple(modules: Sequence[Any], callbacks: int) -> bool:
    """Return whether JAX may dispatch in C++ a program with these optimized HLO modules and so many callbacks.

    It returns False for everything that it does not know.
    """
    if len(modules) != 1:
        return False
    (module,) = modules
    computations = {each.name: [*map(_Instruction.of, each.instructions())] for each in module.computations()}
    entries = _ENTRY.findall(module.to_string())
    sequences = _sequences(computations, entries[0]) if len(entries) == 1 else None
    if sequences is None:
        return False
    calls = [each for own in computations.values() for each in own if each.opcode == "kCustomCall"]
    # Any other custom call could fail by itself, and end the dispatch before JAX calls the hook.
    if not all(_OWN.search(each.text) for each in calls):
        return False
    if not 0 < len(calls) <= min(MOST_OPERATIONS, callbacks):
        return False
    if len(sequences) == len(sequences[0]) == len(calls) == 1:
        # A program of one callback alone may be of any size.
        return True
    largest = max(each.size for own in computations.values() for each in own)
    return all(len(each) <= MOST_OPERATIONS for each in sequences) and largest <= MOST_BYTES


def calls_nothing_else(modules: Sequence[Any]) -> bool:
    """Return whether all custom calls of a program are hostcb's; any other one could fail and end the dispatch."""
    calls = [line for each in modules for line in each.to_string().splitlines() if _TARGET in line]
    return len(modules) == 1 and all(map(_OWN.search, calls))


def _sequences(
    computations: Mapping[str, list[_Instruction]], name: str, steps: int = 1
) -> list[list[_Instruction]] | None:
    """Return the operations of the entry and of each loop's body and condition, a sequence each.

    None if an operation is not on the allowlist, or may run more than `MOST_STEPS` times.
    """
    if name not in computations:
        return None
    own = [each for each in computations[name] if each.opcode not in FREE]
    sequences = [own]
    for each in own:
        if each.opcode not in ALONE:
            return None
        if each.opcode == "kFusion" and each.attribute("kind") not in _KERNELS:
            return None
        if each.opcode == "kWhile":
            count = _STEPS.search(each.text)
            inner = steps * int(count[1]) if count else MOST_STEPS + 1
            if inner > MOST_STEPS:
                return None
            for part in (each.attribute("body"), each.attribute("condition")):
                nested = None if part is None else _sequences(computations, part, inner)
                if nested is None:
                    return None
                sequences += nested
    return sequences
