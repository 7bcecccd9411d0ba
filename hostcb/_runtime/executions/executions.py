"""The executions that hold host callbacks and have not ended, and the order between them (H5, H13).

JAX keeps the tokens of ordered effects per thread, so two threads are not ordered. It also passes the token of one
execution to the next, so one failed execution makes every later one fail. hostcb starts each execution with a ready
token, and orders executions by waiting for the earlier ones.

A signal handler or a finalizer may start a program or wait at a barrier in the middle of any function of this module. A
lock here could deadlock with the same thread. So every change is one operation on a dictionary, which no other thread
and no signal handler can see half done.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import jax

from ... import _compat
from ..._compat import waiting
from ..._errors.failures import failure_log
from ..._threads import pool
from ..._threads.deadlines import LOOK_AT_EXIT, Deadline
from ..._threads.running import blocked_programs, inside_callback, inside_handler, running, threads_in_functions
from ..._threads.thread_states import is_hostcbs, is_pythons, stay
from ..dispatch.cpp_dispatch import calls_nothing_else, is_simple
from ..dispatch.postponed import raise_at_the_end, raise_what_is_left
from ..dispatch.programs import Execution, Program
from ..queue.queues import queues
from .failed_calls import failed_calls

T = TypeVar("T")

# With more live executions than this, the tracker removes those that have ended.
MANY = 64

# The CPU runtime lets 32 programs wait on a device, and the thread that starts one more waits. If that thread is a
# callback's, and the programs wait for the callback, all wait for ever. So half of the places stay free for callbacks.
MOST_WAITING = 16

MAIN = threading.main_thread().ident


class ExecutionTracker:
    """All executions that have been started and have not ended."""

    def __init__(self) -> None:
        # Whether JAX's dispatch calls this tracker; see `_compat.dispatch.install_dispatch_hooks`.
        self.informed = False
        # Whether any callback was ever started.
        self.used = False
        self.forget()

    def reset_after_fork(self) -> None:
        """In a forked child, which runs none of its parent's executions: forget them all."""
        for execution in [*self._live, *self._without_order]:
            if not execution.dispatched_here():
                # For a barrier that a signal handler has interrupted to fork: it goes on in the child.
                execution.abandon()
        self.forget()

    def forget(self) -> None:
        """Forget all executions, and an exit that has begun."""
        # The thread in which the process exits, from the begin of the exit on.
        self.exits_in: int | None = None
        # Whether the exit has waited, and no function may begin any more.
        self.closed = False
        # Whether a timeout or an interrupt has ended the last barrier.
        self.waited_in_vain = False
        # What the exit has given up before the functions of `atexit` ran, see `exiting.GivenUp`.
        self.given_up_at_exit: Any = None
        self._live: dict[Execution, None] = {}
        self._fresh: dict[tuple[Any, ...], Any] = {}
        failed_calls.forget()
        # Callbacks outside jit that keep no order and run now, each in the thread that called.
        self._without_order: dict[Execution, None] = {}
        # The devices of programs that JAX dispatched in C++, without calling the tracker.
        self._unseen: dict[tuple[Any, ...], None] = {}

    def forget_devices(self) -> None:
        """Forget the state of the devices that are gone, but not the executions that still run on them."""
        self._fresh = {}
        self._unseen = {}

    # The methods that JAX's dispatch calls; see `_compat.dispatch.DispatchHooks`.

    def execution(self, program: Program, devices: Sequence[Any], mesh: Sequence[Any]) -> Execution:
        return Execution(program, tuple(devices), tuple(mesh))

    def begin(self, execution: Execution) -> None:
        frame = running.frame
        if frame.pending is not None:
            raise_what_is_left()
        if failure_log.due and not execution.nested:
            failure_log.raise_due()
        self.add(execution)
        if not execution.nested:
            # An interrupt may have left the depth too high.
            frame.depth = 0
        execution.depth = frame.depth
        execution.outer = self.current()
        frame.execution = execution
        devices = execution.devices
        if len(devices) > 1 and devices[0].platform == "cpu":
            if execution.nested and any(program.spans_devices for program in blocked_programs()):
                raise RuntimeError(
                    f"{execution.program}, started from inside a call of a program that runs on several devices "
                    "itself: the CPU runtime runs one such program at a time, so both would wait for ever. Use a "
                    "single device in the callback, or an id_tap that no call of the same program follows."
                )
            pool.warn_if_small(len(devices))
            if not execution.nested:
                self._leave_room(devices)

    def _leave_room(self, devices: Sequence[Any]) -> None:
        """Wait until fewer than `MOST_WAITING` programs wait on the devices."""
        if len(self._live) > MOST_WAITING:
            waiting_there = [
                each
                for each in self.live()
                if each.dispatch.has_ended() and not each.nested and not set(devices).isdisjoint(each.devices)
            ]
            for each in waiting_there[:-MOST_WAITING]:
                each.wait()

    def add(self, execution: Execution) -> None:
        """Track `execution`, which starts now, until its `end`."""
        self.admit_program(execution.program, execution.nested)
        program = execution.program
        if len(self._live) > MANY and not execution.nested:
            self._forget_ended()
            unknown = next(
                (each for each in list(self._live) if not each.has_arrays and each.dispatch.has_ended()), None
            )
            if unknown is not None and len(self._live) > MANY:
                # A token of the runtime cannot be queried, only waited for. This old one has long ended.
                unknown.wait()
        self._live[execution] = None
        program.add(execution)

    def admit_program(self, program: Program, nested: bool) -> None:
        """As `admit`, and note who starts the program, for the exit."""
        self.admit(program)
        if program.awaited:
            return
        # Only ever set: another thread may start the program at the same time.
        if nested or threading.get_ident() == MAIN or not threading.current_thread().daemon:
            program.awaited = True

    def admit(self, subject: Any) -> None:
        """Refuse `subject`, a program or a callback, if another thread than that which ends the process starts it now.

        Raises:
            RuntimeError: no thread could run its callbacks any more: the process would abort, or lose values.
        """
        self.used = True
        if sys.is_finalizing():
            raise RuntimeError(
                f"{subject} was started while the Python interpreter is finalized, when no other thread can "
                "run callbacks any more. Run it before, for instance in a function that atexit calls."
            )
        if self.exits_in is None or self.exits_in == threading.get_ident():
            return
        if self.closed or not inside_handler():
            if self.closed and is_pythons() and not is_hostcbs():
                # It has been refused before, and tries again and again.
                stay()
            raise RuntimeError(
                f"{subject} was started in another thread while the process exits, which waits only for what was "
                "started before. End that thread, and join it, before the main thread ends."
            )

    def tokens_in(self, execution: Execution) -> Any:
        self._wait_for_earlier(execution)
        return self._fresh_token(execution.devices)

    def _wait_for_earlier(self, execution: Execution) -> None:
        devices = execution.devices
        if not execution.program.keeps_order:
            return
        # A nested execution must not wait for the execution that waits for its callback. And only the CPU runtime
        # starts a computation before the previous one on the same device has ended.
        if len(self._live) > 1 and not execution.nested and devices[0].platform == "cpu":
            for other in self._started_on(execution):
                # The CPU runtime itself runs executions on several devices one at a time.
                if len(devices) == 1 or len(other.devices) == 1:
                    other.wait_on(devices)

    def started(self, execution: Execution, tokens: Sequence[Any], are_arrays: bool) -> None:
        execution.has_arrays = are_arrays
        execution.tokens = tuple(tokens)

    def drain(self, device: Any) -> None:
        """Wait for the executions that this thread started on a device, and for the device's queue."""
        if inside_callback():
            return
        me = threading.get_ident()
        for execution in self.live():
            if execution.thread == me and device in execution.devices and execution.dispatch.has_ended():
                execution.wait_on((device,))
        queues[device].join()

    def may_dispatch_in_cpp(
        self, program: Program, devices: Sequence[Any], modules: Callable[[], Sequence[Any]]
    ) -> bool:
        if len(devices) > 1 or devices[0].platform != "cpu":
            # The dispatch returns before the callback runs, and an error is raised with the results, as it should be.
            self._unseen[tuple(devices)] = None
            return True
        return self._takes_cpp_dispatch(program, modules)

    def _takes_cpp_dispatch(self, program: Program, modules: Callable[[], Sequence[Any]]) -> bool:
        if program.takes_cpp_dispatch is None:
            knows_end = _compat.place_of_hook is not None and not program.wrapped
            program.takes_cpp_dispatch = knows_end and is_simple(modules(), len(program.callbacks))
        return program.takes_cpp_dispatch

    # The methods that JAX's fast dispatch calls; see `_compat.fast_dispatch.FastDispatches`.

    def takes_fast(self, program: Program, devices: Sequence[Any], modules: Callable[[], Sequence[Any]]) -> bool:
        if devices[0].platform != "cpu" or jax.process_count() > 1 or not program.has_only_own_callbacks:
            return False
        if len(devices) > 1:
            # The dispatch returns before the callbacks run, and an error is raised with the results.
            return True
        if program.takes_cpp_dispatch is None and program.only_taps and not program.wrapped:
            # No operand or result depends on a failure.
            program.takes_cpp_dispatch = _compat.place_of_hook is not None and calls_nothing_else(modules())
        return self._takes_cpp_dispatch(program, modules)

    def fast_token(self, devices: Sequence[Any]) -> Any:
        return self._fresh_token(tuple(devices))

    def begin_fast(self, program: Program, devices: tuple[Any, ...], token: Any) -> list[Any]:
        execution = Execution(program, devices, devices, fast=True)
        # The copy is on this function's value stack, and then JAX's: no frame of a traceback keeps it.
        return [execution.dispatch.held_by(token.clone()), self._launch_fast(execution)][:1]  # type: ignore[func-returns-value]

    def _launch_fast(self, execution: Execution) -> None:
        try:
            self.begin(execution)
            self._wait_for_earlier(execution)
        except BaseException as error:
            self.end(execution, error)
            raise
        execution.launched = True

    def end_fast(self, program: Program, token: Any, caller: FrameType | None) -> None:
        execution = self.current()
        while execution is not None and not (execution.program is program and execution.fast):
            execution = execution.outer
        if execution is None:
            raise RuntimeError(
                f"{program}: JAX reported the end of a dispatch, but not its begin, so the order of its callbacks is "
                "not known, and its results are not returned."
            )
        devices = execution.devices
        self.started(execution, (token,) if len(devices) == 1 else waiting.on_each(token), True)
        for device in devices:
            waiting.cover_by_effects_barrier(device, self.drain)
        execution.dispatch.end()
        self.end(execution, None)
        if running.frame.pending is not None:
            # Before JAX shows the zeros of a failed callback to a function of the user that builds the results.
            raise_at_the_end(caller)

    def end(self, execution: Execution, error: BaseException | None) -> None:
        """Called when the dispatch ends. After an interrupt here the execution stays live until the next look at it."""
        frame = running.frame
        innermost = frame.execution
        while innermost is not None and innermost is not execution:
            # A dispatch inside this one that has raised.
            innermost = innermost.outer
        if innermost is not None:
            frame.execution = execution.outer
        on_one_cpu = len(execution.devices) == 1 and execution.devices[0].platform == "cpu"
        if not execution.has_arrays and execution.program.effectful and on_one_cpu:
            # It has run in this thread, but its token becomes ready only when it is waited for.
            for token in execution.tokens or ():
                waiting.settle(token)
        if isinstance(error, jax.errors.JaxRuntimeError):
            failed_calls.explain(error, execution)
        # The program keeps its executions alive, and the failure's traceback would keep frames and arrays alive.
        execution.failure = None
        if execution.has_no_tokens():
            return
        if on_one_cpu and not execution.program.effectful:
            # As for those that JAX dispatches in C++: only the exit waits for it, and it keeps no function alive.
            self._unseen[execution.devices] = None
        elif not all(map(waiting.is_ready, execution.tokens or ())):
            return
        self._live.pop(execution, None)
        # The next execution need not ask again whether this one has ended.
        execution.program.drop(execution)

    def current(self) -> Execution | None:
        frame = running.frame
        innermost: Execution | None = frame.execution
        while innermost is not None and innermost.dispatch.has_ended():
            # Its dispatch has raised, and reported no end.
            innermost = frame.execution = innermost.outer
        return innermost

    # For barriers and eager callbacks.

    def live(self) -> list[Execution]:
        """Return the executions that have not ended, oldest first, without those that this thread is dispatching."""
        self._forget_ended()
        return [execution for execution in list(self._live) if not execution.dispatched_here()]

    def is_quiet(self) -> bool:
        """Return whether no program is known to run, and this thread is in no callback: a tap need not wait."""
        return not self._live and not inside_handler()

    def run_without_order(self, program: Program, device: Any, run: Callable[[], T]) -> T:
        """Call `run`, and let a barrier of another thread wait for it, and nothing else."""
        execution = Execution(program, (device,), (device,))
        self.admit(program)
        return execution.dispatch.around(lambda: self._run_without_order(execution, run))

    def _run_without_order(self, execution: Execution, run: Callable[[], T]) -> T:
        self._without_order[execution] = None
        try:
            return run()
        finally:
            self._without_order.pop(execution, None)

    def without_order(self) -> list[Execution]:
        """Return the callbacks outside jit that keep no order, and that other threads run at this moment.

        At interpreter exit there are none: a daemon thread may be in one for ever, and JAX does not wait for it.
        """
        if self.exits_in is not None:
            return []
        for each in list(self._without_order):
            if each.dispatch.has_ended():
                # An interrupt came at its end.
                self._without_order.pop(each, None)
        return [each for each in list(self._without_order) if not each.dispatched_here()]

    def settle_unseen(self, deadline: Deadline) -> list[Any]:
        """Wait for the programs that JAX dispatched in C++; return the devices on which they go on at the deadline.

        They have no effects, so only the exit needs this: a callback that runs after it aborts the process.
        """
        if not self._unseen:
            return []
        # One more program waits for a place while a function hangs and the places of its device are taken.
        while threads_in_functions() and not deadline.has_passed():
            time.sleep(LOOK_AT_EXIT)
        if threads_in_functions():
            return list(self._unseen)
        lasts = {devices: waiting.one_more(devices) for devices in list(self._unseen)}
        while not all(last.is_ready() for last in lasts.values()) and not deadline.has_passed():
            time.sleep(LOOK_AT_EXIT)
        return [devices for devices, last in lasts.items() if not last.is_ready()]

    def _forget_ended(self) -> None:
        unseen: dict[Any, Execution] = {}
        for execution in list(self._live):
            if execution.done():
                self._live.pop(execution, None)
            elif execution.may_run_unseen():
                # Runtimes run the programs on the same devices in order, so waiting for the last one is enough.
                earlier = unseen.get((execution.devices, execution.nested))
                if earlier is not None:
                    self._live.pop(earlier, None)
                    earlier.program.drop(earlier)
                unseen[execution.devices, execution.nested] = execution

    def wait_before(self, execution: Execution) -> None:
        """Wait for the executions that must end before an eager callback runs."""
        if not execution.nested:
            for other in self._started_on(execution):
                other.wait_on(execution.devices)

    def _started_on(self, execution: Execution) -> list[Execution]:
        """Return the ordered executions before this one, on its devices, whose dispatch has returned.

        An execution that another thread is dispatching at this moment has no order to this one.
        """
        return [
            other
            for other in self.live()
            if other is not execution
            and other.dispatch.has_ended()
            and other.program.keeps_order
            and not other.nested
            and not set(execution.devices).isdisjoint(other.devices)
        ]

    def _fresh_token(self, devices: tuple[Any, ...]) -> Any:
        token = self._fresh.get(devices)
        if token is None:
            token = self._fresh[devices] = waiting.fresh_token(devices)
        return token


tracker = ExecutionTracker()
_compat.on_backends_cleared(tracker.forget_devices)
