"""Host functions that raise: on one device or several, in taps and outside jit, any exception, without results."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import PLANTED, error_of, fail
from ..harness.registry import COLLECTIVE_TIMEOUT_FLAGS, EVERY_LAYOUT, ONE_OF_EACH
from .misbehaving import Misbehaving, ends, is_over, surfaces

CALLS = 10
TAPS = 3
SPECIAL_EXCEPTIONS = (KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, MemoryError)


@case("jit", "pure_callback io_callback io_callback_ordered buffer_callback dlpack_callback", also="H15", isolated=True)
@case("pmap shard_map", "pure_callback io_callback buffer_callback dlpack_callback", also="H15", minimum_devices=2)
@case("pjit", "buffer_callback dlpack_callback", also="H15", minimum_devices=2)
@case("pmap shard_map", "io_callback_ordered", also="H15", minimum_devices=2, isolated=True)
# Over a mesh JAX's own callbacks hang.
@case(
    "pjit", "pure_callback io_callback io_callback_ordered", also="H15", minimum_devices=2, isolated=True, deadline=5.0
)
def raises(case: Case) -> None:
    """No run delivers a result. The error has the same type in the first and in later runs."""
    host = Misbehaving()
    program = case.compile(lambda x: case.apply(host, x))
    case.gives(case.expected, program, case.operand)
    host.armed = True
    for _ in range(CALLS):
        ends(case, lambda: program(case.operand), PLANTED)
    host.armed = False
    is_over(case, program)


@case("jit", "debug_callback debug_callback_ordered", isolated=True)
def raises_unseen(case: Case) -> None:
    """A callback without results: the program or the barrier raises, and then the failure is over."""
    host = Misbehaving(armed=True)
    program = case.compile(lambda x: case.apply(host, x))
    surfaces(case, lambda: program(case.operand))
    host.armed = False
    is_over(case, program)


@case(
    "pjit",
    "call io_callback io_callback_ordered debug_callback debug_callback_ordered",
    also="H10 H15",
    minimum_devices=2,
    isolated=True,
)
def ends_without_results(case: Case) -> None:
    """A callback without results fails on one device of a mesh: the program ends with it at every run."""

    def through(x: Any) -> Any:
        if case.callback.function == "call":
            return case.implementation.call(fail, x, None)
        return case.implementation.invoke(case.callback, fail, x, None, case.devices)

    program = case.compile(lambda x: (through(x), x + 1)[1])
    for _ in range(3):
        ends(case, lambda: program(case.operand), PLANTED)
        case.drain()


@case("pmap shard_map", "id_tap call")
@case("shard_map", "pure_callback io_callback debug_callback io_callback_ordered", minimum_devices=2, isolated=True)
def raises_on_one(case: Case) -> None:
    """One device of several fails; the next program on all devices runs without a failure."""
    there = case.operand[len(case.devices) // 2][0]
    # Any device may report the failure, but the report must name the right device.
    text = f"{PLANTED} with {there:.0f}"

    def raise_there(operand: Any) -> Any:
        if np.asarray(operand).ravel()[0] == there:
            raise ValueError(text)
        return np.asarray(operand + np.float32(1))

    host = Misbehaving(raise_there, armed=True)
    program = case.compile(lambda x: case.apply(host, x))
    surfaces(case, lambda: program(case.operand), text)
    host.armed = False
    is_over(case, program)


@case("shard_map", "pure_callback io_callback", xla_flags=COLLECTIVE_TIMEOUT_FLAGS, minimum_devices=2, isolated=True)
@case("pmap", "call", xla_flags=COLLECTIVE_TIMEOUT_FLAGS, minimum_devices=2, isolated=True)
def raises_before_collective(case: Case) -> None:
    """One device fails while its peers wait for it in a collective: the program ends with that failure."""

    def host(operand: Any) -> Any:
        if np.asarray(operand).ravel()[0] == case.operand[1][0]:
            raise ValueError(PLANTED)
        return np.asarray(operand)

    program = case.compile(lambda x: jax.lax.psum(case.apply(host, x), "devices") + x)
    if case.callback.function == "call":
        case.raises(lambda: program(case.operand))
        case.barrier_reports()
    else:
        surfaces(case, lambda: program(case.operand))
        case.drain()


@case("jit", f"{ONE_OF_EACH} buffer_callback", also="H14 H15")
def special_exceptions(case: Case) -> None:
    """Exceptions with a meaning for Python are ordinary failures: no thread ends, and no callback is lost."""
    for exception in SPECIAL_EXCEPTIONS:

        def raise_it(_: Any, exception: type[BaseException] = exception) -> Any:
            raise exception(PLANTED)

        host = Misbehaving(raise_it, armed=True)
        program = case.compile(lambda x, host=host: case.apply(host, x))
        try:
            surfaces(case, lambda: program(case.operand))  # noqa: B023 - called at once
        except BaseException as error:
            case.wrong("wrong error", Stage.DISPATCH, f"{exception.__name__} came through as {type(error).__name__}")
        host.armed = False
        is_over(case, program)


@case("jit", "pure_callback io_callback", also="H15", isolated=True)
def has_cause(case: Case) -> None:
    """For a program that ran in the calling thread, the cause of the error is the exception itself."""
    error = error_of(lambda: case.compile(lambda x: case.apply(fail, x))(case.operand))
    case.drain()
    cause = error and error.__cause__
    is_it = isinstance(cause, ValueError) and str(cause) == PLANTED
    case.check(is_it, "poor error", Stage.DISPATCH, f"expected the callback's exception as the cause, actual {cause!r}")


@case("pmap shard_map", "id_tap", "H13")
def several_fail(case: Case) -> None:
    """Every second device fails in each of several taps: the barrier reports each failure, by device and in order."""
    failing = {float(row[0]) for row in case.operand[::2]}

    def raising(step: int) -> Any:
        def host(operand: Any) -> None:
            if (first := float(operand.ravel()[0])) in failing:
                raise ValueError(f"{PLANTED} {step} of {first:.0f}")

        return host

    def taps(x: Any) -> Any:
        for step in range(TAPS):
            x = case.apply(raising(step), x)
        return x

    case.gives(case.operand, case.compile(taps), case.operand)
    failures = getattr(case.drain(), "failures", ())
    case.check(bool(failures), "swallowed error", Stage.BARRIER, "several taps failed, and the barrier raised nothing")
    for device, row in list(zip(case.devices, case.operand, strict=True))[::2]:
        actual = [str(failure.exception) for failure in failures if failure.device == device]
        expected = [f"{PLANTED} {step} of {row[0]:.0f}" for step in range(TAPS)]
        case.same("wrong failures", Stage.BARRIER, actual, expected, f"failures of {device}")
    case.same("wrong failures", Stage.BARRIER, len(failures), TAPS * len(case.devices[::2]), "the number of failures")


@case(EVERY_LAYOUT, "id_tap")
@case("jit", "id_print")
def tap_raises(case: Case) -> None:
    """A tap, or the stream of a print, raises: its program goes on, the barrier reports it, and later ones run."""
    later = case.host()
    program = case.compile(lambda x: case.apply(later, case.apply(fail, x) * 2.0))
    case.gives(case.operand * 2, program, case.operand)
    case.barrier_reports()
    case.saw_parts(later, case.operand * 2)
