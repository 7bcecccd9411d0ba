"""The worker processes of a topology: mostly one, and several that run each cell together for one such as `cpu-2x4`.

The end of one process ends the group, and costs the cell in flight alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..oracle.fair_deadline import FairDeadline
from ..oracle.stages import stacks_in, stage_of_stacks
from ..oracle.verdicts import Outcome, Stage, Verdict
from ..spec.topology import Topology, WrongPlatformError
from ..spec.xla_flags import QUICK_COMPILATION
from ..warm.ending import KILL_DEADLINE, how
from .processes import (
    EXIT_DEADLINE,
    LATEST_SECONDS,
    STACK_DUMP_SECONDS,
    START_DEADLINE,
    TRIAL,
    OtherPython,
    WorkerStartError,
    worker_environment,
)
from .transport import Cluster, LocalTransport, Start, Transport, last_words

GRACE = 2.0
"""After the end of one process, the others have so many seconds to end in their own words."""

ONE_SIDED = 20.0
"""After the program has failed in one process, the others have so many seconds to end theirs."""


class ProcessGroup:
    """Processes that run each cell together. `run` never raises because a cell crashes or hangs."""

    def __init__(self, name: str, transports: Sequence[Transport], port: socket.socket | None = None) -> None:
        """Wait for the processes, which have just been started; they meet at the port."""
        self.name = name
        self.buried = False
        """Whether this object has seen the end of the processes and reported it in an outcome."""
        self._transports = transports
        self._port = port
        self._selector = selectors.DefaultSelector()
        for rank, transport in enumerate(transports):
            self._selector.register(transport, selectors.EVENT_READ, rank)
        self._ended: dict[int, int | None] = {}
        """The exit status of each process that has ended."""
        self._ends: tuple[int, ...] = ()
        """The processes that the cell itself ends."""
        try:
            self.run_info = self._greeted()
        except BaseException:
            self.kill()
            raise

    @property
    def _several(self) -> bool:
        return len(self._transports) > 1

    def _greeted(self) -> dict[str, Any]:
        hellos = self._answers({"ready", "refused"}, self._deadline(START_DEADLINE))
        for hello in hellos.values():
            if hello["event"] == "refused":
                raise WrongPlatformError(hello["reason"])
        if len(hellos) < len(self._transports):
            self._put_down()
            raise WorkerStartError(f"a worker for {self.name} did not start: {self._words_of_all()}")
        info: dict[str, Any] = hellos[0]["run_info"]
        return {**info, "processes": len(self._transports)} if self._several else info

    def _deadline(self, seconds: float) -> FairDeadline:
        return FairDeadline(seconds, *(transport.pid for transport in self._transports if transport.pid is not None))

    @property
    def alive(self) -> bool:
        return (
            not self.buried and not self._ended and all(transport.wait(0.0) is None for transport in self._transports)
        )

    def run(self, cell_id: str, deadline: float, trial: bool = False) -> Outcome:
        """Run one cell in all processes. If one ends or exceeds the deadline, that is this cell's outcome.

        A `trial` asks only whether the platform has the callback of a case.
        """
        started = time.monotonic()
        for transport in self._transports:
            transport.mark()
        self._tell({"do": TRIAL if trial else "run", "cell": cell_id})
        self._ends = ()
        until = self._deadline(deadline)
        answers = self._answers({"end"}, until, cell_id)
        outcome = self._outcome(answers, time.monotonic() - started)
        if outcome is None:
            outcome = self._judged(cell_id, answers, until)
        return replace(outcome, seconds=time.monotonic() - started) if self._several else outcome

    def _outcome(self, answers: Mapping[int, dict[str, Any]], seconds: float) -> Outcome | None:
        """The outcome of a cell that cannot be judged, or that the processes have judged; None for a program."""
        missing = [rank for rank in range(len(self._transports)) if rank not in answers and rank not in self._ends]
        if missing or self._ended or self._ends:
            # What a process has started may keep its pipe open after its end.
            self._ended |= {rank: self._transports[rank].wait(0.0) for rank in missing}
            crashed = [rank for rank in missing if self._ended[rank] is not None]
            hanging = [rank for rank in missing if rank not in crashed]
            self._put_down()
            if missing:
                return self._broken(crashed, hanging, answers, seconds)
        judged = {rank: answer["outcome"] for rank, answer in answers.items() if "outcome" in answer}
        return _worst({rank: Outcome.from_json(outcome) for rank, outcome in judged.items()}) if judged else None

    def _judged(self, cell_id: str, answers: Mapping[int, dict[str, Any]], until: FairDeadline) -> Outcome:
        verdict = self._judge(cell_id, answers, until)
        if verdict.get("lost"):
            # A callback that runs after the barrier is late, and not lost.
            time.sleep(LATEST_SECONDS)
            self._tell({"do": "look again", "cell": cell_id})
            again = self._answers({"end"}, self._deadline(EXIT_DEADLINE), cell_id)
            if len(again) == len(self._transports):
                verdict = self._judge(cell_id, again, until)
        if "outcome" not in verdict:
            self._put_down()
            reason = f"the first process did not judge what all have seen: {self._words_of_all()}"
            return Outcome(Verdict.HARNESS_ERROR, None, reason)
        return Outcome.from_json(verdict["outcome"])

    def _judge(self, cell_id: str, answers: Mapping[int, dict[str, Any]], until: FairDeadline) -> dict[str, Any]:
        observations = [answers[rank]["observation"] for rank in sorted(answers)]
        self._transports[0].send({"do": "judge", "cell": cell_id, "observations": observations})
        longer = max(until, self._deadline(EXIT_DEADLINE), key=FairDeadline.left)
        found = self._answers({"end"}, longer, cell_id, {0})
        return found.get(0, {})

    def finish(self) -> Outcome:
        """Let the processes end by themselves; an end with another status, or none, is a failure at exit."""
        for transport in self._transports:
            transport.mark()
        for transport in self._transports:
            transport.finish()
        started = time.monotonic()
        until = self._deadline(EXIT_DEADLINE)
        statuses = {rank: until.wait(transport.wait) for rank, transport in enumerate(self._transports)}
        self._ended = {rank: status for rank, status in statuses.items() if status is not None}
        seconds = time.monotonic() - started
        hanging = [rank for rank, status in statuses.items() if status is None]
        crashed = [rank for rank, status in self._ended.items() if status != 0]
        if not hanging and not crashed:
            self._close()
            return Outcome(Verdict.PASS)
        self._put_down()
        return self._broken(crashed, hanging, {}, seconds, None if hanging else Stage.EXIT)

    def kill(self) -> None:
        for transport in self._transports:
            transport.kill()
        until = time.monotonic() + KILL_DEADLINE
        for rank, transport in enumerate(self._transports):
            self._ended.setdefault(rank, transport.wait(max(0.0, until - time.monotonic())))
        self._close()

    def _close(self) -> None:
        self.buried = True
        self._selector.close()
        for transport in self._transports:
            transport.close()
        if self._port:
            self._port.close()

    def _tell(self, command: Mapping[str, Any]) -> None:
        for transport in self._transports:
            transport.send(command)

    def _answers(
        self,
        wanted: Collection[str],
        until: FairDeadline,
        cell_id: str | None = None,
        ranks: Collection[int] | None = None,
    ) -> dict[int, dict[str, Any]]:
        """The reports of these kinds, by process; fewer if a process ends, or the time does."""
        at_last = math.inf
        found: dict[int, dict[str, Any]] = {}
        awaited = {*(range(len(self._transports)) if ranks is None else ranks)} - self._ended.keys()
        while awaited:
            seconds = max(0.0, min(until.pause(), at_last - time.monotonic()))
            selected = self._selector.select(seconds)
            if not selected and seconds == 0:
                return found
            for key, _ in selected:
                rank: int = key.data
                reports = self._transports[rank].reports()
                if reports is None:
                    self._selector.unregister(self._transports[rank])
                    # Its pipe closes a moment before it ends.
                    self._ended[rank] = self._deadline(EXIT_DEADLINE).wait(self._transports[rank].wait)
                    awaited.discard(rank)
                    if rank not in self._ends:
                        at_last = min(at_last, time.monotonic() + GRACE)
                for line in reports or ():
                    if line["event"] == "begin":
                        self._ends = tuple(line.get("ends", ()))
                        awaited -= {*self._ends}
                    elif line["event"] in wanted and line.get("cell") == cell_id:
                        found[rank] = line
                        awaited.discard(rank)
                        if line.get("observation", {}).get("verdict"):
                            at_last = min(at_last, time.monotonic() + ONE_SIDED)
        return found

    def _put_down(self) -> None:
        """End all processes; those that live write the stacks of their threads first."""
        alive = [one for rank, one in enumerate(self._transports) if self._ended.get(rank) is None]
        for transport in alive:
            transport.show_stacks()
        if alive:
            time.sleep(STACK_DUMP_SECONDS)
        self.kill()

    def _broken(
        self,
        crashed: Sequence[int],
        hanging: Sequence[int],
        answers: Mapping[int, dict[str, Any]],
        seconds: float,
        stage: Stage | None = None,
    ) -> Outcome:
        """The outcome of a cell in which processes ended or gave no answer."""
        failed = [
            f"{self._who(rank)} said {' '.join(one[2] for one in answer['observation']['anomalies'])}"
            for rank, answer in answers.items()
            if answer.get("observation", {}).get("verdict")
        ]
        # Whatever a process waits for, it writes its stacks at the signal, unless it is stopped.
        stopped = [rank for rank in hanging if crashed and not stacks_in(self._transports[rank].written())]
        who = " and ".join(map(self._who, stopped or hanging))
        words = ", ".join(f"{self._who(rank)} ended with {how(self._ended[rank])}" for rank in crashed)
        if stopped:
            words = f"{who} is stopped: it gave no answer and no stacks; {words}"
        reason = "; ".join([words or f"no answer of {who} for {seconds:.0f} s", *failed, self._words_of_all()])
        if not stopped:
            stage = stage or stage_of_stacks(self._transports[[*crashed, *hanging][0]].written())
        if crashed and not stopped:
            return Outcome(Verdict.CRASH, stage, reason, seconds, signal=how(self._ended[crashed[0]]))
        return Outcome(Verdict.HANG, stage, reason, seconds)

    def _who(self, rank: int) -> str:
        return f"process {rank}" if self._several else "the process"

    def _words_of_all(self) -> str:
        """The last words and the stacks of every process."""
        words_of_all = []
        for rank, transport in enumerate(self._transports):
            written = transport.written()
            stacks = stacks_in(written)
            # What follows the stacks that are shown is more of them.
            words = last_words(written.partition(stacks)[0] if stacks else written)
            words = f"process {rank}: {words}" if self._several else words
            words_of_all.append(words + (f"; stacks:\n{stacks}" if stacks else ""))
        return "\n".join(words_of_all)


def _worst(outcomes: Mapping[int, Outcome]) -> Outcome:
    """The outcome of a cell that each process has judged for itself: the first that does not pass."""
    bad = {rank: outcome for rank, outcome in outcomes.items() if outcome.verdict is not Verdict.PASS}
    if not bad or len(outcomes) == 1:
        return next(iter(outcomes.values()))
    broken = [rank for rank, outcome in bad.items() if outcome.verdict is Verdict.HARNESS_ERROR]
    rank = (broken or [*bad])[0]
    words = "; ".join(f"process {other}: {outcome.reason}" for other, outcome in bad.items())
    return replace(bad[rank], reason=words)


def start_group(
    topology: Topology,
    implementation: str | None,
    log: Path,
    extra_xla_flags: Sequence[str] = (),
    quick: Sequence[str] = QUICK_COMPILATION,
    python: OtherPython | None = None,
    cluster: Cluster | None = None,
) -> ProcessGroup:
    """The processes of one topology, for one implementation, or for none to ask only what devices there are.

    They have this process's own interpreter, and are on this machine, unless others are named.
    """
    inherited = python.environment(os.environ) if python else os.environ
    own = worker_environment(topology, extra_xla_flags, inherited, quick, python.jaxlib if python else None)
    changed = {name: value for name, value in own.items() if os.environ.get(name) != value}
    absent = tuple(os.environ.keys() - own.keys())
    arguments = [topology.name, *([implementation] if implementation else [])]
    if not topology.in_several_processes:
        start = Start(arguments, changed, absent)
        return ProcessGroup(topology.name, [LocalTransport.of(start, log, python.executable if python else None)])
    port, address = (None, cluster.coordinator_address) if cluster else _held_port()
    starts = [
        Start([*arguments, "--process", str(rank), "--coordinator", address], changed, absent)
        for rank in range(topology.processes)
    ]
    if cluster:
        return ProcessGroup(topology.name, cluster.start(starts))
    logs = (log.with_name(f"{log.stem}.process-{rank}{log.suffix}") for rank in range(topology.processes))
    return ProcessGroup(topology.name, [*map(LocalTransport.of, starts, logs)], port)


def _held_port() -> tuple[socket.socket, str]:
    """A free port, held so that no other program gets it; the runtime may bind it as well."""
    held = socket.socket()
    with contextlib.suppress(AttributeError):
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held, f"127.0.0.1:{held.getsockname()[1]}"
