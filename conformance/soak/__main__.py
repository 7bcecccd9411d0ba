"""The process of a soak: `python -m conformance.soak OPTIONS`, with options as JSON.

It writes lines of JSON: how far it is, each second, and at the end what it found. When its standard input closes, it
ends early.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from typing import Any

from ..worker.parent import end_with_parent
from .options import Options
from .watching import REFUSED

PROGRESS_SECONDS = 1.0
START_SECONDS = 120.0
NEEDED = ("id_tap", "call", "barrier_wait", "trace")


def main() -> int:
    options = Options(**json.loads(sys.argv[1]))
    end_with_parent()
    # Ctrl-C must reach only the command, which closes this process's input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    _expect_progress(START_SECONDS + options.deadline)

    import jax

    from ..implementations import ImplementationError, load
    from .c_library import keep_little
    from .rounds import Soak

    keep_little()
    try:
        implementation: Any = load(options.implementation)
    except ImplementationError as error:
        return _refuse(str(error))
    namespace = getattr(implementation, "namespace", None)
    if missing := [name for name in NEEDED if not hasattr(namespace, name)]:
        return _refuse(f"a soak needs {', '.join(NEEDED)}, and {options.implementation} lacks {', '.join(missing)}")
    soak = Soak(options, implementation, jax.devices()[: options.devices])
    ended = threading.Event()
    threading.Thread(target=_stop_with_input, args=(soak,), name="stopping", daemon=True).start()
    saying = threading.Thread(target=_say_progress, args=(soak, ended), name="progress", daemon=True)
    saying.start()
    soak.run()
    ended.set()
    saying.join()
    faulthandler.cancel_dump_traceback_later()
    _say(ended=True, **soak.report())
    return 0


def _stop_with_input(soak: Any) -> None:
    while os.read(0, 1):
        pass
    soak.stopped.set()


def _say_progress(soak: Any, ended: threading.Event) -> None:
    before: list[Any] = []
    while not ended.wait(PROGRESS_SECONDS):
        progress = soak.progress()
        now = [progress[name] for name in ("acts", "events", "rounds", "judged")]
        if now != before:
            _expect_progress(soak.options.deadline)
            before = now
        _say(**progress)


def _expect_progress(seconds: float) -> None:
    """End the process with its stacks if this is not called again in time: also if a thread never lets the lock go."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def _refuse(why: str) -> int:
    _say(refused=why)
    return REFUSED


def _say(**report: Any) -> None:
    _REPORTS.write(json.dumps(report) + "\n")
    _REPORTS.flush()


if __name__ == "__main__":
    _REPORTS = os.fdopen(os.dup(1), "w")
    # What the runtime writes there must not come between the reports.
    os.dup2(2, 1)
    sys.exit(main())
