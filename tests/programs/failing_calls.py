"""Failing calls in one layout, every kind of failure in turn: one line of JSON each on what the user then sees.

Usage: failing_calls.py LAYOUT pair|one|nothing, the last for how many arrays the call should return
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from support import helpers

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
RESULTS = sys.argv[2]
PAIR = (jax.ShapeDtypeStruct((8,), np.float32), jax.ShapeDtypeStruct((2,), np.int32))
WANTED = {"pair": PAIR, "one": PAIR[0], "nothing": None}[RESULTS]


def right(x: Any) -> Any:
    return x * 2, np.array([1, 2], np.int32)


def reduced(result: Any) -> Any:
    """A pair as what `RESULTS` says."""
    is_pair = type(result) is tuple and len(result) == 2
    return {"pair": result, "one": result[0], "nothing": None}[RESULTS] if is_pair else result


def raise_(exception: BaseException) -> Any:
    raise exception


FAILURES: dict[str, Any] = {
    "raises": lambda x: raise_(ValueError("the reason")),
    "raises_os_error": lambda x: raise_(FileNotFoundError(2, "the reason")),
    "keyboard_interrupt": lambda x: raise_(KeyboardInterrupt("the reason")),
    "system_exit": lambda x: raise_(SystemExit("the reason")),
    "wrong_tree": lambda x: list(right(x)),
    "nested_tree": lambda x: (right(x),),
    "wrong_shape": lambda x: (x[:3], right(x)[1]),
    "same_size": lambda x: (x.reshape(8, 1), right(x)[1]),
    "broadcastable": lambda x: (np.float32(1), right(x)[1]),
    "zero_size": lambda x: (x[:0], right(x)[1]),
    "wrong_dtype": lambda x: (x.astype(np.int32), right(x)[1]),
    "half": lambda x: (x.astype(np.float16), right(x)[1]),
    "bool": lambda x: (x, np.array([True, False])),
    "too_many": lambda x: (*right(x), x),
    "too_few": lambda x: right(x)[:1],
    "none": lambda x: None,
    "object_array": lambda x: (np.array([object()] * 8), right(x)[1]),
    "string": lambda x: ("text", right(x)[1]),
    "string_alone": lambda x: "text",
    "error_mark": lambda x: np.zeros(12345, np.int8),
    "error_mark_in_tree": lambda x: (np.zeros(12345, np.int8), right(x)[1]),
    "int_overflow": lambda x: (x, np.array([2**40, 1], np.int64)),
}


# In these the second of the pair is what is wrong.
if RESULTS == "one":
    FAILURES = {name: failure for name, failure in FAILURES.items() if name not in ("bool", "int_overflow")}
if RESULTS == "nothing":
    FAILURES = {name: FAILURES[name] for name in ("raises", "system_exit", "too_many", "error_mark", "string_alone")}


class Switch:
    """The callback: fails or not, as set, perhaps on one device alone, perhaps not before it is let go."""

    failure: Any = None
    only_on: int | None = None

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def switchable_callback(self, x: Any, device: Any) -> Any:
        self.gate.wait(helpers.DEADLINE)
        if self.failure is not None and self.only_on in (None, device.id):
            return reduced(self.failure(x))
        return reduced(right(x))


def caught(action: Any) -> list[str] | None:
    """The class, its bases and the text of what `action` raises."""
    try:
        action()
    except BaseException as exception:
        return [type(exception).__name__, [base.__name__ for base in type(exception).__mro__], str(exception)]
    return None


def barrier() -> dict[str, Any] | None:
    try:
        hcb.barrier_wait("test")
    except hcb.CallbackException as exception:
        cause = exception.__cause__
        return {"text": str(exception), "cause": repr(cause), "count": len(exception.failures),
                "traceback": "".join(traceback.format_exception(cause)) if cause else ""}  # fmt: skip
    return None


def main(layout: helpers.Layout) -> None:
    switch = Switch()

    def same(x):
        out = hcb.call(switch.switchable_callback, x + 1, result_shape=WANTED, call_with_device=True)
        return {"pair": lambda: out[0] + out[1][0] - 1, "one": lambda: out, "nothing": lambda: (x + 1) * 2}[RESULTS]()

    def other(x):
        return jnp.sum(hcb.call(lambda x: x * 2, x - 1, result_shape=x))

    compiled, compiled_other = layout.compile(same), layout.compile(other)
    values = layout.same(X)

    def good(program: Any, wanted: Any) -> str:
        try:
            outs = layout.split(jax.block_until_ready(program(values)))
        except BaseException as exception:
            return f"raised {type(exception).__name__}: {exception}"[:2000]
        wrong = [out for out in outs if not np.array_equal(out, wanted)]
        return f"{wrong[0]}, but should be {wanted}" if wrong else "right"

    def good_in_thread(program: Any, wanted: Any) -> str:
        answer: list[str] = []
        thread = threading.Thread(target=lambda: answer.append(good(program, wanted)))
        thread.start()
        thread.join(helpers.DEADLINE)
        return answer[0] if answer else "no answer"

    same_wanted, other_wanted = (X + 1) * 2, np.float32(np.sum((X - 1) * 2))
    assert good(compiled, same_wanted) == good(compiled_other, other_wanted) == "right"
    for name, failure in FAILURES.items():
        switch.failure = failure
        report: dict[str, Any] = {"failure": name}
        report["raised"] = caught(lambda: jax.block_until_ready(compiled(values)))
        switch.failure = None
        report["same"] = good(compiled, same_wanted)
        report["other"] = good(compiled_other, other_wanted)
        report["same_in_thread"] = good_in_thread(compiled, same_wanted)
        report["barrier"] = barrier()
        report["barrier_again"] = barrier()
        # A failure on the first caller alone, and the result fetched only after the next ones have been started.
        switch.failure, switch.only_on = failure, layout.callers[0]
        if len(layout.callers) > 1:
            switch.gate.clear()
        started = []
        dispatching = threading.Thread(target=lambda: started.append(caught(lambda: started.append(compiled(values)))))
        dispatching.start()
        dispatching.join(0.2)
        later = threading.Thread(target=lambda: started.append(good(compiled_other, other_wanted)))
        later.start()
        later.join(0.1)
        switch.gate.set()
        dispatching.join(helpers.DEADLINE)
        later.join(helpers.DEADLINE)
        report["dispatched_before"] = next((answer for answer in started if isinstance(answer, str)), "no answer")
        results = [item for item in started if isinstance(item, jax.Array)]
        raised = next((item for item in started if isinstance(item, list)), None)
        report["raised_on_one"] = raised or caught(lambda: jax.block_until_ready(results))
        switch.failure, switch.only_on = None, None
        report["same_after_one"] = good(compiled, same_wanted)
        report["effects_barrier"] = caught(jax.effects_barrier)
        report["barrier_after_one"] = barrier()
        report["other_at_last"] = good(compiled_other, other_wanted)
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(next(layout for layout in helpers.LAYOUTS if layout.name == sys.argv[1]))
