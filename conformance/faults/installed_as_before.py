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
from .bench import Bench
from .checks import error_of, unequal
from .fault import planted
from .traces import library

NUMBER = jax.ShapeDtypeStruct((), np.float32)
OLD_MODULE = "jax.experimental.host_callback"

Show: TypeAlias = Callable[[Any], None]
Program: TypeAlias = Callable[[Show], Any]
"""It gets what its functions show to."""

_differs = partial(unequal, "mistaken", Stage.CALLBACK)


def _shown(operand: Any) -> tuple[Any, ...]:
    """What a function can see of its operand, and the type of its sum with an array of few bits."""
    array = jnp.asarray(operand)
    devices = sorted(map(str, array.devices()))
    with_few_bits = (array + jnp.ones(2, jnp.bfloat16)).dtype.name
    return type(operand).__name__, array.dtype.name, array.weak_type, devices, with_few_bits, array.tolist()


def _outside_jit(bench: Bench) -> dict[str, Program]:
    last = bench.devices[-1]
    operands: dict[str, Any] = {
        "a weak number": jnp.asarray(2.0),
        "a number of Python": 2.0,
        "a whole number of Python": 3,
        "a number of NumPy": np.float32(2),
        "an array on the last device": jax.device_put(jnp.ones(2), last),
        "a weak number on the last device": jax.device_put(jnp.asarray(2.0), last),
        "an array over a mesh": jax.device_put(jnp.arange(2.0), jax.sharding.NamedSharding(
            jax.sharding.Mesh(np.asarray(bench.devices[:2]), ("devices",)), jax.sharding.PartitionSpec("devices")
        )),
    }  # fmt: skip
    programs: dict[str, Program] = {}
    for what, operand in operands.items():

        def at_once(show: Show, operand: Any = operand) -> None:
            jax.debug.callback(lambda x: show(_shown(x)), operand)

        def by_name(show: Show, operand: Any = operand) -> None:
            jax.debug.callback()(lambda *, x: show(_shown(x)), x=operand)

        programs |= {f"{what} outside jit": at_once, f"{what} by name, in two calls": by_name}
    return programs


def _in_parts(bench: Bench) -> dict[str, Program]:
    parts = jax.device_put(np.arange(len(bench.devices), dtype=np.int32), bench.split)

    def run(callback: Callable[[Any], None]) -> None:
        jax.jit(lambda x: (callback(x), x + 1)[1])(parts)

    def note(show: Show) -> Callable[[Any], None]:
        return lambda x: show((x.shape, np.asarray(x).tolist()))

    return {
        f"{what}, with partitioned={partitioned}": program
        for partitioned in (True, False)
        for what, program in {
            "a callback": lambda show, p=partitioned: run(lambda x: jax.debug.callback(note(show), x, partitioned=p)),  # type: ignore[misc]
            "a callback in two calls": lambda show, p=partitioned: run(  # type: ignore[misc]
                lambda x: jax.debug.callback(partitioned=p)(note(show), x)
            ),
            "a print": lambda show, p=partitioned: run(lambda x: jax.debug.print("{}", x, partitioned=p)),  # type: ignore[misc]
            "a print in two calls": lambda show, p=partitioned: run(  # type: ignore[misc]
                lambda x: jax.debug.print(partitioned=p)("{}", x)
            ),
        }.items()
    }


def _with_results() -> dict[str, Program]:
    likes: dict[str, Any] = {"one result": NUMBER, "two results": (NUMBER, NUMBER), "a dict": {"a": NUMBER}}
    returned: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda x: (),
        "two": lambda x: (x, x + 1),
        "three": lambda x: {"a": x, "b": [x, x]},
    }
    programs: dict[str, Program] = {}
    for what, like in likes.items():
        for came, function in returned.items():
            if (what, came) == ("two results", "two"):
                continue
            for name, of_jax in (("pure_callback", jax.pure_callback), ("io_callback", io_callback)):
                program = jax.jit(lambda x, of=of_jax, f=function, like=like: of(f, like, x))  # type: ignore[misc]
                programs[f"{came} for {what} of {name}"] = lambda show, p=program: p(np.float32(1))  # type: ignore[misc]
    return programs


def _unchecked() -> dict[str, Program]:
    def run(show_it: Callable[[Any], None]) -> None:
        jax.jit(lambda x: (show_it(x), x)[1])(np.float32(1))

    forms: dict[str, tuple[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
        "a text without fields": ("step", lambda x: ((x, x), {})),
        "an argument that is left over": ("{}", lambda x: ((x, x), {})),
        "a name that is left over": ("{x}", lambda x: ((), {"x": x, "y": x})),
        "what fits": ("{} {y}", lambda x: ((x,), {"y": x})),
        "a field that is missing": ("{} {}", lambda x: ((x,), {})),
    }
    programs: dict[str, Program] = {}
    for what, (text, arguments) in forms.items():
        for unchecked in (True, False):

            def once(x: Any, text: str = text, of: Any = arguments, unchecked: bool = unchecked) -> None:
                args, kwargs = of(x)
                jax.debug.print(text, *args, skip_format_check=unchecked, **kwargs)

            def twice(x: Any, text: str = text, of: Any = arguments, unchecked: bool = unchecked) -> None:
                args, kwargs = of(x)
                jax.debug.print(skip_format_check=unchecked)(text, *args, **kwargs)

            for how, form in (("", once), (" in two calls", twice)):
                programs[f"{what}{how}, unchecked={unchecked}"] = lambda show, form=form: run(form)  # type: ignore[misc]
    return programs


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
    # As when it is traced for the first time.
    jax.clear_caches()
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
