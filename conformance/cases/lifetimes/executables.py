"""Executables that outlive their program's Python code: cached, compiled ahead of time, serialised, taken out of it."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ..harness.case import Case, case
from ..harness.hosts import add_one, still_alive
from ..harness.registry import EVERY_KIND

EVERY_KIND_AND_ORDERED = f"{EVERY_KIND} debug_callback_ordered"
ADDED = (1, 2, 3)
"""What each function adds, by which it is known."""

CACHE_SETTINGS = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


class _Adding:
    """A host function that writes down what it adds."""

    def __init__(self, case: Case, added: int, said: list[int]) -> None:
        self.case, self.added, self.said = case, added, said

    def __call__(self, operand: Any) -> Any:
        self.said.append(self.added)
        return np.asarray(operand) + np.float32(self.added)

    def expected(self, operand: Any) -> Any:
        return operand + np.float32(self.added) if self.case.callback.returns_new_value else operand


def _check_calls(case: Case, said: list[int], wanted: list[int], what: str) -> None:
    """These functions alone were called, each as often as the layout has callbacks in a run."""
    case.barrier()
    case.same("wrong function", Stage.CALLBACK, {*said}, {*wanted}, what)
    if case.callback.runs is Runs.ONCE:
        case.same("wrong count", Stage.CALLBACK, len(said), len(wanted) * case.copies, f"calls of {what}")


@contextlib.contextmanager
def _persistent_cache() -> Iterator[None]:
    """JAX keeps executables in a folder, as far as the release keeps those with callbacks."""
    names = (*CACHE_SETTINGS, "jax_compilation_cache_dir")
    before = {name: getattr(jax.config, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, value in {**CACHE_SETTINGS, "jax_compilation_cache_dir": folder}.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()


@case("jit", EVERY_KIND_AND_ORDERED, "H18")
@case("pjit shard_map", "id_tap io_callback", "H18")
def equal_programs_from_a_cache(case: Case) -> None:
    """#38405: programs with equal HLO share an executable in the persistent cache, and each calls its own functions."""
    said: list[int] = []
    kept = []
    with _persistent_cache():
        # The last program has the functions of the first one in the other order.
        for pair in (ADDED[:2], ADDED[1:], ADDED[1::-1]) * 2:
            first, second = (_Adding(case, added, said) for added in pair)

            def computation(x: Any, first: _Adding = first, second: _Adding = second) -> Any:
                return case.apply(second, case.apply(first, x) * np.float32(2))

            program, what = case.compile(computation), f"the program that adds {pair}"
            said.clear()
            case.gives(second.expected(first.expected(case.operand) * np.float32(2)), program, case.operand, what=what)
            _check_calls(case, said, [*pair], what)
            kept.append((program, pair))
    for program, pair in kept[:2]:
        said.clear()
        np.asarray(program(case.operand))
        _check_calls(case, said, [*pair], f"later, the program that adds {pair}")


@case("jit", EVERY_KIND_AND_ORDERED, "H18")
@case("pjit pmap shard_map", "id_tap io_callback", "H18")
def compiled_ahead(case: Case) -> None:
    """Executables outlive the jitted functions that they come from; any thread calls them, in any order."""
    said: list[int] = []
    executables: dict[int, Any] = {}
    expected: dict[int, Any] = {}
    functions: dict[str, weakref.ref[_Adding]] = {}
    for added in ADDED:
        host = _Adding(case, added, said)
        functions[f"the one that adds {added}"] = weakref.ref(host)
        expected[added] = host.expected(case.operand)
        executables[added] = case.program(host).lower(case.operand).compile()
    del host
    gc.collect()

    def call(added: int, where: str) -> None:
        said.clear()
        what = f"the executable that adds {added}, {where}"
        case.gives(expected[added], executables[added], case.operand, what=what)
        _check_calls(case, said, [added], what)

    for added in (*ADDED, *reversed(ADDED)):
        call(added, "without its function")

    def call_each() -> None:
        for added in ADDED:
            call(added, "in another thread")

    with case.in_thread(call_each):
        pass
    executables.clear()
    # JAX keeps every function that it has mapped by pmap, with or without callbacks.
    alive = still_alive(functions, jax.clear_caches if case.layout == "pmap" else lambda: None)
    case.same("leak", Stage.EXIT, alive, [], "functions of executables that are gone")


@case("jit", "call io_callback_ordered", "H4", needs="stages.Compiled.output_formats")
def layouts_beside_a_token(case: Case) -> None:
    """An executable with an ordered callback has the layouts of the same one without the callback."""
    programs = case.program(add_one), jax.jit(lambda x: x + 1)
    first, second = (program.lower(case.operand).compile().output_formats for program in programs)
    case.same("layout", Stage.COMPILE, first.layout, second.layout)


@case("jit", EVERY_KIND_AND_ORDERED, "H18")
def serialized(case: Case) -> None:
    """An executable with a callback is not serialized, and the error says why."""
    executable = case.program(add_one).lower(case.operand).compile()
    _check_refused(case, lambda: serialize_executable.serialize(executable))


@case("jit", EVERY_KIND_AND_ORDERED, "H18")
@case("pjit shard_map", "id_tap pure_callback", "H18")
def exported(case: Case) -> None:
    """`jax.export` refuses a function with a callback when it exports it, and the error says why."""
    _check_refused(case, lambda: export.export(case.program(add_one))(case.operand))


def _check_refused(case: Case, run: Callable[[], Any]) -> None:
    """A callback is a function of this process: what leaves the process cannot have it."""
    try:
        run()
    except Exception as error:
        if "callback" not in str(error).lower():
            case.wrong("poor error", Stage.LOWER, f"the error does not say that a callback is it: {summary(error)}")
    else:
        case.wrong("not refused", Stage.LOWER, "JAX gave away a callback, which no other process has")


ROUNDS = 2


@case("jit pjit", "pure_callback", "H10 X2")
def runs_without_dispatch(case: Case) -> None:
    """The runtime's executable of a program calls back, although JAX reports none of its runs."""
    split = case.split if case.layout == "pjit" else jax.sharding.SingleDeviceSharding(case.devices[0])
    executable = case.program(add_one).lower(case.operand).compile().runtime_executable()
    operand = jax.device_put(case.operand, split)

    def run() -> Any:
        (parts,) = executable.execute_sharded([operand]).disassemble_into_single_device_arrays()
        return np.concatenate([np.asarray(part) for part in parts])

    for _ in range(ROUNDS):
        case.gives(case.expected, run, what="the executable")
    case.barrier()
