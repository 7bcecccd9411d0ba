"""At each line on which hostcb raises a failure to the program, an interrupt comes, and the failure is not lost.

A first run counts these lines in the main thread. Then the same program runs once for each of them. What it got is the
exception itself, or one that Python shows with it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

import hostcb as hcb

PACKAGE = str(Path(str(hcb.__file__)).parent)
# The functions by which an error goes from the end of a dispatch to the program.
WAY = {"raise_error", "raised", "hook", "_at_the_end", "raise_at_the_end", "end", "end_fast", "_run"}

logging.disable(logging.CRITICAL)
F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)
failed: list[OSError] = []


def fails(value: Any) -> Any:
    if float(value) == 0:
        return value
    failed.append(OSError("disk full"))
    raise failed[-1]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "pure": jax.jit(lambda x: hcb.pure_callback(fails, F32, x)),
    "ordered": jax.jit(lambda x: hcb.call(fails, x, result_shape=F32)),
    # JAX dispatches the first run of each jitted function in Python.
    "first": lambda x: jax.jit(lambda y: hcb.call(fails, y, result_shape=F32))(x),
    "eager": lambda x: hcb.call(fails, x, result_shape=F32),
}


class Interrupt(KeyboardInterrupt):
    pass


class Tracer:
    """Counts the lines on the way, and raises an interrupt at the one with a number."""

    def __init__(self, number: int) -> None:
        self.number, self.count, self.place = number, 0, ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name not in WAY or not failed:
            return self if code.co_name in WAY else None
        if event == "line":
            self.count += 1
            if self.count == self.number:
                self.place = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                raise Interrupt
        return self


def shows(error: BaseException | None, failure: BaseException) -> bool:
    while error is not None:
        if error is failure:
            return True
        error = error.__cause__ or error.__context__
    return False


def interrupted(name: str, number: int) -> tuple[Tracer, str]:
    """Run the program, and say who has reported its failure: the program, the barrier, both or nobody."""
    failed.clear()
    tracer = Tracer(number)
    got: BaseException | None = None
    sys.settrace(tracer)
    try:
        PROGRAMS[name](ONE)
    except BaseException as error:
        got = error
    finally:
        sys.settrace(None)
    reported = []
    try:
        hcb.barrier_wait(raise_again=False)
    except hcb.CallbackException as error:
        reported = [each.exception for each in error.failures]
    # An error that its own dispatch could not raise: the next one of the thread raises it.
    late = None
    try:
        PROGRAMS[name](np.float32(0))
    except BaseException as error:
        late = error
    (failure,) = failed
    who = ["the program"] * (shows(got, failure) or shows(late, failure)) + ["the barrier"] * (failure in reported)
    return tracer, " and ".join(who) or "nobody"


def main() -> None:
    found: dict[str, dict[str, str]] = {}
    for name, program in PROGRAMS.items():
        for _ in range(3):
            program(np.float32(0))
        undisturbed, who = interrupted(name, 0)
        found[name] = {"undisturbed": who}
        for number in range(1, undisturbed.count + 1):
            tracer, who = interrupted(name, number)
            found[name][tracer.place or f"{number}, nowhere"] = who
    print(json.dumps(found))


if __name__ == "__main__":
    main()
