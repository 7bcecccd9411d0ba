"""A case while it runs: the callback under test, what its host functions saw, and what is wrong.

    @case("jit pmap", "id_tap call io_callback_ordered", "H18")
    def one_function_several_shapes(case: Case) -> None:
        host = case.host()
        for results in case.runs(lambda xs: [case.apply(host, x) for x in xs], OPERANDS):
            case.gave(results, OPERANDS)
            case.saw(host, OPERANDS)

A case returns nothing. Its checks are soft: each notes an anomaly and goes on. `Case.saw` is the oracle's judgement of
a history, so a callback that overlaps another one, that a barrier missed, or whose operand changed later is noticed
without a line in the case. After its last line the barrier must be quiet.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...model.worlds import ExpectedEvent, Need
from ...oracle.checkers import Anomaly, content, judge
from ...oracle.history import History, Recorder
from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Callback, Runs
from .bench import Bench, Function
from .checks import PLANTED, check_value, error_of, in_turn, is_of_the_program
from .child_processes import Ended, run_child
from .registry import bench_case

BEGINS_WITHIN = 30.0
"""Seconds until a callback must have begun: long enough for a busy machine."""

RELEASED_AFTER = 60.0
"""A held callback goes on after so many seconds even if its case never releases it."""

WHILE = 0.2
"""Seconds in which something must not happen. It is one-sided: a slow machine hides a failure, and makes none."""


class Host:
    """A host function that records its runs. It returns its operand, `returns` in turn, or what `answer` makes."""

    def __init__(self, site: str, recorder: Recorder, answer: Callable[[Any], Any] | None, returns: Sequence[Any]):
        self.site, self.recorder, self.answer, self.returns = site, recorder, answer, returns
        self.transforms: list[Any] = []
        self.devices: list[Any] = []
        self.count = 0

    def __call__(self, operand: Any, transforms: Any = (), device: Any = None) -> Any:
        self.count += 1
        self.transforms.append(transforms)
        self.devices.append(device)
        with self.recorder.callback(self.site, operand, (), device):
            if self.returns:
                return self.returns[(self.count - 1) % len(self.returns)]
            return jax.tree.map(np.array, operand) if self.answer is None else self.answer(operand)


class Held:
    """A host function that waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        self.entered.set()
        self.release.wait(RELEASED_AFTER)
        return np.asarray(operand)


def fail(*_: Any) -> Any:
    """A host function that raises."""
    raise ValueError(PLANTED)


def add_one(operand: Any) -> Any:
    """An `answer` of which `Case.expected` is the result."""
    return np.asarray(operand) + np.float32(1)


class Case:
    """One case with one layout and one callback; `apply` and `compile` are those of the layout."""

    def __init__(self, bench: Bench, callback: Callback) -> None:
        self.callback, self.implementation, self.layout = callback, bench.implementation, bench.layout
        self.anomalies: list[Anomaly] = []
        self.recorder = Recorder({device.id: index for index, device in enumerate(bench.devices)})
        self._hosts: list[Host] = []
        self._lay_out(bench)
        self.ends_quietly = True
        """Whether the barrier must have nothing to report after the last line of the case."""

    def _lay_out(self, bench: Bench) -> None:
        self.bench, self.devices, self.operand, self.compile = bench, bench.devices, bench.operand, bench.compile
        self.copies = bench.callbacks_per_run
        """How many devices run the callback of one program."""

    def use(self, devices: Sequence[jax.Device]) -> None:
        """From now on, programs are laid out over these devices."""
        self._lay_out(Bench(self.implementation, self.layout, devices))

    @property
    def library(self) -> Any:
        """The module whose callbacks these are, for functions that only some implementations have."""
        implementation: Any = self.implementation
        return implementation.namespace

    # Programs.

    def host(self, answer: Callable[[Any], Any] | None = None, returns: Sequence[Any] = (), name: str = "") -> Host:
        self._hosts.append(Host(name or f"host {len(self._hosts)}", self.recorder, answer, returns))
        return self._hosts[-1]

    def program(self, host: Any, like: Any = None) -> Function:
        """A compiled program of the callback alone."""
        return self.compile(lambda x: self.apply(host, x, like))

    def apply(self, host: Any, x: Any, like: Any = None) -> Any:
        """The callback under test, on `host` itself, so that two calls with one host are of one function."""
        like = x if like is None else like
        if self.callback.function == "id_tap":
            return self.implementation.tap(host, x)
        shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), like)
        return self.bench.apply(self.callback, host, x, shape)

    def call_back(self, host: Function, x: Any, wanted: Any = None) -> Any:
        """The callback under test on `host`, a function of one operand: like `wanted`, or of the type of `x`."""
        return self.bench.apply(self.callback, host, x, wanted)

    def invoke(self, host: Function, x: Any, wanted: Any = None) -> Any:
        """As `call_back`, of an external callback."""
        return self.bench.invoke(self.callback, host, x, wanted)

    def applying(self, host: Function) -> Function:
        """A compiled program that calls back once."""
        return self.bench.applying(self.callback, host)

    def invoking(self, host: Function) -> Function:
        """As `applying`, of an external callback."""
        return self.bench.invoking(self.callback, host)

    def on_each_device(self, x: Any) -> Any:
        """The operand of a program in which each callback gets `x`."""
        if self.layout in ("jit", "pjit"):
            return x
        return jax.tree.map(lambda leaf: np.stack([leaf] * self.copies), x)

    def runs(self, program: Function, x: Any, times: int = 2) -> Iterator[Any]:
        """Compile, and run so often: from the second run on JAX may dispatch another way. Each run is a new history."""
        compiled = self.compile(program)
        for _ in range(times):
            self.forget()
            yield jax.block_until_ready(compiled(self.on_each_device(x)))

    def forget(self) -> None:
        """Begin a new history."""
        self.recorder.start()
        for host in self._hosts:
            host.count = 0
            host.transforms.clear()
            host.devices.clear()

    def child(self, program: str, *arguments: str, **options: Any) -> Ended:
        """Run a program of `child_programs` in a process of its own; the case fails if that crashes or hangs."""
        return run_child(self.bench, program, *arguments, **options)

    # Threads.

    @contextlib.contextmanager
    def held(self, program: Callable[[Any, Any], Any], x: Any) -> Iterator[Held]:
        """Run `program(host, x)` in another thread. The block runs while its callback waits, and then both end."""
        host = Held()
        thread = threading.Thread(target=lambda: jax.block_until_ready(program(host, x)), daemon=True)
        thread.start()
        try:
            if not host.entered.wait(BEGINS_WITHIN):
                self.wrong("lost", Stage.CALLBACK, "the callback did not begin")
            yield host
        finally:
            host.release.set()
        thread.join(BEGINS_WITHIN)
        if thread.is_alive():
            self.wrong("stuck", Stage.BARRIER, "the program did not return after its callback")

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
        if thread.is_alive():
            self.wrong("stuck", Stage.RESULT, "the program of another thread did not end")
        for error in errors:
            self.wrong("error", stage_of(error), f"the program of another thread failed: {summary(error)}")

    # Checks.

    @contextlib.contextmanager
    def part(self, label: Any) -> Iterator[None]:
        """A part of the case: what the program raises in it is an anomaly that names the part, and the case goes on."""
        found = len(self.anomalies)
        try:
            yield
        except Exception as error:
            if not is_of_the_program(error, self.implementation):
                raise
            self.wrong("error", stage_of(error), summary(error))
        self.anomalies[found:] = [replace(each, witness=f"{label}: {each.witness}") for each in self.anomalies[found:]]

    def ran_in_turn(self, *names: str) -> None:
        """After a barrier the named hosts have run so often, in this order, one at a time, since `forget`."""
        self.barrier()
        self.found(in_turn(self.recorder.history().events, names))

    def saw_parts(self, host: Host, *operands: Any) -> None:
        """After a barrier the host has run for each operand: on each device with its part of it."""
        self.barrier()
        self._judge(host, [part for x in operands for part in enumerate(self.parts(x))], self.callback.ordered)

    def parts(self, x: Any) -> list[Any]:
        """The operand of the callback on each device that runs it, in a program on `x`."""
        if self.layout in ("jit", "pjit"):
            return [x]
        return [row if self.layout == "pmap" else row[None] for row in x]

    def saw(self, host: Host, expected: Sequence[Any]) -> None:
        """After a barrier the host has run on each device with these operands: in order if the callback has one."""
        self.barrier()
        on_each = [(device, operand) for operand in expected for device in range(self.copies)]
        self._judge(host, on_each, self.callback.ordered and self.copies == 1)

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

    def gave(self, results: Any, expected: Any) -> None:
        """The results, bit by bit; of a program on several devices each device gives the expected ones."""
        actual, wanted = jax.tree.leaves(results), jax.tree.leaves(self.on_each_device(expected))
        self.same("result", Stage.RESULT, [*map(_Shown, actual)], [*map(_Shown, wanted)])

    def gives(self, expected: Any, run: Callable[..., Any], *operands: Any) -> None:
        """`run(*operands)` gives these results, bit by bit, and raises no failure, not even of an earlier program."""
        try:
            actual = jax.block_until_ready(run(*operands))
        except Exception as error:
            self.wrong("stale error", Stage.DISPATCH, f"the program failed: {summary(error)}")
        else:
            shown = [[*map(_Shown, jax.tree.leaves(each))] for each in (actual, expected)]
            self.same("result", Stage.RESULT, shown[0], shown[1])

    def value(self, label: str, run: Callable[[], Any], expected: Any) -> None:
        """`run()` gives this array, and raises no failure, not even of an earlier program; `label` names it."""
        self.found(check_value(label, run, expected))

    def found(self, anomalies: Sequence[Anomaly]) -> None:
        self.anomalies += anomalies

    def drain(self) -> Exception | None:
        """Let the barrier report what it has; return the error that it raised."""
        return error_of(self.implementation.barrier)

    @property
    def expected(self) -> Any:
        """What a program gives on `operand` if its host function adds one."""
        return self.bench.expected(self.callback, self.operand)

    def barrier(self) -> None:
        """The barrier has nothing to report."""
        try:
            self.implementation.barrier()
        except Exception as error:
            self.wrong("stale error", Stage.BARRIER, f"the barrier raised {summary(error)}")
        self.recorder.mark_barrier()

    def barrier_reports(self, text: str = PLANTED) -> None:
        """The next barrier raises the failure of a callback with this text, and the one after it does not."""
        expected = self.implementation.callback_exception
        try:
            self.implementation.barrier()
        except expected as error:
            if text not in str(error):
                self.wrong("poor error", Stage.BARRIER, f"the error lacks {text!r}: {summary(error)}")
            self.barrier()
        except Exception as error:
            self.wrong("wrong error", Stage.BARRIER, f"expected {expected.__name__}, actual {summary(error)}")
        else:
            self.wrong("swallowed error", Stage.BARRIER, f"the barrier did not raise {expected.__name__}")

    def raises(
        self, run: Callable[[], Any], *texts: str, of: type[Exception] = Exception, kind: str = "swallowed error"
    ) -> Exception | None:
        """`run`, with its results, raises an exception of this class that has these texts; return it.

        `kind` is the anomaly if it raises nothing.
        """
        try:
            jax.block_until_ready(run())
        except of as error:
            for text in texts:
                if text not in str(error):
                    self.wrong("poor error", stage_of(error), f"the error lacks {text!r}: {summary(error)}")
            return error
        except Exception as error:
            self.wrong("wrong error", stage_of(error), f"expected {of.__name__}, actual {summary(error)}")
            return error
        self.wrong(kind, Stage.RESULT, f"expected {of.__name__}, and nothing was raised")
        return None

    def same(self, kind: str, stage: Stage, actual: Any, expected: Any, what: str = "") -> None:
        if actual != expected:
            self.wrong(kind, stage, f"{what}{': ' if what else ''}{actual}, expected {expected}")

    def check(self, holds: bool, kind: str, stage: Stage, witness: str) -> None:
        if not holds:
            self.wrong(kind, stage, witness)

    def wrong(self, kind: str, stage: Stage, witness: str) -> None:
        self.anomalies.append(Anomaly(kind, stage, witness))


class _Shown:
    """An array that is equal to another one if type, shape and bytes are, and is shown by its values."""

    def __init__(self, array: Any) -> None:
        array = np.asarray(array)
        self.key = content(array)
        self.text = f"{array.dtype.name}{list(array.shape)} {array.tolist()}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self.text


def case(layouts: str, callbacks: str, promises: str = "", **options: Any) -> Callable[[Any], Any]:
    """Register a case for each of these layouts and callbacks, as `registry.bench_case` says."""

    def enter(function: Callable[[Case], None]) -> Callable[[Case], None]:
        @bench_case(layouts, callbacks, promises, **options)
        @functools.wraps(function)
        def run(bench: Bench, callback: Callback) -> list[Anomaly]:
            one = Case(bench, callback)
            function(one)
            if one.ends_quietly:
                one.barrier()
            return one.anomalies

        return function

    return enter
