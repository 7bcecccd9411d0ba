"""A program that runs in a fork prints, fails and ends as it does in a fresh interpreter."""

from __future__ import annotations

import pytest
from support.subprocesses import Ended, run_program

import hostcb as hcb

ALIVE = """
import os, pickle, sys, warnings
class Mine: pass
print(__name__, sys.argv, sys.path[0], globals().get("__file__"), type(pickle.loads(pickle.dumps(Mine()))) is Mine)
print(sorted(name for name in os.environ if name != "PYTEST_CURRENT_TEST"))
print(sys.flags, sys.warnoptions, sys.stdout.encoding, sys.stdin.read())
warnings.warn("planted", UserWarning)
import hostcb, jax
print(len(jax.devices()), jax.jit(lambda x: hostcb.call(lambda v: 2 * v, x, result_shape=x))(1.0))
"""
ENDING = """
import atexit, threading
atexit.register(print, "first")
atexit.register(print, "second")
class Last:
    def __del__(self, print=print):
        print("finalizer")
last = Last()
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
print("main")
"""
PROGRAMS = {
    "alive": ALIVE,
    "ending": ENDING,
    "exit status": "import sys; print('before'); sys.exit(5)",
    "exit message": "raise SystemExit('the reason')",
    "exception": "def fails():\n    raise ValueError('planted') from KeyError(1)\nfails()",
    "os._exit": "import os; os.write(1, b'here'); os._exit(7)",
    "child": "import os\nif os.fork() == 0:\n    raise SystemExit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
}


@pytest.mark.parametrize(("name", "warnings"), [*((name, "default") for name in PROGRAMS), ("alive", "error")])
def test_it_ends_as_in_a_fresh_interpreter(name: str, warnings: str) -> None:
    forked, fresh = (
        run_program(PROGRAMS[name], "one", "-x", devices=3, prelude="", warnings=warnings, fresh=fresh)
        for fresh in (False, True)
    )
    assert forked == fresh
    assert forked != Ended(0, "", "")


def test_a_file_runs_as_in_a_fresh_interpreter() -> None:
    forked, fresh = (run_program("without_callbacks.py", "with", devices=2, fresh=fresh) for fresh in (False, True))
    assert forked == fresh
    assert forked.check().lines


def test_a_program_that_hangs_is_ended_and_shows_its_stacks() -> None:
    source = "import threading\ndef hangs():\n    print('begun')\n    threading.Event().wait()\nhangs()"
    ended = run_program(source, prelude="", timeout=3.0)
    assert (ended.returncode, ended.lines) == (None, ["begun"])
    assert "Fatal Python error: Aborted" in ended.stderr and "line 4 in hangs" in ended.stderr


@pytest.mark.parametrize(("options", "forks"), [({}, True), ({"fresh": True}, False)])
def test_which_programs_run_in_forks(options: dict[str, bool], forks: bool) -> None:
    source = "import sys; print('jax' in sys.modules, 'hostcb' in sys.modules)"
    assert run_program(source, prelude="", **options).check().lines == [f"{forks} False"]


@pytest.mark.parametrize("variables", [{"JAX_ENABLE_X64": "1"}, {"PYTHONDEVMODE": "1"}, {"PYTHONPATH": ""}])
def test_a_variable_that_is_read_at_the_start_needs_a_fresh_interpreter(variables: dict[str, str]) -> None:
    ended = run_program("import sys; print('jax' in sys.modules)", prelude="", env=variables)
    assert ended.check().lines == ["False"]


def test_programs_use_the_hostcb_of_this_process() -> None:
    assert run_program("import hostcb; print(hostcb.__file__)", prelude="").check().lines == [hcb.__file__]
