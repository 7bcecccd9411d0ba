"""A run inside of a cluster's job: every host runs the same command, and the first one commands the others.

JAX's own cluster detection says which process this is, how many there are, and where they meet. The first process
judges and writes the results. Each other one starts and ends worker processes at the request of the first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from ...spec.errors import CommandError
from ...worker.processes import EXIT_DEADLINE, WorkerStartError
from ...worker.transport import LocalTransport, Start, Transport

JOIN_SECONDS = 300.0
"""Hosts of a job may start minutes apart."""

PORT_DISTANCE = 4096
"""The first process listens on a port so far below JAX's, which is a high one that the job's number decides."""

KEY = "HOSTCB_CONFORMANCE_KEY"
PORT = "HOSTCB_CONFORMANCE_PORT"

ANSWER_SECONDS = 10.0
"""A host that answers to no packet is asked again after so long."""


class ClusterError(CommandError):
    """The processes of a job do not find each other; the text says why."""


@dataclass(frozen=True)
class Place:
    coordinator_address: str
    """Where JAX's processes meet, as HOST:PORT."""
    processes: int
    process: int

    @property
    def address(self) -> tuple[str, int]:
        """Where the first process listens."""
        host, _, port = self.coordinator_address.rpartition(":")
        return host.strip("[]"), int(os.environ.get(PORT) or int(port) - PORT_DISTANCE)

    @property
    def key(self) -> bytes:
        """What every process of the job knows; a secret only if the user sets one."""
        return (os.environ.get(KEY) or hashlib.sha256(self.coordinator_address.encode()).hexdigest()).encode()


def detected() -> Place:
    """This process's place, by JAX's own cluster detection."""
    # A private name of JAX: its public function starts the job's processes at once, and does not say what it found.
    from jax._src.clusters import ClusterEnv

    try:
        found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, int(JOIN_SECONDS))
    except Exception as error:
        raise ClusterError(f"--spread hosts: JAX's cluster detection failed: {error}") from error
    coordinator_address, processes, process, *_ = found
    if coordinator_address is None or processes is None or process is None:
        raise ClusterError(
            "--spread hosts: JAX finds no job of Slurm, Open MPI, Kubernetes or Cloud TPU here: start the same command"
            " on every host by one of ci/launchers/"
        )
    return Place(coordinator_address, processes, process)


@dataclass
class Coordinator:
    """The other processes of the job, as the first one sees them."""

    place: Place
    plan: str
    """What all processes must have planned alike."""
    _connections: dict[int, Connection] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 62)))

    @property
    def coordinator_address(self) -> str:
        return self.place.coordinator_address

    def gather(self) -> None:
        with socket.socket(socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", self.place.address[1]))
            except OSError as error:
                words = f"port {self.place.address[1]} cannot be used: {error.strerror}; {PORT} names another one"
                raise ClusterError(words) from error
            listener.listen()
            until = time.monotonic() + JOIN_SECONDS
            while len(self._connections) < self.place.processes - 1:
                listener.settimeout(max(0.1, until - time.monotonic()))
                try:
                    accepted, _ = listener.accept()
                except TimeoutError:
                    missing = [str(rank) for rank in range(1, self.place.processes) if rank not in self._connections]
                    raise ClusterError(
                        f"after {JOIN_SECONDS:.0f} s no word of process {', '.join(missing)}: does every host run this"
                        " command?"
                    ) from None
                self._welcome(accepted)

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.settimeout(None)
        connection = Connection(accepted.detach())
        # Anybody may connect; who does not know the key is let go.
        with contextlib.suppress(AuthenticationError, EOFError, OSError):
            deliver_challenge(connection, self.place.key)
            answer_challenge(connection, self.place.key)
            hello = _received(connection)
            if hello["plan"] != self.plan:
                raise ClusterError(
                    f"process {hello['process']} has planned other cells than this one: every host runs the same"
                    " command, with the same JAX and the same version of the suite"
                )
            self._connections[int(hello["process"])] = connection

    def start(self, starts: Sequence[Start]) -> Sequence[Transport]:
        """Start the processes of a group, the first one here."""
        folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        transports: list[Transport] = [LocalTransport.of(_on_own_host(starts[0]), folder / "worker.log")]
        for rank, one in enumerate(starts[1:], 1):
            if rank not in self._connections:
                raise WorkerStartError(f"the host of process {rank} is gone")
            transports.append(_RemoteTransport(self._connections[rank], next(self._numbers), _on_own_host(one)))
        return transports

    def end(self, code: int) -> None:
        """Let the other processes of the job end, with this exit code."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                _send(connection, {"do": "end", "code": code})
                connection.close()


def _on_own_host(start: Start) -> Start:
    return Start([*start.arguments, "--first-device", "0"], start.environment, start.absent)


class _RemoteTransport:
    """A process that another host has started."""

    pid = None
    """It has no number on this machine."""

    def __init__(self, connection: Connection, number: int, start: Start) -> None:
        self._connection = connection
        self._number = number
        self._lines: list[dict[str, Any]] = []
        self._status: int | None = None
        self._ended = False
        self._text = ""
        self._tell(
            "start", arguments=list(start.arguments), environment=dict(start.environment), absent=[*start.absent]
        )

    def _tell(self, do: str, **more: Any) -> None:
        with contextlib.suppress(OSError):
            _send(self._connection, {"do": do, "of": self._number, **more})

    def _read(self) -> None:
        """Take what has come."""
        try:
            while self._connection.poll(0):
                message = _received(self._connection)
                if message.get("of") != self._number:
                    continue
                if "line" in message:
                    self._lines.append(message["line"])
                else:
                    self._ended, self._status, self._text = True, message["ended"], message["written"]
        except (EOFError, OSError):
            self._ended, self._text = True, "its host is gone"

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, command: Mapping[str, Any]) -> None:
        self._tell("send", command=dict(command))

    def reports(self) -> list[dict[str, Any]] | None:
        self._read()
        lines, self._lines = self._lines, []
        return None if self._ended and not lines else lines

    mark = functools.partialmethod(_tell, "mark")
    show_stacks = functools.partialmethod(_tell, "show_stacks")
    finish = functools.partialmethod(_tell, "finish")
    kill = functools.partialmethod(_tell, "kill")
    close = functools.partialmethod(_tell, "close")
    """The connection is the host's, and stays."""

    def wait(self, timeout: float) -> int | None:
        until = time.monotonic() + timeout
        self._read()
        while not self._ended and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self._connection.poll(max(0.0, min(0.1, until - time.monotonic())))
            self._read()
        return self._status

    def written(self) -> str:
        """It comes with the end, before which nobody asks."""
        return self._text


def serve(place: Place, plan: str) -> int:
    """Start and end worker processes as the first process of the job says; returns its exit code."""
    connection = _connected(place)
    _send(connection, {"process": place.process, "plan": plan})
    with tempfile.TemporaryDirectory() as folder:
        return _Host(connection, Path(folder)).serve()


def _connected(place: Place) -> Connection:
    until = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            # `Client` has no deadline for this, and a host that drops packets would hold it for minutes.
            connection = Connection(socket.create_connection(place.address, ANSWER_SECONDS).detach())
            os.set_blocking(connection.fileno(), True)
            answer_challenge(connection, place.key)
            deliver_challenge(connection, place.key)
        except (OSError, EOFError) as error:
            if time.monotonic() > until:
                host, port = place.address
                raise ClusterError(f"no word of the job's first process at {host}:{port}: {error}") from error
            time.sleep(0.2)
        except AuthenticationError as error:
            raise ClusterError(f"the job's first process has another key: set the same {KEY} on every host") from error
        else:
            return connection


class _Host:
    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._transport: LocalTransport | None = None
        self._number = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    def serve(self) -> int:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is not self._connection:
                        self._relay()
                        continue
                    message = _received(self._connection)
                    if message["do"] == "end":
                        return int(message["code"])
                    self._obey(message)
        except (EOFError, OSError) as error:
            raise ClusterError(f"the job's first process is gone: {error or 'it has closed its connection'}") from error
        finally:
            self._forget()

    def _obey(self, message: Mapping[str, Any]) -> None:
        if message["do"] == "start":
            self._forget()
            self._number = message["of"]
            start = Start(message["arguments"], message["environment"], message["absent"])
            self._transport = LocalTransport.of(start, self._folder / "worker.log")
            self._selector.register(self._transport, selectors.EVENT_READ)
        elif self._transport is None or message["of"] != self._number:
            return
        elif message["do"] == "send":
            self._transport.send(message["command"])
        elif message["do"] == "close":
            self._forget()
        elif message["do"] in ("mark", "show_stacks", "finish", "kill"):
            getattr(self._transport, message["do"])()

    def _relay(self) -> None:
        assert self._transport is not None
        reports = self._transport.reports()
        for line in reports or ():
            self._say(line=line)
        if reports is None:
            self._selector.unregister(self._transport)
            self._say(ended=self._transport.wait(EXIT_DEADLINE), written=self._transport.written())

    def _say(self, **message: Any) -> None:
        _send(self._connection, {"of": self._number, **message})

    def _forget(self) -> None:
        """End the present worker process, if there is one."""
        transport, self._transport = self._transport, None
        if transport:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(transport)
            transport.kill()
            transport.wait(EXIT_DEADLINE)
            transport.close()


def _send(connection: Connection, message: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _received(connection: Connection) -> dict[str, Any]:
    """A message as JSON: nothing that comes over the network is executed."""
    return json.loads(connection.recv_bytes())
