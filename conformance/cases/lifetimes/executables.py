"""Cases of executables that outlive their program's Python code: cached, compiled ahead of time, serialised."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from ...oracle.checkers import Anomaly
from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Callback, Runs
from ..harness.bench import Bench
from ..harness.checks import check_quiet_barrier, check_value, still_alive
from ..harness.registry import EVERY_KIND, bench_case

EVERY_KIND_AND_ORDERED = f"{EVERY_KIND} debug_callback_ordered"
CLOSURES = ("one", "another", "a third")
CACHE_SETTINGS = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


class _Saying:
    """A host function that writes its own name down and adds a number of its own."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def __call__(self, operand: Any) -> Any:
        self.said.append(self.name)
        return np.asarray(operand) + np.float32(1 + len(self.name))

    def result(self, callback: Callback, operand: Any) -> Any:
        return operand + np.float32(1 + len(self.name)) if callback.returns_new_value else operand


def _check_calls(bench: Bench, callback: Callback, said: list[str], wanted: list[str], where: str) -> list[Anomaly]:
    """Whether these functions alone were called, each as often as the layout has callbacks in a run."""
    anomalies = check_quiet_barrier(bench, f"after {where}")
    if {*said} != {*wanted}:
        witness = f"{where} called {sorted({*said})}, expected {sorted({*wanted})}"
        return [*anomalies, Anomaly("wrong function", Stage.CALLBACK, witness)]
    count = len(wanted) * bench.callbacks_per_run
    if callback.runs is Runs.ONCE and len(said) != count:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{where} made {len(said)} calls, not {count}"))
    return anomalies


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


@bench_case("jit", EVERY_KIND_AND_ORDERED, "H18")
@bench_case("pjit shard_map", "id_tap io_callback", "H18")
def equal_programs_from_a_cache(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#38405: programs with equal HLO share an executable in the persistent cache, and each calls its own functions."""
    said: list[str] = []
    # The last program has the functions of the first one in the other order.
    pairs = (CLOSURES[:2], CLOSURES[1:], CLOSURES[1::-1])
    anomalies: list[Anomaly] = []
    kept = []
    with _persistent_cache():
        for pair in (*pairs, *pairs):
            first, second = (_Saying(name, said) for name in pair)

            def computation(x: Any, first: _Saying = first, second: _Saying = second) -> Any:
                return bench.apply(callback, second, bench.apply(callback, first, x) * np.float32(2))

            compiled = bench.compile(computation)
            wanted = second.result(callback, first.result(callback, bench.operand) * np.float32(2))
            where = f"the program of {' and '.join(pair)}"
            said.clear()
            anomalies += check_value(where, lambda c=compiled: c(bench.operand), wanted)  # type: ignore[misc]
            anomalies += _check_calls(bench, callback, said, [*pair], where)
            kept.append((compiled, pair))
    for compiled, pair in kept[:2]:
        said.clear()
        np.asarray(compiled(bench.operand))
        anomalies += _check_calls(bench, callback, said, [*pair], f"later, the program of {' and '.join(pair)}")
    return anomalies


@bench_case("jit", EVERY_KIND_AND_ORDERED, "H18")
@bench_case("pjit pmap shard_map", "id_tap io_callback", "H18")
def compiled_ahead(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Executables outlive the jitted functions that they come from; any thread calls them, in any order."""
    said: list[str] = []
    executables: dict[str, Any] = {}
    results: dict[str, Any] = {}
    functions: dict[str, weakref.ref[_Saying]] = {}
    for name in CLOSURES:
        host = _Saying(name, said)
        functions[name] = weakref.ref(host)
        results[name] = host.result(callback, bench.operand)
        jitted: Any = bench.applying(callback, host)
        executables[name] = jitted.lower(bench.operand).compile()
    del host, jitted
    gc.collect()
    anomalies: list[Anomaly] = []

    def call(name: str, where: str) -> None:
        said.clear()
        label = f"the executable of {name} {where}"
        anomalies.extend(check_value(label, lambda: executables[name](bench.operand), results[name]))
        anomalies.extend(_check_calls(bench, callback, said, [name], label))

    for name in (*CLOSURES, *reversed(CLOSURES)):
        call(name, "without its function")

    def call_each() -> None:
        for name in CLOSURES:
            call(name, "in another thread")

    thread = threading.Thread(target=call_each)
    thread.start()
    thread.join()
    executables.clear()
    return anomalies + _check_gone(bench, functions)


def _check_gone(bench: Bench, functions: dict[str, weakref.ref[_Saying]]) -> list[Anomaly]:
    if bench.layout == "pmap":
        # JAX keeps every function that it has mapped, with or without callbacks.
        jax.clear_caches()
    alive = still_alive(functions)
    return [Anomaly("leak", Stage.EXIT, f"the executables are gone, and their functions {alive} are not")] * bool(alive)


@bench_case("jit", EVERY_KIND_AND_ORDERED, "H18")
def serialized(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An executable with a callback is not serialized, and the error says why."""
    compiled: Any = bench.applying(callback, _Saying("one", []))
    executable = compiled.lower(bench.operand).compile()
    return check_refused(lambda: serialize_executable.serialize(executable), "serialized an executable")


@bench_case("jit", EVERY_KIND_AND_ORDERED, "H18")
@bench_case("pjit shard_map", "id_tap pure_callback", "H18")
def exported(bench: Bench, callback: Callback) -> list[Anomaly]:
    """`jax.export` refuses a function with a callback when it exports it, and the error says why."""
    compiled: Any = bench.applying(callback, _Saying("one", []))
    return check_refused(lambda: export.export(compiled)(bench.operand), "exported a function")


def check_refused(run: Callable[[], Any], what: str) -> list[Anomaly]:
    """A callback is a function of this process: what leaves the process cannot have it."""
    try:
        run()
    except Exception as error:
        if "callback" in str(error).lower():
            return []
        witness = f"the error does not say that a callback is the reason: {summary(error)}"
        return [Anomaly("poor error", Stage.LOWER, witness)]
    return [Anomaly("not refused", Stage.LOWER, f"JAX {what} with a callback, which no other process has")]
