"""Processes that are forks of a server: each is what a fresh interpreter is, or it is no fork."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from suite_runs import ROOT, Patch

from conformance.warm import ending
from conformance.warm import process as warm
from conformance.warm.process import Fork, start

pytestmark = pytest.mark.contract("C66")

PROGRAM = """\
import atexit, json, os, signal, stat, subprocess, sys, threading
import jax
from conformance.warm.process import start

def late():
    print(json.dumps({"at exit": threading.main_thread().name}))

def show():
    atexit.register(late)
    print(json.dumps({
        "argv": [os.path.basename(sys.argv[0]), *sys.argv[2:]], "folder": os.getcwd(), "input": sys.stdin.read(),
        "leader": os.getsid(0) == os.getpid(), "SIGINT": str(signal.getsignal(signal.SIGINT)),
        "environment": dict(os.environ), "devices": len(jax.devices()), "main": threading.current_thread().name,
        "cache": jax.config.jax_compilation_cache_dir, "hostcb": "hostcb" in sys.modules,
        "open": [stat.S_IFMT(os.fstat(number).st_mode) for number in range(3)],
    }))
    print("to the error stream", file=sys.stderr)

def wait():
    print("waits", flush=True)
    sys.stdin.read()

def hold():
    streams = subprocess.DEVNULL, subprocess.DEVNULL, subprocess.DEVNULL
    print(start("planted_program", ["signal.pause"], {**os.environ}, streams).pid, flush=True)
    sys.stdin.read()

def main():
    eval(sys.argv[1])()

if __name__ == "__main__":
    main()
"""

Environment = dict[str, str]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """That of the suite's processes on the CPU, in which the program above is found."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "planted_program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(ROOT), str(folder)])
    yield {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    warm._close_all()


def ran(environment: Environment, *arguments: str, kind: type = Fork, **options: Any) -> list[dict[str, Any]]:
    """What the program writes in a process of this kind."""

    def begin(output: IO[bytes], errors: IO[bytes]) -> ending.Process:
        process = start("planted_program", arguments, environment, (subprocess.PIPE, output, errors), **options)
        assert isinstance(process, kind)
        assert process.stdin is not None
        process.stdin.write(b"given")
        process.stdin.close()
        return process

    ended = ending.run(begin, 60)
    assert (ended.status, ended.errors) == (0, "to the error stream\n" if arguments[0] == "show" else "")
    return [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def forked(environment: Environment, does: str) -> Iterator[tuple[Fork, bytes]]:
    """A fork, and the first line that it writes."""
    process = start("planted_program", [does], environment, (subprocess.PIPE, subprocess.PIPE, subprocess.DEVNULL))
    assert isinstance(process, Fork) and process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        yield process, process.stdout.readline()


def test_a_fork_is_what_a_fresh_interpreter_is(environment: Environment, tmp_path: Path) -> None:
    own = {**environment, "XLA_FLAGS": "--xla_force_host_platform_device_count=3", "HOSTCB_NATIVE": "1"}
    own |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    shown = ran(own, "show", "a b", session=True)
    assert shown == ran(own, "show", "a b", session=True, python=Path(sys.executable), kind=subprocess.Popen)
    first, _ = shown
    assert (first["input"], first["devices"], first["cache"], first["leader"]) == ("given", 3, str(tmp_path), True)


def test_how_forks_end(environment: Environment) -> None:
    """By a signal, or with their server; and what a fork has started is a fork that ends with it.

    Nobody else would end that: a cell's program that hangs would run until the end of all cells.
    """
    with forked(environment, "wait") as (process, _):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
    with forked(environment, "hold") as (process, number):
        inner = os.pidfd_open(int(number))
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert select.select([inner], [], [], 60)[0], "the program that the fork had started goes on"
        os.close(inner)
    with forked(environment, "wait") as (process, _):
        (server,) = (one for one in warm._own if process in one.forks)
        server.close()
        warm._own.remove(server)
        assert process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.parametrize("python", [None, Path(sys.executable)])
def test_no_group_is_killed_once_its_number_may_be_anothers(
    environment: Environment, python: Path | None, monkeypatch: Patch
) -> None:
    killed: list[int | None] = []
    nowhere = subprocess.DEVNULL, subprocess.DEVNULL, subprocess.DEVNULL
    process: Any = start("planted_program", ["int"], environment, nowhere, session=True, python=python)
    monkeypatch.setattr(os, "killpg", lambda *_: killed.append(process.returncode))
    assert process.wait(60) == 0
    ending.end(process, signal.SIGTERM, 60)
    # The server of a fork kills its group.
    assert killed == ([None] if python else [])


def refused(process: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


STARTS_ANOTHER = """\
import faulthandler, os, signal, sys
faulthandler.enable()
if os.fork() == 0:
    signal.pause()
os.write(int(sys.argv[1]), b"started")
"""


@pytest.mark.parametrize("sandboxed", [False, True])
def test_a_program_ends_with_what_it_has_started(monkeypatch: Patch, sandboxed: bool) -> None:
    """At its deadline with its stacks. What it has started keeps its output open, and nobody waits for that."""
    if sandboxed:
        monkeypatch.setattr(os, "pidfd_open", refused)

    def ended(does: str, deadline: float) -> ending.Ended:
        reading, writing = os.pipe()
        started: list[ending.Child] = []

        def begin(output: IO[bytes], errors: IO[bytes]) -> ending.Process:
            command = [sys.executable, "-c", STARTS_ANOTHER + does, str(writing)]
            process = ending.Child(command, stdout=output, stderr=errors, pass_fds=[writing], start_new_session=True)
            os.close(writing)
            assert os.read(reading, 64) == b"started"
            started.append(process)
            return process

        try:
            return ending.run(begin, deadline)
        finally:
            # The end of the pipe is the end of all that have it.
            assert select.select([reading], [], [], 60)[0]
            assert os.read(reading, 64) == b""
            os.close(reading)
            started[0].wait(60)

    hung = ended("signal.pause()", 0.0)
    assert (hung.status, hung.how, hung.signal) == (None, "no end", None)
    assert "Fatal Python error: Aborted" in hung.errors
    assert ended("os.abort()", 60).signal == "SIGABRT"
    # A signal without a name.
    assert ended("os.kill(os.getpid(), 40)", 60).signal == "signal 40"
    long = ended(f"print('first' + {ending.LONGEST} * ' ' + 'last')", 60)
    assert (long.how, long.output.split(), len(long.output)) == ("exit 0", ["first", "last"], ending.LONGEST)

    def interrupted(process: ending.Process, seconds: float) -> None:
        raise KeyboardInterrupt

    # Ctrl-C, and again while the program has time to write its stacks.
    monkeypatch.setattr(ending, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ended("signal.signal(signal.SIGABRT, signal.SIG_IGN); signal.pause()", 60)


def test_where_a_fork_would_differ_there_is_another_server_or_a_fresh_interpreter(
    environment: Environment, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A variable that is read at an import, another folder; another platform, a server that has threads, a sandbox."""
    text = "import sys, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    threads = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    for further, kind in (
        ({"JAX_PLATFORMS": "cpu,other"}, subprocess.Popen),
        (threads, subprocess.Popen),
        ({"JAX_ENABLE_X64": "1"}, Fork),
    ):
        own = {**environment, **further}
        shown = ran(own, "show" if kind is Fork else "int", kind=kind)
        assert kind is not Fork or shown[0]["environment"]["JAX_ENABLE_X64"] == "1"
    monkeypatch.chdir(tmp_path)
    assert ran(environment, "show")[0]["folder"] == str(tmp_path)
    assert len(warm._own) <= warm.MOST_SERVERS
    monkeypatch.setattr(os, "pidfd_open", refused)
    ran(environment, "int", kind=subprocess.Popen)
