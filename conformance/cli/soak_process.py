"""The process of a soak: `python -m conformance.cli.soak_process OPTIONS`, with the command's options as JSON.

A crash or a hang ends it with the stacks of all threads. The first SIGINT ends the soak early, the second one at once.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import platform
import signal
import sys
import threading
import time
from typing import Any

from .commands import reported

START_SECONDS, PROGRESS_SECONDS, SAY_SECONDS = 120.0, 1.0, 10.0
MOST_WAITING = 12
NEEDED = ("id_tap", "call", "barrier_wait")


def main(options: dict[str, Any]) -> int:
    name, devices, deadline = (options.pop(option) for option in ("implementation", "devices", "deadline"))
    faulthandler.enable()
    _expect_progress(START_SECONDS + deadline)
    # Else each failure that the soak plants would be a line of the log.
    logging.disable()

    import jax

    from ..implementations import ImplementationError, load
    from ..soak.rounds import Soak

    implementation: Any = load(name)
    namespace = getattr(implementation, "namespace", None)
    if missing := [each for each in NEEDED if not hasattr(namespace, each)]:
        raise ImplementationError(f"a soak needs {', '.join(NEEDED)}, and {name} lacks {', '.join(missing)}")
    soak = Soak(implementation, jax.devices()[:devices], **options)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        soak.stopped.set()
        _say("interrupted: the threads end what they do; once more to end at once")

    # A shell starts what runs in the background with SIGINT ignored, which stays so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    versions = f"JAX {jax.__version__} on Python {platform.python_version()}"
    _say(f"a soak of {name} with {versions}: {soak.threads} threads, {len(soak.devices)} devices, seed {soak.seed}")
    ended = threading.Event()
    saying = threading.Thread(target=_say_progress, args=(soak, deadline, ended), name="progress", daemon=True)
    saying.start()
    soak.run()
    ended.set()
    saying.join()
    faulthandler.cancel_dump_traceback_later()
    found = soak.found()
    print(found.summary())
    return found.exit_code


def _say_progress(soak: Any, deadline: float, ended: threading.Event) -> None:
    before, said = soak.progress(), time.monotonic()
    while not ended.wait(PROGRESS_SECONDS):
        if (now := soak.progress()) != before:
            _expect_progress(deadline)
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            _say(f"  {soak.found()}")
            if now == before:
                waiting = soak.record.waiting()[:MOST_WAITING]
                _say("\n  ".join(("nothing goes on; programs that are not over:", *waiting)))
        before = now


def _expect_progress(seconds: float) -> None:
    """End the process with its stacks if this is not called again in time: also if a thread never lets the lock go."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(reported(main, json.loads(sys.argv[1])))
