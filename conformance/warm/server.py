"""The fork server: `python -m conformance.warm.server FD MODULE...` imports these modules, then forks on demand.

It makes no devices and starts no thread, so a fork is a process like any other: it makes its own devices, and ends as
an interpreter ends. It does not import hostcb, which would know that it was forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import process
from .ending import kill_group
from .environment import settings

LONGEST_REQUEST = 1 << 18
DESCRIPTORS = 4
"""Those of a request: standard input, output and error, and the socket on which its client hears of the fork."""


@dataclass(frozen=True)
class _Fork:
    pid: int
    ended: int
    """The descriptor that is readable when it has ended."""
    client: socket.socket


class _Server:
    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._selector = selectors.DefaultSelector()
        self._selector.register(client, selectors.EVENT_READ)
        self._forks: dict[int, _Fork] = {}

    def serve(self) -> Mapping[str, Any] | None:
        """Serve until the client is gone. A fork returns from this with the request for which it was made."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, _Fork):
                    # It may have been buried a moment ago, for another key of the same look.
                    if self._forks.get(key.data.pid) is key.data:
                        end = self._abandon if key.fileobj is key.data.client else self._bury
                        end(key.data)
                    continue
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                words, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, DESCRIPTORS)
                if not words and connection is self._client:
                    self._end_all()
                    return None
                if not words:
                    self._selector.unregister(connection)
                    connection.close()
                elif request := self._fork(json.loads(words), descriptors):
                    return request

    def _fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> Mapping[str, Any] | None:
        """Fork; the fork returns its request."""
        *streams, told = descriptors
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client = socket.socket(fileno=told)
        with warnings.catch_warnings():
            # JAX warns of forks, because it starts threads when it makes devices. There are none here.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            self._leave()
            client.close()
            ours.close()
            process.inherit(theirs, request["environment"])
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return request
        theirs.close()
        for stream in streams:
            os.close(stream)
        self._selector.register(ours, selectors.EVENT_READ)
        fork = _Fork(pid, os.pidfd_open(pid), client)
        self._forks[pid] = fork
        self._selector.register(fork.ended, selectors.EVENT_READ, fork)
        # The client sends nothing on it: it is readable when the client is gone.
        self._selector.register(client, selectors.EVENT_READ, fork)
        _tell(client, pid, fork.ended)
        return None

    def _abandon(self, fork: _Fork) -> None:
        """Its client is gone, and so nobody would end the fork if it hangs."""
        self._selector.unregister(fork.client)
        os.kill(fork.pid, signal.SIGKILL)

    def _bury(self, fork: _Fork) -> None:
        self._selector.unregister(fork.ended)
        if fork.client in self._selector.get_map():
            self._selector.unregister(fork.client)
        os.close(fork.ended)
        del self._forks[fork.pid]
        kill_group(fork.pid)
        _tell(fork.client, os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1]))
        fork.client.close()

    def _end_all(self) -> None:
        """Nobody waits for the forks any more."""
        for fork in self._forks.values():
            os.kill(fork.pid, signal.SIGKILL)
            kill_group(fork.pid)
        for fork in self._forks.values():
            os.waitpid(fork.pid, 0)

    def _leave(self) -> None:
        """In a fork: close what is the server's."""
        for key in [*self._selector.get_map().values()]:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                assert isinstance(key.data, _Fork)
                os.close(key.data.ended)
                key.data.client.close()
        self._selector.close()


def _tell(client: socket.socket, number: int, *descriptors: int) -> None:
    # The client may have gone.
    with contextlib.suppress(OSError):
        socket.send_fds(client, [str(number).encode()], descriptors)


def _become(request: Mapping[str, Any]) -> None:
    """Make this fork the process that was asked for, and run its program."""
    os.chdir(request["folder"])
    if request["session"]:
        os.setsid()
    environment = request["environment"]
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    import jax

    for name, value in settings(environment).items():
        jax.config.update(name, value)
    program = importlib.import_module(request["program"])
    sys.argv[:] = [str(program.__file__), *request["arguments"]]
    program.main()


def main() -> None:
    client = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        # A release may lack it; a fork that needs it says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1 or "hostcb" in sys.modules:
        # A fork has none of these threads, but what they held. The client starts fresh interpreters then.
        return
    # What is here is in each fork; the collector would look at it again and again, and copy its pages.
    gc.collect()
    gc.freeze()
    request = _Server(client).serve()
    client.close()
    if request is not None:
        _become(request)


if __name__ == "__main__":
    main()
