"""Fault cells of what few programs ask of JAX's own callbacks: while hostcb is installed, it is as before."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import error_of, unequal
from .harness.registry import planted
from .traces import library

NUMBER = jax.ShapeDtypeStruct((), np.float32)
OLD_MODULE = "jax.experimental.host_callback"

Show: TypeAlias = Callable[[Any], None]
Program: TypeAlias = Callable[[Show], Any]
"""It gets what its functions show to."""

_differs = partial(unequal, "mistaken", Stage.CALLBACK)


def _shown(operand: Any) -> tuple[Any, ...]:
    """What a function can see of its operand."""
    array = jnp.asarray(operand)
    devices = sorted(map(str, array.devices()))
    return type(operand).__name__, array.dtype.name, array.weak_type, devices, array.tolist()


def _outside_jit(bench: Bench) -> dict[str, Program]:
    last = bench.devices[-1]
    two = jax.sharding.Mesh(np.asarray(bench.devices[:2]), ("devices",))
    rows = jax.sharding.NamedSharding(two, jax.sharding.PartitionSpec("devices"))
    of_no_device = (jnp.asarray(2.0), 3, np.float32(2))
    there = jax.device_put(jnp.asarray(2.0), last)
    over_a_mesh = jax.device_put(jnp.arange(2.0), rows)

    def by_name(show: Show) -> None:
        jax.debug.callback()(lambda *, x: show(_shown(x)), x=there)

    return {
        "numbers of JAX, of Python and of NumPy outside jit": lambda show: jax.debug.callback(
            lambda *operands: show([*map(_shown, operands)]), *of_no_device
        ),
        "a number on the last device outside jit, by name": by_name,
        "an array over a mesh outside jit": lambda show: jax.debug.callback(lambda x: show(_shown(x)), over_a_mesh),
    }


def _in_parts(bench: Bench) -> dict[str, Program]:
    devices = np.asarray(bench.devices[:2])
    rows = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("devices",)), jax.sharding.PartitionSpec("devices"))
    parts = jax.device_put(np.arange(2, dtype=np.int32), rows)

    def each_form(show: Show, partitioned: bool) -> None:
        def note(form: str) -> Callable[[Any], None]:
            return lambda operand: show((form, partitioned, np.asarray(operand).tolist()))

        def program(x: Any) -> Any:
            jax.debug.callback(note("a callback"), x, partitioned=partitioned)
            jax.debug.callback(partitioned=partitioned)(note("a callback in two calls"), x)
            jax.debug.print("one {}", x, partitioned=partitioned)
            jax.debug.print(partitioned=partitioned)("two {}", x)
            return x + 1

        jax.jit(program)(parts)

    return {
        f"each form with partitioned={partitioned}": partial(each_form, partitioned=partitioned)
        for partitioned in (True, False)
    }


def _with_results() -> dict[str, Program]:
    def program(of_jax: Callable[..., Any], returned: Any, like: Any) -> Program:
        return lambda show: jax.jit(lambda x: of_jax(lambda _: returned, like, x))(np.float32(1))

    one = np.float32(1)
    return {
        "two leaves for one of pure_callback": program(jax.pure_callback, (one, one), NUMBER),
        "two leaves for one of io_callback": program(io_callback, {"a": one, "b": one}, NUMBER),
        "three leaves for two": program(jax.pure_callback, [one, one, one], (NUMBER, NUMBER)),
        "no leaves for one": program(jax.pure_callback, (), NUMBER),
    }


def _unchecked() -> dict[str, Program]:
    unfit: dict[str, Callable[..., Any]] = {
        "a text without a field": lambda show_it, x: show_it("step", x, x),
        "an argument that is left over": lambda show_it, x: show_it("{}", x, x),
        "a name that is left over": lambda show_it, x: show_it("{x}", x=x, y=x),
    }

    def all_unchecked(show: Show) -> None:
        def program(x: Any) -> Any:
            for form in unfit.values():
                form(partial(jax.debug.print, skip_format_check=True), x)
                form(jax.debug.print(skip_format_check=True), x)
            return x

        jax.jit(program)(np.float32(1))

    checked: dict[str, Program] = {
        what: lambda show, form=form: jax.make_jaxpr(lambda x: form(jax.debug.print, x))(np.float32(1))  # type: ignore[misc]
        for what, form in unfit.items()
    }
    # Of the form in two calls the first takes options alone.
    first: dict[str, Program] = {
        f"{what} in the first of two calls of {function.__name__}": lambda show, call=call: call()  # type: ignore[misc]
        for function in (jax.debug.print, jax.debug.callback)
        for what, call in {
            "an operand": partial(function, None, 1.0),
            "a named operand": partial(function, None, x=1.0),
        }.items()
    }
    return {**checked, **first, "formats that are not checked": all_unchecked}


def _outcome(program: Program) -> dict[str, Any]:
    seen: list[Any] = []
    written = io.StringIO()

    def run() -> None:
        jax.block_until_ready(program(seen.append))
        jax.effects_barrier()

    with contextlib.redirect_stdout(written):
        error = error_of(run)
    # Devices call in any order.
    return {
        "raised": error is not None,
        "seen": sorted(map(str, seen)),
        "printed": sorted(written.getvalue().splitlines()),
    }


@planted("pjit", "id_tap", "H27 X4", minimum_devices=2, isolated=True)
def installed_as_before(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: operands outside jit, parts of a mesh, results of other lengths and unchecked formats are as with JAX's."""
    programs = {**_outside_jit(bench), **_in_parts(bench), **_with_results(), **_unchecked()}
    own = {what: _outcome(program) for what, program in programs.items()}
    with library(bench).installed():
        found = {what: _outcome(program) for what, program in programs.items()}
    return [anomaly for what in programs for anomaly in _differs(what, found[what], own[what])]


@planted("jit", "id_tap", "H27", isolated=True)
def modules_of_the_program(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: hostcb's old module takes the place of one that a program has put there, and leaves one that comes later."""
    hostcb = library(bench)
    stub, later = ModuleType(OLD_MODULE), ModuleType(OLD_MODULE)

    def is_hostcbs() -> bool:
        names: dict[str, Any] = {}
        exec("from jax.experimental import host_callback", names)
        return names["host_callback"].id_tap is importlib.import_module(OLD_MODULE).id_tap is hostcb.id_tap

    anomalies: list[Anomaly] = []
    before: dict[str, Any] = {"nothing": ..., "a module of its own": stub, "None, which forbids the import": None}
    for what, module in before.items():
        if module is not ...:
            sys.modules[OLD_MODULE] = module
        with hostcb.installed():
            found: list[Any] = []
            error = error_of(lambda found=found: found.append(is_hostcbs()))  # type: ignore[misc]
        anomalies += _differs(f"whether it is hostcb's, after {what}, and the error", (found, error), ([True], None))
        sys.modules.pop(OLD_MODULE, None)
    hostcb.install()
    sys.modules[OLD_MODULE] = later
    jax.experimental.host_callback = later  # type: ignore[attr-defined]
    hostcb.uninstall()
    anomalies += _differs("the module that came later", sys.modules.get(OLD_MODULE), later)
    return anomalies + _differs("its name in the package", getattr(jax.experimental, "host_callback", None), later)


@planted("jit", "id_tap", "H27", isolated=True)
def traced_at_each_change(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: a jitted function is traced again after each change, also where it has been traced in both ways before."""
    traces: list[None] = []
    hostcb = library(bench)

    @jax.jit
    def traced(x: Any) -> Any:
        traces.append(None)
        return jax.pure_callback(lambda y: y, NUMBER, x)

    counts: list[int] = []

    def run() -> None:
        for _ in range(2):
            traced(np.float32(1))
        counts.append(len(traces))

    run()
    for _ in range(3):
        with hostcb.installed():
            run()
        run()
        hostcb.install()
        run()
        hostcb.uninstall()
        run()
    return _differs("how often it had been traced, after each change", counts, [*range(1, 14)])
