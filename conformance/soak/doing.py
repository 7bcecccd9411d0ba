"""One thread of a soak: what it does, drawn from its seed, and what it records of it.

Nothing that is drawn depends on time, so a seed repeats what each thread does; how far it comes in it does.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import jax
import numpy as np

from ..spec.jax_versions import JaxRuntimeError
from .programs import Program
from .record import Record, Run
from .specs import Form, Layout, ProgramSpec, Shape, drawn, drawn_eager, drawn_nested, drawn_program

MOST_UNFETCHED = 6
LONGEST_MOMENT = 0.05
"""Seconds for which a slow callback waits."""
EAGER_PART = 0.1
"""The part of the runs that are outside of jit."""
NOTHING, TAP_RAISES, CALL_RAISES = "nothing", "a tap raises", "a call raises"
SLOW, NESTED = "a callback waits a moment", "a callback runs a program"
SPECIALS = {NOTHING: 82.0, TAP_RAISES: 5.0, CALL_RAISES: 4.0, SLOW: 3.0, NESTED: 6.0}
"""What a run has beside callbacks that return."""
FILLINGS = (("id_tap", 300, 16_000), ("id_tap", 6, 1 << 20), ("call", 2, 1 << 20))
"""Callbacks, how many on each device, and the elements of each. hostcb has 16 MiB for a queue, 64 MiB for the blocks of
large taps, and 64 MiB for those of other large operands."""
DISPATCHING = threading.Lock()
"""Held while a program on several devices is dispatched: threads that do so at once can hang XLA:CPU, with or without
callbacks."""


class Doer:
    """What a thread has: programs, and results that it has not fetched."""

    def __init__(
        self, name: str, seed: int, record: Record, implementation: Any, devices: Sequence[jax.Device]
    ) -> None:
        self._name, self._random = name, Random(f"{seed}-{name}")
        self._record, self._implementation, self._devices = record, implementation, devices
        self._programs: list[Program] = []
        self._program = functools.partial(Program, record=record, implementation=implementation, devices=devices)
        self._nested = self._program(drawn_nested(self._random, len(devices)))
        self._nested.compile_ahead()
        self._unfetched: list[tuple[Run, Program, Any]] = []
        self._never = threading.Event()

    @property
    def held_functions(self) -> int:
        return sum(len(program.functions) for program in (self._nested, *self._programs))

    def acts(self, programs: int, acts: int) -> Iterator[Callable[[], Any]]:
        """A round: new programs, and what the thread does with them."""
        how_often: dict[Callable[[], Any], float] = {
            self._run: 80.0,
            self._replace_program: 1.0,
            self.barrier: 8.0,
            self._effects_barrier: 3.0,
            gc.collect: 2.0,
            jax.clear_caches: 0.3,
        }
        for _ in range(programs):
            yield lambda: self._programs.append(self._new_program())
        for _ in range(acts):
            yield drawn(self._random, how_often)

    def end_round(self) -> None:
        """Fetch the results that are left, and drop the programs."""
        self._fetch_all_but(0)
        self._programs.clear()

    def barrier(self) -> None:
        """Wait for everything that was started before, from any thread."""
        began = time.monotonic_ns()
        try:
            self._implementation.barrier()
        except self._implementation.callback_exception as error:
            self._record.reported(failure.exception for failure in error.failures)
        self._record.barrier(began)

    def fill_queues(self) -> None:
        """Let a lot be held on each device: memory of queues and pools that is used for the first time is no leak."""
        layout = Layout.PMAP if len(self._devices) > 1 else Layout.ONE_DEVICE
        wait = functools.partial(self._never.wait, 0.5)
        for kind, times, size in FILLINGS:
            program = self._program(ProgramSpec(layout, Form.SCAN, (kind,), times, size))
            effects = {(slot, 0): wait for slot in range(len(program.devices))}
            self._dispatch(program, self._begin(program, program.shape(0), effects=effects))
            self.end_round()
            self.barrier()

    def _new_program(self) -> Program:
        return self._program(drawn_program(self._random, len(self._devices)))

    def _replace_program(self) -> None:
        self._programs[self._random.randrange(len(self._programs))] = self._new_program()

    def _effects_barrier(self) -> None:
        began = time.monotonic_ns()
        jax.effects_barrier()
        self._record.barrier(began, self._name)

    def _run(self) -> None:
        random = self._random
        if random.random() < EAGER_PART:
            program = self._program(drawn_eager(random, len(self._devices)))
        else:
            program = random.choice(self._programs)
        shape = program.shape(random.randrange(0, 8) if random.random() < 0.3 else random.randrange(8, 300))
        special, chance = drawn(random, SPECIALS), random.random()
        most = random.choice((0, 0, MOST_UNFETCHED))
        for _ in range(random.choice((0, 0, 0, 1, 4))):
            self._dispatch(program, self._begin(program, shape))
        run = self._begin(program, shape)
        self._make_special(run, program, special, chance)
        self._dispatch(program, run)
        self._fetch_all_but(most)

    def _begin(self, program: Program, shape: Shape, **more: Any) -> Run:
        return self._record.begin(self._name, shape, program.devices, **more)

    def _make_special(self, run: Run, program: Program, special: str, chance: float) -> None:
        """Let something special happen at one of the run's steps, if it has a place for it."""
        places = [*range(len(run.shape.steps))]
        if special in (TAP_RAISES, CALL_RAISES):
            places = run.shape.failing_steps(taps=special == TAP_RAISES)
        if special == CALL_RAISES and program.spec.layout == Layout.MESH:
            # The devices refuse together, a moment later than the callback failed.
            places = [place for place in places if place == len(run.shape.steps) - 1]
        if special == NOTHING or not places:
            return
        where = int(chance * len(program.devices)), places[int(chance * len(places))]
        run.fails_at = where if special == CALL_RAISES else None
        effect: Callable[[], Any] = self._run_nested
        if special == SLOW:
            effect = functools.partial(self._never.wait, chance * LONGEST_MOMENT)
        elif special != NESTED:
            what = f"the failure of {special} in {program.spec}"
            effect = self._record.plan_failure((run.number, *where), what)
        run.effects = {where: effect}

    def _run_nested(self) -> None:
        """Run a program in a callback: what it taps is not queued."""
        run = self._begin(self._nested, self._nested.shape(0), inside=True)
        values = np.asarray(self._nested(run)).reshape(-1)
        run.returned = run.complete = time.monotonic_ns()
        self._record.fetched(run, values.tolist())

    def _dispatch(self, program: Program, run: Run) -> None:
        with self._planned_failure(program, run):
            try:
                with contextlib.nullcontext() if program.on_one_device else DISPATCHING:
                    result = program(run)
            finally:
                run.returned = time.monotonic_ns()
            if result is not None:
                self._unfetched.append((run, program, result))

    def _fetch_all_but(self, most: int) -> None:
        while len(self._unfetched) > most:
            run, program, result = self._unfetched.pop(0)
            with self._planned_failure(program, run):
                self._record.fetched(run, np.asarray(jax.block_until_ready(result)).reshape(-1).tolist())

    @contextlib.contextmanager
    def _planned_failure(self, program: Program, run: Run) -> Iterator[None]:
        try:
            yield
        except JaxRuntimeError as error:
            self._record.raised(run, error, in_thread=program.on_one_device)
