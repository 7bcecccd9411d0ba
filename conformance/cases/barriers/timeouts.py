"""A barrier with a timeout gives a callback that does not end up, and names it."""

from __future__ import annotations

import logging
from typing import Any

from ...oracle.verdicts import Stage
from ..harness.case import WHILE, Case, case
from ..harness.checks import error_of
from ..harness.hosts import RELEASED_AFTER
from ..harness.registry import EVERY_EFFECT


@case("jit", EVERY_EFFECT, "H30", functions="barrier_wait")
def barrier_in_time(case: Case) -> None:
    """H30: a barrier with a timeout gives a held callback up and names it; the next barrier waits for it."""

    def run(host: Any, x: Any) -> Any:
        return case.program(host)(x)

    with case.held(run, case.operand):
        error: Any = error_of(lambda: case.library.barrier_wait("planted", timeout=WHILE))
    case.barrier()
    case.check(isinstance(error, TimeoutError), "early barrier", Stage.BARRIER, f"expected TimeoutError, got {error!r}")
    named = [each for each in getattr(error, "outstanding", ()) if case.callback.function in each.name]
    right = bool(named) and case.devices[0] in named[0].devices and named[0].name in str(error)
    function = case.callback.function
    case.check(right, "poor error", Stage.BARRIER, f"expected {function} on {case.devices[0]} in the error: {error!r}")

    # A barrier that has begun to wait when the callback ends returns, although it has a timeout.
    logger, handler = logging.getLogger("hostcb"), logging.Handler()
    level = logger.level
    with case.held(run, case.operand) as held:
        handler.emit = lambda record: held.release.set() if "start" in record.getMessage() else None  # type: ignore[method-assign]
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            error = error_of(lambda: case.library.barrier_wait("planted", timeout=RELEASED_AFTER))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
    case.check(
        error is None, "barrier error", Stage.BARRIER, f"a barrier whose callback ended in time raised {error!r}"
    )
