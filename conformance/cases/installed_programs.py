"""Fault cells of who has asked for hostcb in place of JAX's callbacks, and of what goes through it then."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, error_of, unequal
from .harness.registry import planted
from .traces import library

NUMBER = jax.ShapeDtypeStruct((), np.float32)
FULL = "the disk of the log is full"
CHILD_SECONDS = 60


_differs = partial(unequal, "mistaken", Stage.CALLBACK)


def _is_on() -> bool:
    program = jax.make_jaxpr(lambda x: jax.pure_callback(lambda y: y, NUMBER, x))
    return "host_callback" in str(program(np.float32(1)))


@planted("jit", "id_tap", "H27", isolated=True)
def uninstalled_in_a_block(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: `uninstall` ends what `install` began, and no block; the doctor says which of the two is so."""
    hostcb = library(bench)
    found: list[tuple[bool, bool]] = []

    def look() -> None:
        found.append((_is_on(), "which is installed" in str(hostcb.doctor())))

    look()
    hostcb.install()
    look()
    with hostcb.installed():
        hostcb.uninstall()
        look()
        hostcb.uninstall()
        with hostcb.installed():
            look()
        look()
    look()
    hostcb.uninstall()
    with hostcb.installed():
        hostcb.install()
    look()
    hostcb.uninstall()
    look()
    wanted = [(each, each) for each in (False, True, True, True, True, False, True, False)]
    return _differs("whether JAX's callbacks go through hostcb, and whether the doctor says so", found, wanted)


_REFUSED = """
import functools, os, jax

def is_on():
    return "host_callback" in str(jax.make_jaxpr(lambda x: jax.pure_callback(lambda y: y, x, x))(1.0))

def ends_with(run):
    try:
        run()
    except hostcb.UnknownJaxError:
        return "refused"

child = os.fork()
if child:
    os.waitpid(child, 0)
    import hostcb
    print(is_on())
else:
    jax.debug.print = functools.partial(jax.debug.print)
    import hostcb
    print(is_on(), ends_with(hostcb.install), is_on(), ends_with(hostcb.installed().__enter__), is_on())
"""
"""A program whose child has a JAX with one of the callbacks in another way."""


@planted("jit", "id_tap", "H27 H28", isolated=True)
def refused_install(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27, H28: `HOSTCB_INSTALL=0` installs nothing; on another JAX, `install` and a block raise and change nothing."""
    # Its one device is a CPU.
    environment = {**os.environ, "HOSTCB_INSTALL": "0", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _REFUSED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_SECONDS,
    )
    wanted = "False refused False refused False False"
    said = " ".join(ended.stdout.split()) or ended.stderr[-300:]
    return _differs(
        "what is on, at first and after a refused install and a refused block, and on this JAX", said, wanted
    )


@contextlib.contextmanager
def _full_log() -> Iterator[None]:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(FULL)

    handler = Full()
    logging.getLogger("jax").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("jax").removeHandler(handler)


def _fails(operand: Any) -> Any:
    raise KeyError(PLANTED)


@planted("jit", "id_tap", "H27", isolated=True)
def raises_beside_a_full_log(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: while it is installed a failure is its own error, although a handler of JAX's log raises another."""
    anomalies: list[Anomaly] = []
    with library(bench).installed(), _full_log():
        for what, run in {
            "pure_callback": lambda: jax.jit(lambda x: jax.pure_callback(_fails, NUMBER, x))(np.float32(1)),
            "io_callback": lambda: jax.jit(lambda x: io_callback(_fails, NUMBER, x))(np.float32(1)),
        }.items():
            error = error_of(lambda run=run: jax.block_until_ready(run()))  # type: ignore[misc]
            if error is None or PLANTED not in str(error) or FULL in str(error):
                said = "no error" if error is None else summary(error)
                anomalies.append(Anomaly("wrong error", Stage.RESULT, f"{what} came to {said}"))
    return anomalies


@planted("jit", "id_tap", "H27", isolated=True)
def installed_forms(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: results in other containers of as many leaves, and keys by name, are as with JAX's own."""
    key = jax.random.key(3)
    pair = {"a": NUMBER, "b": NUMBER}

    def in_containers(returned: Callable[[Any], Any]) -> Any:
        found = jax.jit(lambda x: jax.pure_callback(returned, pair, x))(np.float32(1))
        return {name: float(each) for name, each in found.items()}

    def by_name(in_jit: bool) -> Any:
        seen: list[Any] = []

        def look(*, key: Any, number: Any) -> None:
            seen.append((str(key.dtype), jax.random.key_data(key).tolist(), float(number)))

        def run(key: Any) -> None:
            jax.debug.callback(look, key=key, number=2.0)

        (jax.jit(run) if in_jit else run)(key)
        jax.effects_barrier()
        return seen

    programs: dict[str, Callable[[], Any]] = {
        "a dict of other names": lambda: in_containers(lambda x: {"p": x, "q": x + 1}),
        "a tuple for a dict": lambda: in_containers(lambda x: (x, x + 1)),
        "a key by name outside jit": lambda: by_name(False),
        "a key by name in jit": lambda: by_name(True),
    }
    own = {what: program() for what, program in programs.items()}
    with library(bench).installed():
        found = {what: program() for what, program in programs.items()}
    return [anomaly for what in programs for anomaly in _differs(what, found[what], own[what])]


@planted("jit", "id_tap", "B4 H27 X4", isolated=True)
def installed_with_options(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: the options of each function, in each of its forms, count while it is installed."""
    # Old releases, whose own cells the suite runs too, have no such module.
    from jax.experimental.buffer_callback import buffer_callback

    seen: list[str] = []

    def note(text: str) -> Callable[..., Any]:
        return lambda *_: seen.append(text)

    def fill(context: Any, out: Any, operand: Any) -> None:
        seen.append("buffer")
        np.asarray(out)[...] = np.asarray(operand)

    def unused(x: Any) -> Any:
        buffer_callback(fill, NUMBER, has_side_effect=True)(x)
        return x

    def in_order(x: Any) -> Any:
        x = library(bench).id_tap(note("tap"), x)
        jax.debug.callback(ordered=True)(note("debug in two calls"), x)
        jax.debug.callback(note("debug"), x, ordered=True)
        io_callback(note("io"), None, x, ordered=True)
        return x

    anomalies: list[Anomaly] = []
    with library(bench).installed():
        for what, program, due in (
            ("a buffer callback whose result is unused", unused, ["buffer"]),
            ("ordered ones", in_order, ["tap", "debug in two calls", "debug", "io"]),
        ):
            compiled = jax.jit(program)
            for _ in range(3):
                seen.clear()
                jax.block_until_ready(compiled(np.float32(1)))
                bench.implementation.barrier()
                anomalies += _differs(what, seen[:], due)
    return anomalies


@planted("pjit", "id_tap", "H27 X5", minimum_devices=2, functions="stats", isolated=True)
def installed_on_a_named_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X5: while it is installed, the device that `sharding` names is that of the callback."""
    operand = jax.device_put(jnp.arange(len(bench.devices), dtype=np.float32), bench.split)
    anomalies: list[Anomaly] = []
    for device in (bench.devices[-1], bench.devices[1]):
        there = jax.sharding.SingleDeviceSharding(device)
        with library(bench).installed():
            for what, function in (("pure_callback", jax.pure_callback), ("io_callback", io_callback)):

                def program(x: Any, function: Any = function, there: Any = there) -> Any:
                    return function(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x, sharding=there)

                before = library(bench).stats()
                jax.block_until_ready(jax.jit(program)(operand))
                found = (library(bench).stats() - before).devices
                called = sorted(name for name, of in found.items() if of.calls)
                anomalies += _differs(f"the devices of {what}", called, [f"{device.platform}:{device.id}"])
    return anomalies
