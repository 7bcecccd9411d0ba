"""Fault cells of hostcb in place of JAX's own callbacks, and of what it says in tracebacks and in profiles of JAX."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.experimental
import numpy as np
from jax.experimental import io_callback

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, error_of, filtering
from .harness.registry import planted
from .traces import library

START = np.arange(3, dtype=np.float32)

# As a library takes them, before a program installs hostcb.
_own_pure, _own_debug, _own_print = jax.pure_callback, jax.debug.callback, jax.debug.print


def _programs(seen: list[str]) -> dict[str, Callable[[Any], Any]]:
    def host(operand: Any, scale: int = 1) -> Any:
        # JAX's own give jax.Arrays.
        seen.append(f"{type(operand).__module__.partition('.')[0]} {float(operand.sum() * scale)}")
        return np.asarray(operand) * scale

    def after(x: Any, _: Any) -> Any:
        return x

    def in_scan(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (io_callback(host, x, c, ordered=True) + 1, None), x, None, length=2)[0]

    return {
        "pure_callback": lambda x: _own_pure(host, x, x, scale=2),
        "pure_callback in vmap": lambda x: jax.vmap(
            lambda y: _own_pure(host, jax.ShapeDtypeStruct((), y.dtype), y, vmap_method="sequential")
        )(x),
        "io_callback": lambda x: io_callback(host, x, x),
        "ordered io_callbacks in a scan": in_scan,
        "debug.callback": lambda x: after(x, _own_debug(host, x, scale=3)),
        "debug.callback in two calls": lambda x: after(x, _own_debug(ordered=True)(host, x)),
    }


@planted("jit", "id_tap", "H27", isolated=True)
def installed(bench: Bench, callback: Callback) -> list[Anomaly]:
    """While it is installed JAX's functions go through hostcb, wherever they are kept, and do the same as before."""
    hostcb = library(bench)
    seen: list[str] = []
    programs = _programs(seen)
    traces: list[str] = []

    @jax.jit
    def kept(x: Any) -> Any:
        traces.append("trace")
        return programs["pure_callback"](x)

    def traced_again() -> bool:
        before = len(traces)
        kept(START)
        return len(traces) > before

    def run(name: str) -> tuple[list[float], list[str], str]:
        seen.clear()
        # A function of its own, since JAX keeps what it has traced.
        program = jax.jit(lambda x: programs[name](x))
        by = "hostcb" if "host_callback" in str(program.trace(START).jaxpr) else "JAX"
        result = np.asarray(program(START)).tolist()
        jax.effects_barrier()
        return result, [*seen], by

    anomalies: list[Anomaly] = []
    own = {name: run(name) for name in programs}
    traced = {"before": traced_again()}
    with hostcb.installed():
        with hostcb.installed():
            inner = {"pure_callback": run("pure_callback")}
        inside = {name: run(name) for name in programs}
        traced["in the block"] = traced_again()
    traced["after the block"] = traced_again()
    hostcb.install()
    hostcb.install()
    again = {name: run(name) for name in programs}
    hostcb.uninstall()
    afterwards = {name: run(name) for name in programs}
    for when, again_traced in traced.items():
        if not again_traced:
            witness = f"{when}, a jitted function from before the change was not traced again"
            anomalies.append(Anomaly("mistaken", Stage.TRACE, witness))
    for when, found, by in (
        ("before", own, "JAX"),
        ("in a block of the block", inner, "hostcb"),
        ("in the block", inside, "hostcb"),
        ("installed", again, "hostcb"),
        ("afterwards", afterwards, "JAX"),
    ):
        for name in found:
            if found[name] != (*own[name][:2], by):
                witness = f"{when}, {name} gave, showed and went through {found[name]}, expected {(*own[name][:2], by)}"
                anomalies.append(Anomaly("mistaken", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H27", isolated=True)
def installed_for_a_block(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The old module is there in each way of its import while hostcb is installed, and no longer: nor after a raise."""
    name = "jax.experimental.host_callback"

    def ways() -> dict[str, bool]:
        return {
            "import": error_of(lambda: importlib.import_module(name)) is None,
            "attribute": hasattr(jax.experimental, "host_callback"),
            "from": error_of(lambda: exec("from jax.experimental import host_callback", {})) is None,
            "specification": importlib.util.find_spec(name) is not None,
        }

    def in_a_block() -> None:
        with library(bench).installed():
            found["in a block"] = ways()
            raise ValueError(PLANTED)

    found = {"before": ways()}
    raised = error_of(in_a_block)
    found["after a block that raised"] = ways()
    library(bench).install()
    found["installed"] = ways()
    library(bench).uninstall()
    found["uninstalled"] = ways()
    anomalies = [
        Anomaly("mistaken", Stage.TRACE, f"{when}, whether there is {name}, by way: {each}")
        for when, each in found.items()
        if {*each.values()} != {when in ("in a block", "installed")}
    ]
    if not isinstance(raised, ValueError):
        anomalies.append(Anomaly("swallowed error", Stage.TRACE, f"the block raised {raised!r}"))
    return anomalies


@planted("jit", "id_tap call", "H31", isolated=True)
def in_profiles(bench: Bench, callback: Callback) -> list[Anomaly]:
    """In a profile of JAX each run is a span with the function's name and the device, and in none after it."""
    # In a file with a name that a profile's own marks are in.
    names: dict[str, Any] = {}
    source = "def shown_function(operand):\n    return operand + operand.dtype.type(1)"
    exec(compile(source, "part#2.py", "exec"), names)

    compiled = bench.applying(callback, names["shown_function"])
    jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(2):
                jax.block_until_ready(compiled(bench.operand))
            bench.implementation.barrier()
        jax.block_until_ready(compiled(bench.operand))
        bench.implementation.barrier()
        (file,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X" and event.get("args", {}).get("device", "")]
    devices = [event["args"]["device"] for event in spans]
    named = [event["name"].startswith(f"{callback.function}: ") for event in spans]
    # The function of a tap is one of the suite's around it.
    whole = callback.function == "id_tap" or all("2.py:1" in event["name"] for event in spans)
    if len(spans) == 2 and all(named) and whole and devices == ["cpu:0", "cpu:0"]:
        return []
    witness = f"the spans of two runs are {[event['name'] for event in spans]} on {devices}"
    return [Anomaly("trace", Stage.CALLBACK, witness)]


@planted("jit", "call", "H32")
def ends_in_the_users_file(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The traceback of a refusal, and of a function that raised, has no frame of the library; advice names a remedy."""
    hostcb = library(bench)
    anomalies: list[Anomaly] = []

    def raises(operand: Any) -> Any:
        return deeper()

    def deeper() -> Any:
        raise ValueError(PLANTED)

    def adds(operand: Any) -> Any:
        return operand.at[0].add(1)

    folder = str(Path(hostcb.__file__).parent)

    def in_callback(function: Callable[[], None]) -> Callable[[], Any]:
        """A run that raises what `function` raises inside of a callback, which catches it."""
        caught: list[Exception | None] = []

        def host(operand: Any) -> Any:
            caught.append(error_of(function))
            return operand

        def run() -> None:
            jax.block_until_ready(jax.jit(lambda x: hostcb.call(host, x, result_shape=x))(START))
            if caught and caught[0] is not None:
                raise caught[0]

        return run

    shape = jax.ShapeDtypeStruct(START.shape, START.dtype)
    cases: dict[str, Callable[[], Any]] = {
        "an id_tap of a number": lambda: hostcb.id_tap(3, START),
        "an id_print with a wrong index": lambda: hostcb.id_print(START, device_index=len(bench.devices)),
        "a call of a number": lambda: hostcb.call(3, START, result_shape=shape),
        "a pure_callback of a number": lambda: hostcb.pure_callback(3, shape, START),
        "an io_callback of a number": lambda: hostcb.io_callback(3, shape, START),
        "a debug.callback of a number": lambda: hostcb.debug.callback(3, START),
        "a debug.print of a number": lambda: hostcb.debug.print(3, START),
        "a buffer_callback of a number": lambda: hostcb.buffer_callback(3, shape),
        "a debug.print in two calls with a wrong format": lambda: hostcb.debug.print(ordered=True)("{} {}", START),
        "a dlpack_callback of a number": lambda: hostcb.dlpack_callback(3, shape),
        "a stream that is passed twice": lambda: hostcb.dlpack_callback(raises, shape, with_stream=True)(0, stream=0),
        "a mutable array of a dlpack_callback": lambda: hostcb.dlpack_callback(raises, shape)(jax.new_ref(START)),
        "a mutable array of a buffer_callback": lambda: hostcb.buffer_callback(raises, shape)(jax.new_ref(START)),
        "a wrong alias of a dlpack_callback": lambda: hostcb.dlpack_callback(
            raises, shape, input_output_aliases={1: 0}
        )(START),
        "a wrong alias of a buffer_callback": lambda: hostcb.buffer_callback(
            raises, shape, input_output_aliases={1: 0}
        )(START),
        "jax_arrays of a number": lambda: hostcb.jax_arrays(3),
        "a trace to a number": lambda: hostcb.trace(3.5),
        "a barrier with a text for a timeout": lambda: hostcb.barrier_wait(timeout="soon"),
        "a barrier in a callback": in_callback(hostcb.barrier_wait),
        "a stop in a callback": in_callback(hostcb.stop_outfeed_receiver),
        "a function that raised": lambda: jax.jit(lambda x: hostcb.call(raises, x, result_shape=x))(START),
        "a call outside jit that raised": lambda: hostcb.call(raises, START, result_shape=shape),
        "an io_callback outside jit that raised": lambda: hostcb.io_callback(raises, shape, START),
        "a dlpack_callback outside jit that raised": lambda: hostcb.dlpack_callback(raises, shape)(START),
        "a method of jax.Arrays": lambda: jax.jit(
            lambda x: hostcb.call(lambda y: y.block_until_ready(), x, result_shape=x)
        )(START),
        "a function for jax.Arrays": lambda: jax.jit(lambda x: hostcb.call(adds, x, result_shape=x))(START),
    }
    for what, run in cases.items():
        with filtering():
            error, reported = error_of(run), error_of(bench.implementation.barrier)
        if error is None:
            anomalies.append(Anomaly("not refused", Stage.TRACE, f"{what} raised nothing"))
            continue
        for place, raised in (("the error", error), ("its cause", error.__cause__), ("the barrier's error", reported)):
            frames = traceback.extract_tb(raised.__traceback__) if raised is not None else []
            if hidden := [frame for frame in frames if frame.filename.startswith(folder)]:
                witness = f"{place} of {what} has the library's frames {hidden}"
                anomalies.append(Anomaly("poor error", Stage.TRACE, witness))
        if what == "a function that raised":
            names = [frame.name for frame in traceback.extract_tb(getattr(error.__cause__, "__traceback__", None))]
            if names != ["raises", "deeper"]:
                witness = f"the traceback of a function and the one that it called has the frames {names}"
                anomalies.append(Anomaly("poor error", Stage.RESULT, witness))
        if what in ("a function for jax.Arrays", "a method of jax.Arrays"):
            for place, text in (("the error", str(error)), ("the barrier", str(reported))):
                if "hostcb.jax_arrays" not in text:
                    witness = f"{place} of {what} does not name the remedy: {summary(error)}"
                    anomalies.append(Anomaly("poor error", Stage.RESULT, witness))
    return anomalies


@planted("jit", "id_tap", "H27 H29", functions="stats", isolated=True)
def installed_as_alone(bench: Bench, callback: Callback) -> list[Anomaly]:
    """While hostcb is installed, keys are printed as before, may be returned, which JAX refuses, and failures count."""
    key = jax.random.key(3)

    def printed() -> str:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            jax.debug.print("{}", key)
            jax.effects_barrier()
        return text.getvalue()

    def returned() -> Any:
        program = jax.jit(lambda key: jax.pure_callback(lambda _: jax.random.key(5), key, key))
        return jax.random.key_data(program(key)).tolist()

    def failing(operand: Any) -> Any:
        raise ValueError(PLANTED)

    wanted = {
        "a print of a key": printed(),
        "a key that a function returned": jax.random.key_data(jax.random.key(5)).tolist(),
    }
    before = library(bench).stats()
    with library(bench).installed():
        found = {"a print of a key": printed(), "a key that a function returned": returned()}
        error = error_of(lambda: jax.jit(lambda x: jax.pure_callback(failing, x, x))(bench.operand))
    anomalies = [
        Anomaly("mistaken", Stage.RESULT, f"{what}: {seen!r}, expected {wanted[what]!r}")
        for what, seen in found.items()
        if seen != wanted[what]
    ]
    failures = (library(bench).stats() - before)[bench.devices[0]].failures
    if error is None or failures != 1:
        anomalies.append(Anomaly("count", Stage.CALLBACK, f"a failure ({error!r}) was counted {failures} times"))
    error_of(bench.implementation.barrier)
    return anomalies
