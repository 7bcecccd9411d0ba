"""At each line of the runtime, one after another, an interrupt or a nested program comes, and nothing is lost by it.

Arguments: `interrupt` or `nest`, which lines (`0/7`: each seventh, from the first on), and what the trace events are:
`line` or `opcode`.

A first run, without disturbance, counts the events of the main thread in the modules concerned. Then the same program
runs once for each of them. Only the number of an event distinguishes it from others, so threads may change it a little.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import logging
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import jax

import hostcb as hcb
from hostcb._runtime.queue.queues import queues

# Modules that take part in a value's way from its handler to the end of its function, and in reports.
MODULES = (
    *("_errors.failures", "_runtime.host", "_runtime.observing.observers", "_runtime.observing.counting"),
    *("_runtime.queue.consumers", "_runtime.queue.counters", "_runtime.queue.items", "_runtime.queue.device_queue"),
    *(
        "_runtime.queue.queues",
        "_runtime.queue.rings",
        "_runtime.queue.sites",
        "_threads.baton",
        "_threads.chains",
        "_threads.progress",
    ),
    "_threads.switching",
)
FILES = {str(importlib.import_module(f"hostcb.{name}").__file__) for name in MODULES}

logging.disable(logging.CRITICAL)
ran: list[float] = []
step = jax.jit(lambda x: hcb.call(lambda v: v, hcb.id_tap(lambda v, _: ran.append(float(v)), x), result_shape=x))
inner = jax.jit(lambda x: hcb.id_tap(lambda v, _: ran.append(float(v)), x))


class Disturbed(KeyboardInterrupt):
    pass


class Tracer:
    """Counts events in the modules concerned, and disturbs the one with a number."""

    def __init__(self, number: int, what: str, event: str):
        self.number, self.what, self.event = number, what, event
        self.count = 0
        self.place = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        if event == self.event:
            self.count += 1
            if self.count == self.number:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                self.disturb()
        return self

    def disturb(self) -> None:
        if self.what == "interrupt":
            raise Disturbed
        sys.settrace(None)
        inner(-1.0)
        # In the middle of the run of a function a barrier is refused.
        with contextlib.suppress(RuntimeError):
            hcb.barrier_wait()
        sys.settrace(self)


def disturbed(number: int, what: str, event: str) -> tuple[Tracer, list[str]]:
    """Run the program, and say what is wrong afterwards."""
    ran.clear()
    device = jax.devices()[0]
    before = hcb.stats()[device]
    tracer = Tracer(number, what, event)
    raised: list[BaseException] = []
    sys.settrace(tracer)
    try:
        for each in (1.0, 2.0):
            step(each)
        hcb.barrier_wait()
    except BaseException as error:
        raised.append(error)
    finally:
        sys.settrace(None)
    wrong = []
    reported = [str(failure.exception) for each in raised for failure in getattr(each, "failures", ())]
    for _ in range(2):
        try:
            inner(1000.0)
            hcb.barrier_wait()
        except hcb.CallbackException as error:
            reported += [str(failure.exception) for failure in error.failures]
        except BaseException as error:
            # That of an earlier dispatch, which it should have raised itself.
            raised.append(error)
    queue = queues[device]
    here = hcb.stats()[device]
    if here.taps - before.taps != here.taps_run - before.taps_run or here.queued or here.queued_bytes:
        wrong.append(f"stats: {before} and then {here}")
    if queue.is_pending() or queue.held() or queue.items.held() != (0, 0):
        wrong.append(f"held: {queue.items.held()}, {queue.held()} bytes")
    mine = [each for each in ran if each > 0]
    # What a handler had not handed over when its program was interrupted does not come any more.
    if mine not in ([1.0, 2.0, 1000.0, 1000.0], [1.0, 1000.0, 1000.0], [1000.0, 1000.0]) and mine[-1:] != [1000.0]:
        wrong.append(f"ran: {ran}")
    if len(mine) != len(set(mine)) + 1 or mine != sorted(mine):
        wrong.append(f"twice, or out of order: {ran}")
    handed_over = here.taps - before.taps
    if handed_over != len(ran) and not (reported or raised):
        wrong.append(f"{handed_over} handed over, and {len(ran)} ran: {ran}")
    if handed_over - len(ran) > len(reported):
        wrong.append(f"lost: {handed_over} handed over, {ran} ran, reported {reported}")
    if not tracer.place and number:
        wrong = wrong and [*wrong, "without a disturbance"]
    elif what == "interrupt" and number and not raised and not reported:
        wrong.append("nobody has heard of the interrupt")
    return tracer, wrong


def main() -> None:
    what, part, event = sys.argv[1:]
    first, stride = map(int, part.split("/"))
    hcb.stats()
    for _ in range(3):
        tracer, wrong = disturbed(0, what, event)
    found = [["undisturbed", each] for each in wrong]
    places = set[str]()
    for number in range(first + 1, tracer.count + 1, stride):
        faulthandler.dump_traceback_later(60, exit=True)
        disturbance, wrong = disturbed(number, what, event)
        faulthandler.cancel_dump_traceback_later()
        places.add(disturbance.place)
        found += [[f"{number} {disturbance.place}", each] for each in wrong]
        if wrong:
            print(number, disturbance.place, wrong, file=sys.stderr, flush=True)
    print(json.dumps({"events": tracer.count, "places": len(places), "found": found}))


if __name__ == "__main__":
    main()
