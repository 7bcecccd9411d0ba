"""One thread of a soak: it does what its plan says, and records what comes."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np

from ..oracle.verdicts import Stage
from ..spec.jax_versions import JaxRuntimeError
from .drawing import Act, Deed, Special, drawn_nested
from .programs import Program
from .record import Record, Run
from .shapes import EAGER, FORI, MESH, ONE_DEVICE, PMAP, ProgramSpec, Shape

MOST_UNFETCHED = 6
LONGEST_MOMENT = 0.05
"""Seconds for which a slow callback waits."""

FILLINGS = (
    ("id_tap", 300, 16_000, "float32"),
    ("id_tap", 3, 1 << 20, "complex64"),
    ("call", 1, 1 << 20, "complex64"),
)
"""Callbacks, how many on each device, and the elements of each. hostcb has 16 MiB for a queue, 64 MiB for the blocks of
large taps, and 64 MiB for those of other large operands."""

FILLING_SECONDS = 0.5
"""How long the first callback waits, on each device."""

DISPATCHING = threading.Lock()
"""Held while a program on several devices is dispatched: threads that do so at once can hang XLA:CPU, with or without
callbacks."""


class Doer:
    """What a thread has: programs, and results that it has not fetched."""

    def __init__(
        self, name: str, seed: int, record: Record, implementation: Any, devices: Sequence[jax.Device]
    ) -> None:
        self.name = name
        self._record = record
        self._implementation = implementation
        self._devices = devices
        self._programs: dict[int, Program] = {}
        self._nested = self._program(drawn_nested(Random(f"{seed}-{name}-nested"), len(devices)))
        self._unfetched: list[tuple[Run, Program, Any]] = []
        self._never = threading.Event()

    @property
    def held_functions(self) -> int:
        """How many functions its programs hold."""
        return sum(len(program.spec.kinds) + 1 for program in (self._nested, *self._programs.values()))

    def do(self, act: Act) -> None:
        if act.deed is Deed.RUN:
            self._run(act)
        elif act.deed is Deed.NEW_PROGRAM:
            assert act.spec is not None
            self._programs.pop(act.program, None)
            self._programs[act.program] = self._program(act.spec)
        elif act.deed is Deed.BARRIER:
            self.barrier()
        elif act.deed is Deed.EFFECTS_BARRIER:
            began = time.monotonic_ns()
            jax.effects_barrier()
            self._record.barrier(began, self.name)
        elif act.deed is Deed.COLLECT:
            gc.collect()
        elif act.deed is Deed.CLEAR_CACHES:
            jax.clear_caches()
        else:
            self._trace(act)

    def barrier(self) -> None:
        """Wait for everything that was started before, from any thread."""
        began = time.monotonic_ns()
        try:
            self._implementation.barrier()
        except self._implementation.callback_exception as error:
            self._record.reported(failure.text for failure in error.failures)
        self._record.barrier(began)

    def fill_queues(self) -> None:
        """Let a lot be queued and held on each device: memory of queues and pools that is used for the first time is no
        leak.
        """
        layout = PMAP if len(self._devices) > 1 else ONE_DEVICE
        for kind, times, size, dtype in FILLINGS:
            program = self._program(ProgramSpec(layout, FORI, (kind,), times, size, dtype))
            effects = {(slot, 0): lambda: self._never.wait(FILLING_SECONDS) for slot in range(len(program.devices))}
            run = Run(self._record.new_number(), self.name, program.shape(0), program.devices, effects=effects)
            self._dispatch(program, run)
            self.end_round()
            self.barrier()

    def end_round(self) -> None:
        """Fetch the results that are left, and drop the programs."""
        while self._unfetched:
            self._fetch(*self._unfetched.pop(0))
        self._programs.clear()

    def _program(self, spec: ProgramSpec) -> Program:
        return Program(spec, self._record, self._implementation, self._devices)

    def _run(self, act: Act) -> None:
        # What runs outside of jit has no program to keep.
        program = self._program(act.spec) if act.spec else self._programs[act.program]
        shape = program.shape(act.trips)
        for turn in range(act.times):
            special = act.special if turn == act.times - 1 else Special.NONE
            self._dispatch(program, self._prepared(program, shape, act, special))
        while len(self._unfetched) > (MOST_UNFETCHED if act.keeps else 0):
            self._fetch(*self._unfetched.pop(0))

    def _dispatch(self, program: Program, run: Run) -> None:
        one_at_a_time = DISPATCHING if program.spec.several_devices else contextlib.nullcontext()
        self._record.begin(run)
        result = None
        try:
            with one_at_a_time:
                result = program(run)
        except JaxRuntimeError as error:
            self._failed(run, program, error)
        finally:
            run.returned = time.monotonic_ns()
        if result is not None:
            self._unfetched.append((run, program, result))

    def _fetch(self, run: Run, program: Program, result: Any) -> None:
        try:
            values = np.asarray(jax.block_until_ready(result)).reshape(-1)
        except JaxRuntimeError as error:
            self._failed(run, program, error)
            return
        if run.fails_at is not None:
            self._record.note("no error", f"{run} was to fail at {run.fails_at}, and has a result", Stage.RESULT)
            return
        self._record.fetched(run, values.tolist())

    def _failed(self, run: Run, program: Program, error: Exception) -> None:
        if run.fails_at is None:
            self._record.note("error", f"{run} ended with {type(error).__name__}: {str(error)[:600]}", Stage.RESULT)
            return
        self._record.raised(run, error, program.spec.layout in (ONE_DEVICE, EAGER))

    def _prepared(self, program: Program, shape: Shape, act: Act, special: Special) -> Run:
        """The run of a program, with what happens in it."""
        number = self._record.new_number()
        where = self._where(program, shape, act, special)
        if where is None:
            return Run(number, self.name, shape, program.devices)
        effect: Callable[[], Any]
        fails = special is Special.CALL_RAISES
        if special is Special.SLOW:
            effect = lambda: self._never.wait(act.chance * LONGEST_MOMENT)
        elif special is Special.NESTED:
            effect = self._run_nested
        else:
            effect = self._record.plan_failure((number, *where), f"the failure of {special.value} in {program.spec}")
        return Run(
            number, self.name, shape, program.devices, fails_at=where if fails else None, effects={where: effect}
        )

    def _where(self, program: Program, shape: Shape, act: Act, special: Special) -> tuple[int, int] | None:
        """The slot and the step of what is special, or None if this program has no place for it."""
        if special is Special.NONE:
            return None
        if special is Special.TAP_RAISES:
            places = shape.failing_places(taps=True)
        elif special is Special.CALL_RAISES:
            # After a failure ordered callbacks do not run. Others may, or may not.
            places = shape.failing_places(taps=False) if shape.all_ordered else []
            if program.spec.layout == MESH:
                # The devices refuse together, a moment later than the callback failed.
                places = [place for place in places if place == max(shape.steps)]
        else:
            places = list(shape.steps)
        slot = int(act.chance * len(program.devices))
        return (slot, places[int(act.chance * len(places))]) if places else None

    def _run_nested(self) -> None:
        """Run a program in a callback: what it taps is not queued."""
        program = self._nested
        number = self._record.new_number()
        run = Run(number, f"a callback of {self.name}", program.shape(0), program.devices, inside=True)
        self._record.begin(run)
        values = np.asarray(program(run)).reshape(-1)
        run.returned = run.complete = time.monotonic_ns()
        self._record.fetched(run, values.tolist())

    def _trace(self, act: Act) -> None:
        """Record what all threads do meanwhile."""
        with tempfile.TemporaryDirectory() as folder, self._implementation.namespace.trace(Path(folder) / "trace.json"):
            self._run(Act(Deed.RUN, act.program, trips=8))
