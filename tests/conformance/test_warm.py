"""Processes that are forks of a server: each is what a fresh interpreter is, or it is no fork."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suite_runs import ROOT, Patch

from conformance.warm import process as warm
from conformance.warm.process import Fork, start

pytestmark = pytest.mark.contract("C66")

PROGRAM = """\
import atexit, json, os, signal, sys, threading
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
        "open": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in range(3)),
    }))
    print("to the error stream", file=sys.stderr)

def wait():
    print("waits", flush=True)
    sys.stdin.read()

def hold():
    inner = start("planted_program", ["spin"], {**os.environ})
    inner.stdout.readline()
    print(inner.pid, flush=True)
    sys.stdin.read()

def spin():
    print("spins", flush=True)
    while True:
        pass

def main():
    globals()[sys.argv[1]]()

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


def lines(written: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.decode().splitlines() if line.startswith("{")]


def forked(environment: Environment, does: str) -> tuple[Fork, bytes]:
    """A fork, and the first line that it writes."""
    process = start("planted_program", [does], environment)
    assert isinstance(process, Fork) and process.stdout is not None
    return process, process.stdout.readline()


def test_a_fork_is_what_a_fresh_interpreter_is(environment: Environment, tmp_path: Path) -> None:
    own = {**environment, "XLA_FLAGS": "--xla_force_host_platform_device_count=3", "HOSTCB_NATIVE": "1"}
    own |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    shown = []
    for fresh in (False, True):
        process = start("planted_program", ["show", "a b"], own, session=True, fresh=fresh)
        assert isinstance(process, subprocess.Popen if fresh else Fork)
        assert process.stdin is not None
        process.stdin.write(b"given")
        process.stdin.flush()
        written, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"to the error stream\n")
        shown.append(lines(written))
    assert shown[0] == shown[1]
    first, _ = shown[0]
    assert (first["input"], first["devices"], first["cache"], first["leader"]) == ("given", 3, str(tmp_path), True)


def test_how_forks_end(environment: Environment) -> None:
    """By a signal, or with their server; and what a fork has started is a fork that ends with it.

    Nobody else would end that: a cell's program that hangs would run until the end of all cells.
    """
    process, _ = forked(environment, "wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    process.communicate()
    process, number = forked(environment, "hold")
    inner = os.pidfd_open(int(number))
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert select.select([inner], [], [], 60)[0], "the program that the fork had started goes on"
    os.close(inner)
    process.communicate()
    process, _ = forked(environment, "wait")
    (server,) = (one for one in warm._own if process in one.forks)
    server.close()
    warm._own.remove(server)
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.communicate()


def test_where_a_fork_would_differ_there_is_another_server_or_a_fresh_interpreter(
    environment: Environment, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A variable that is read at an import, another folder; another platform, and a server that has threads."""
    text = "import sys, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    threads = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    for further, kind in (
        ({"JAX_PLATFORMS": "cpu,other"}, subprocess.Popen),
        (threads, subprocess.Popen),
        ({"JAX_ENABLE_X64": "1"}, Fork),
    ):
        own = {**environment, **further}
        process = start("planted_program", ["show" if kind is Fork else "nothing"], own, stdin=subprocess.DEVNULL)
        assert isinstance(process, kind)
        shown = lines(process.communicate(timeout=60)[0])
        assert kind is not Fork or shown[0]["environment"]["JAX_ENABLE_X64"] == "1"
    monkeypatch.chdir(tmp_path)
    process = start("planted_program", ["show"], environment, stdin=subprocess.DEVNULL)
    assert lines(process.communicate(timeout=60)[0])[0]["folder"] == str(tmp_path)
    assert len(warm._own) <= warm.MOST_SERVERS
