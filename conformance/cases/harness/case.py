"""A case while it runs: the callback under test, what its host functions saw, and what is wrong.

A case returns nothing. Its checks are soft: each notes an anomaly and goes on. docs/extending.md shows one.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ...implementations import Implementation
from ...model.worlds import ExpectedEvent, Need
from ...oracle.checkers import Anomaly, content, judge
from ...oracle.history import Event, History, Recorder
from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Callback, Runs
from ...spec.external_callbacks import callback_named
from .child_processes import Ended, run_child
from .hosts import PLANTED, Host, error_of, is_of_the_program
from .prints import PrintingTo, format_for
from .programs import Function, Programs
from .registry import case as case

Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...]

BEGINS_WITHIN = 30.0
"""Seconds until a callback must have begun: long enough for a busy machine."""

WHILE = 0.2
"""Seconds in which something must not happen. It is one-sided: a slow machine hides a failure, and makes none."""


class NotApplicableError(Exception):
    """Why a case has no meaning on the platform on which it runs."""


class Case(Programs):
    def __init__(
        self, implementation: Implementation, layout: str, devices: Sequence[jax.Device], callback_name: str
    ) -> None:
        super().__init__(layout, devices)
        self.implementation, self.callback_name = implementation, callback_name
        self.anomalies: list[Anomaly] = []
        self.recorder = Recorder({device.id: index for index, device in enumerate(devices)})
        self.ends_quietly = True
        """Whether the barrier must have nothing to report after the last line of the case."""
        self._hosts: list[Host] = []
        self._printed: list[Function] = []
        """The functions that prints call, which nothing else keeps alive."""

    @functools.cached_property
    def callback(self) -> Callback:
        return callback_named(self.callback_name)

    @property
    def library(self) -> Any:
        """The module whose callbacks these are, for functions that only some implementations have."""
        implementation: Any = self.implementation
        return implementation.namespace

    def over(self, devices: Sequence[jax.Device], layout: str = "") -> Case:
        """The same case, with programs over these devices, in this layout if it names one."""
        other = copy.copy(self)
        other.devices, other.layout = devices, layout or self.layout
        return other

    # Programs.

    def host(self, answer: Callable[[Any], Any] | None = None, returns: Sequence[Any] = (), name: str = "") -> Host:
        self._hosts.append(Host(name or f"host {len(self._hosts)}", self.recorder, answer, returns))
        return self._hosts[-1]

    def program(self, host: Function, like: Any = None) -> Any:
        """A compiled program of the callback alone."""
        return self.compile(lambda x: self.apply(host, x, like))

    def apply(self, host: Function, x: Any, like: Any = None, by: Callback | None = None) -> Any:
        """The callback under test, or another one, on `x`: its result is of the types of `like`, or of `x`.

        A `Host` is passed on itself, so that two calls with one are of one function. Others take the operand alone.
        """
        callback, like = by or self.callback, x if like is None else like
        if callback.function == "id_tap":
            tapped = host if isinstance(host, Host) else lambda operand, transforms: host(operand)
            return self.implementation.tap(tapped, x)
        if callback.function == "id_print":
            self.implementation.print_labelled(x, output_stream=PrintingTo(host))
            return x
        if callback.function == "debug.print":
            self._printed.append(host)
            self.implementation.print_as(format_for(host), x=x, ordered=callback.ordered)
            return x
        wanted = jax.tree.map(_type_of, like)
        result = self.implementation.invoke(callback, host, x, wanted, self.devices)
        return result if callback.returns_new_value else x

    def expected_of(self, operand: Any) -> Any:
        """The result of a program on `operand` if its host function adds one."""
        return operand + np.float32(1) if self.callback.returns_new_value else operand

    @property
    def expected(self) -> Any:
        return self.expected_of(self.operand)

    def runs(self, program: Function, x: Any, times: int = 2) -> Iterator[Any]:
        """Compile, and run so often: from the second run on JAX may dispatch another way. Each run is a new history."""
        compiled = self.compile(program)
        for _ in range(times):
            self.forget()
            yield jax.block_until_ready(compiled(self.on_each_device(x)))

    def forget(self) -> None:
        self.recorder.start()
        for host in self._hosts:
            host.forget()

    def child(self, program: str, *arguments: str, **options: Any) -> Ended:
        """Run a program of `child_programs` with this case in a process of its own."""
        started = self.implementation, self.layout, len(self.devices), self.callback_name
        return run_child(program, *started, *arguments, **options)

    # Threads.

    @contextlib.contextmanager
    def in_thread(self, run: Callable[[], Any]) -> Iterator[None]:
        """Another thread gets the results of `run` while the block runs; then it must come to its end."""
        errors: list[Exception] = []

        def target() -> None:
            try:
                jax.block_until_ready(run())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        yield
        thread.join(BEGINS_WITHIN)
        self.check(not thread.is_alive(), "stuck", Stage.RESULT, "the program of another thread did not end")
        for error in errors:
            self.wrong("error", stage_of(error), f"the program of another thread failed: {summary(error)}")

    # Checks of what callbacks saw.

    def saw(self, host: Host, expected: Sequence[Any]) -> None:
        """After a barrier the host has run on each device with these operands: in order if the callback has one."""
        self.barrier()
        on_each = [(device, operand) for operand in expected for device in range(self.copies)]
        self._judge(host, on_each, self.callback.ordered and self.copies == 1)

    def saw_parts(self, host: Host, *operands: Any) -> None:
        """After a barrier the host has run for each operand: on each device with its part of it."""
        self.barrier()
        self._judge(host, [part for x in operands for part in enumerate(self.parts(x))], self.callback.ordered)

    def saw_each(self, host: Host, expected: Sequence[Any]) -> None:
        """After a barrier the host has run once with each of these operands, on any device and in any order."""
        self.barrier()
        self._judge(host, [(0, operand) for operand in expected], ordered=False)

    def _judge(self, host: Host, expected: Sequence[tuple[int, Any]], ordered: bool) -> None:
        need = Need.AT_LEAST_ONCE if self.callback.runs is Runs.IF_NEEDED else Need.ONCE
        events = [
            ExpectedEvent(host.site, device, tuple(map(np.asarray, jax.tree.leaves(operand))), (), need)
            for device, operand in expected
        ]
        self.anomalies += judge(events, (), self.history(host), (), self.devices[0].platform, ordered)

    def history(self, host: Host) -> History:
        """The runs of this host, and when the last barrier returned."""
        history = self.recorder.history()
        return History(tuple(each for each in history.events if each.site == host.site), history.barrier_returned)

    @property
    def events(self) -> tuple[Event, ...]:
        """The runs of all hosts."""
        return self.recorder.history().events

    def ran_in_turn(self, *names: str, of: Any = None) -> None:
        """After a barrier the named hosts have run in this order, one at a time; `of` one operand alone."""
        self.barrier()
        events = [each for each in self.events if of is None or np.array_equal(each.leaves[0].ravel(), np.ravel(of))]
        self.same("order", Stage.CALLBACK, [event.site for event in events], [*names], "callbacks")
        for earlier, later in itertools.pairwise(events):
            witness = f"{later.site} began while {earlier.site} was running"
            self.check(later.begin >= earlier.end, "order", Stage.CALLBACK, witness)

    # Checks of results.

    def gave(self, results: Any, expected: Any) -> None:
        """The results, bit by bit; of a program on several devices each device gives the expected ones."""
        self._same_arrays(results, self.on_each_device(expected), "")

    def gives(self, expected: Any, run: Function, *operands: Any, what: str = "") -> None:
        """`run(*operands)` gives these results, bit by bit, and raises no failure, not even of an earlier program."""
        try:
            actual = jax.block_until_ready(run(*operands))
        except Exception as error:
            # The failure of an earlier program comes when this one is dispatched, and not before.
            early = (stage := stage_of(error)) in (Stage.LOWER, Stage.COMPILE)
            kind, stage = ("error", stage) if early else ("stale error", Stage.DISPATCH)
            self.wrong(kind, stage, f"{what or 'the program'} failed: {summary(error)}")
        else:
            self._same_arrays(actual, expected, what)

    def _same_arrays(self, actual: Any, expected: Any, what: str) -> None:
        shown, wanted = ([*map(_Shown, jax.tree.leaves(each))] for each in (actual, expected))
        self.same("result", Stage.RESULT, shown, wanted, what)

    @contextlib.contextmanager
    def prints(self, *lines: str, what: str = "") -> Iterator[None]:
        """The block, with a barrier after it, prints these lines, in any order."""
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            yield
            self.barrier()
        self.same("value", Stage.CALLBACK, sorted(written.getvalue().splitlines()), sorted(lines), what)

    # Checks of failures.

    @contextlib.contextmanager
    def part(self, label: Any) -> Iterator[None]:
        """A part of the case: what the program raises in it is an anomaly that names the part, and the case goes on."""
        found = len(self.anomalies)
        try:
            yield
        except Exception as error:
            if not is_of_the_program(error, self.implementation):
                raise
            self.drain()
            self.wrong("error", stage_of(error), summary(error))
        self.anomalies[found:] = [replace(each, witness=f"{label}: {each.witness}") for each in self.anomalies[found:]]

    def together(self, parts: Mapping[str, Any], run: Callable[[Mapping[str, Any]], None]) -> None:
        """`run` compiles these parts as one program; if anything is wrong, each by itself, to name the part."""
        found = len(self.anomalies)
        with self.part(", ".join(parts)):
            run(parts)
        if len(self.anomalies) > found and len(parts) > 1:
            of_all = self.anomalies[found:]
            del self.anomalies[found:]
            for label, each in parts.items():
                with self.part(label):
                    run({label: each})
            if len(self.anomalies) == found:
                self.anomalies += of_all

    def drain(self) -> Exception | None:
        """Let the barrier report what it has; return the error that it raised."""
        return error_of(self.implementation.barrier)

    def barrier(self) -> None:
        """The barrier has nothing to report."""
        if error := self.drain():
            self.wrong("stale error", Stage.BARRIER, f"the barrier raised {summary(error)}")
        self.recorder.mark_barrier()

    def barrier_reports(self, text: str = PLANTED) -> None:
        """The next barrier raises the failure of a callback with this text, and the one after it does not."""
        self.raises(self.implementation.barrier, text, of=self.implementation.callback_exception, stage=Stage.BARRIER)
        self.barrier()

    def raises(
        self,
        run: Function,
        *texts: str,
        of: Errors = Exception,
        kind: str = "swallowed error",
        stage: Stage = Stage.RESULT,
    ) -> Exception | None:
        """`run`, with its results, raises an exception of this class that has these texts; return it.

        `kind` and `stage` are those of the anomaly if it raises nothing.
        """
        try:
            jax.block_until_ready(run())
        except Exception as error:
            # No frame of JAX shows that an error is a barrier's.
            where = Stage.BARRIER if stage is Stage.BARRIER else stage_of(error)
            if not isinstance(error, of):
                self.wrong("wrong error", where, f"expected {_named(of)}, actual {summary(error)}")
                return None
            for text in texts:
                self.check(text in str(error), "poor error", where, f"the error lacks {text!r}: {summary(error)}")
            return error
        self.wrong(kind, stage, f"expected {_named(of)}, and nothing was raised")
        return None

    def or_refused(self, run: Function, errors: Errors = (), words: Sequence[str] = ()) -> Any:
        """The result of `run`; None if one of these errors refuses the program, which must say one of these words."""
        try:
            result = jax.block_until_ready(run())
            self.implementation.barrier()
        except errors as error:
            self.drain()
            said = any(word in str(error) for word in words)
            self.check(said, "poor error", stage_of(error), f"the refusal gives no reason: {summary(error)}")
            return None
        return result

    # Notes.

    def same(self, kind: str, stage: Stage, actual: Any, expected: Any, what: str = "") -> None:
        if actual != expected:
            self.wrong(kind, stage, f"{what}{': ' if what else ''}{actual}, expected {expected}")

    def check(self, holds: bool, kind: str, stage: Stage, witness: str) -> None:
        if not holds:
            self.wrong(kind, stage, witness)

    def wrong(self, kind: str, stage: Stage, witness: str) -> None:
        self.anomalies.append(Anomaly(kind, stage, witness))


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        # As it is: of 64 bits, too, where JAX is to refuse them.
        return leaf
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _named(errors: Errors) -> str:
    return " or ".join(each.__name__ for each in (errors if isinstance(errors, tuple) else (errors,)))


class _Shown:
    """An array that is equal to another one if type, shape and bytes are, and is shown by its values."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)
        self.key = content(self._array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        # The text of a large array takes half a second, and only a difference is shown.
        return f"{self._array.dtype.name}{list(self._array.shape)} {self._array.tolist()}"
