"""Processes that are forks of a server: each is what a fresh interpreter is, or it is no fork."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.warm import process as warm
from conformance.warm.process import Fork, start

pytestmark = pytest.mark.contract("C66")

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import atexit, json, os, signal, sys, threading
import jax

def late():
    print(json.dumps({"at exit": threading.main_thread().name}))

def child(environment):
    from conformance.warm.process import start
    inner = start("planted_program", ["show"], {**os.environ, **environment})
    print(json.dumps({"inner": type(inner).__name__}))
    return inner.communicate()[0].decode()

def main():
    do = sys.argv[1]
    if do == "show":
        atexit.register(late)
        print(json.dumps({
            "argv": [os.path.basename(sys.argv[0]), *sys.argv[2:]], "folder": os.getcwd(), "input": sys.stdin.read(),
            "leader": os.getsid(0) == os.getpid(), "SIGINT": str(signal.getsignal(signal.SIGINT)),
            "environment": dict(os.environ), "devices": len(jax.devices()), "main": threading.current_thread().name,
            "cache": jax.config.jax_compilation_cache_dir, "hostcb": "hostcb" in sys.modules,
            "open": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in range(3)),
        }))
        print("to the error stream", file=sys.stderr)
    elif do == "exit":
        sys.exit(int(sys.argv[2]))
    elif do == "wait":
        print("waits", flush=True)
        sys.stdin.read()
    elif do == "hold":
        from conformance.warm.process import start
        inner = start("planted_program", ["spin"], {**os.environ})
        inner.stdout.readline()
        print(inner.pid, flush=True)
        sys.stdin.read()
    elif do == "spin":
        print("spins", flush=True)
        while True:
            pass
    elif do == "inner":
        print(child({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}))

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


def lines(written: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.decode().splitlines() if line.startswith("{")]


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
    first, last = shown[0]
    assert (first["input"], first["devices"], first["cache"], first["leader"]) == ("given", 3, str(tmp_path), True)
    assert last == {"at exit": "MainThread"}


def waiting(environment: Environment) -> Fork:
    """A fork that has begun to wait."""
    process = start("planted_program", ["wait"], environment)
    assert isinstance(process, Fork) and process.stdout is not None
    assert process.stdout.readline() == b"waits\n"
    return process


def test_a_fork_that_does_not_end(environment: Environment) -> None:
    process = waiting(environment)
    assert process.poll() is None
    for wait in (process.wait, process.communicate):
        with pytest.raises(subprocess.TimeoutExpired):
            wait(timeout=0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    process.communicate()
    # It has ended: there is nothing to do.
    process.kill()


def test_what_a_fork_starts_is_a_fork_that_ends_with_it(environment: Environment) -> None:
    """Nobody else would end it: a cell's program that hangs would run until the end of all cells."""
    process = start("planted_program", ["inner"], environment)
    kind, shown, _ = lines(process.communicate(timeout=60)[0])
    assert (kind, shown["devices"]) == ({"inner": "Fork"}, 2)
    process = start("planted_program", ["hold"], environment)
    assert isinstance(process, Fork) and process.stdout is not None
    inner = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert select.select([inner], [], [], 60)[0], "the program that the fork had started goes on"
    os.close(inner)
    process.communicate()


def test_where_a_fork_would_differ_a_fresh_interpreter_starts(environment: Environment, tmp_path: Path) -> None:
    """Another platform, and a server that has threads."""
    text = "import sys, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    threads = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    for further in ({"JAX_PLATFORMS": "cpu,other"}, threads):
        process = start("planted_program", ["exit", "3"], {**environment, **further})
        assert isinstance(process, subprocess.Popen)
        process.communicate()
        assert process.returncode == 3


def test_a_variable_that_is_read_at_an_import_needs_another_server(environment: Environment) -> None:
    own = {**environment, "JAX_ENABLE_X64": "1"}
    process = start("planted_program", ["show"], own, stdin=subprocess.DEVNULL)
    shown = lines(process.communicate(timeout=60)[0])[0]
    assert isinstance(process, Fork) and isinstance(shown["environment"], dict)
    assert shown["environment"]["JAX_ENABLE_X64"] == "1"
    assert len(warm._own) <= warm.MOST_SERVERS


def test_forks_end_with_their_server(environment: Environment) -> None:
    process = waiting(environment)
    (server,) = (one for one in warm._own if process in one.forks)
    server.close()
    warm._own.remove(server)
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.communicate()
