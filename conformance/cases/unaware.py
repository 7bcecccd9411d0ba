"""Fault cells of programs that know nothing of hostcb: while it is installed they do what they do with JAX's own."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.experimental import io_callback

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library

START = np.arange(3, dtype=np.float32)
LOGGED = "the planted text"
WIDE = ("float64", "int64")
"""Types of results that are named as they came, though JAX narrows them."""

Program: TypeAlias = Callable[[Callable[[str], None]], Any]
"""It gets what its functions show to."""


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[0] if record.exc_info else None
        # JAX may also log what it compiles.
        if raised is not None or record.getMessage().startswith(LOGGED):
            self.texts.append(f"{record.name}, {record.levelname}: {record.getMessage()}, with {raised}")


@contextlib.contextmanager
def _log_of_jax() -> Iterator[list[str]]:
    """A program that knows nothing of hostcb does not read the logger of hostcb."""
    logger, records = logging.getLogger("jax"), _Records()
    kept = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(records)
    try:
        yield records.texts
    finally:
        logger.removeHandler(records)
        logger.setLevel(kept)


def _raises(operand: Any) -> Any:
    raise ValueError(PLANTED)


def _returning(function: Callable[[Any], Any]) -> Any:
    return jax.jit(lambda x: jax.pure_callback(function, x, x))(START)


def _prints_rounded(show: Callable[[str], None]) -> None:
    with np.printoptions(precision=2):
        compiled = jax.jit(lambda x: jax.debug.print("{}", x)).lower(START).compile()
    compiled(START / 3)


def _narrowed() -> Any:
    like = jax.ShapeDtypeStruct((), np.uint32)
    return jax.jit(lambda: jax.pure_callback(lambda: np.uint64(2**40 + 5), like))()


def _adds_one(context: Any, out: Any, operand: Any) -> None:
    np.asarray(out)[...] += 1


def _raises_in_place(context: Any, out: Any, operand: Any) -> None:
    raise ValueError(PLANTED)


def _in_place(function: Callable[..., None], aliases: dict[int, int] | None) -> Any:
    # Old releases, whose own cells the suite runs too, have no such module.
    from jax.experimental.buffer_callback import buffer_callback

    like = jax.ShapeDtypeStruct(START.shape, START.dtype)
    result = jax.jit(buffer_callback(function, like, input_output_aliases=aliases))(START + 1)
    return np.asarray(result).tolist()


def _programs(bench: Bench) -> dict[str, Program]:
    key = jax.random.key(0)
    parts = jax.device_put(np.eye(len(bench.devices), dtype=np.float32), bench.split)

    def shows_key(show: Callable[[str], None], key: Any) -> None:
        jax.debug.callback(lambda operand: show(str(operand.dtype)), key)

    return {
        "a typed key outside jit": lambda show: shows_key(show, key),
        "a typed key in jit": lambda show: jax.jit(lambda key: shows_key(show, key))(key),
        "a function that raises": lambda show: _returning(_raises),
        "a result of another shape": lambda show: _returning(lambda x: np.zeros(4, np.float32)),
        "a text for the log": lambda show: jax.jit(lambda x: jax.debug.log(LOGGED + " {}", x))(START),
        "a field after doubled braces": lambda show: jax.jit(lambda x: jax.debug.print("{{x}} is {}", x))(START),
        "a typed key of another kind outside jit": lambda show: shows_key(show, jax.random.key(0, impl="rbg")),
        "a debug callback that raises outside jit": lambda show: jax.debug.callback(_raises, START),
        "an io_callback that raises": lambda show: jax.jit(lambda x: io_callback(_raises, None, x))(START),
        "a print with the options of its trace": _prints_rounded,
        "a masked array": lambda show: show(str(_returning(lambda x: np.ma.masked_array(x, mask=x == 1)))),
        "an unsigned number that is too wide": lambda show: show(str(_narrowed())),
        "a buffer in place": lambda show: show(str(_in_place(_adds_one, {0: 0}))),
        "a buffer callback that raises": lambda show: _in_place(_raises_in_place, None),
        "a print of each part": lambda show: jax.jit(lambda x: jax.debug.print("{}", x, partitioned=True))(parts),
    }


def _outcome(program: Program) -> dict[str, Any]:
    shown: list[str] = []
    written = io.StringIO()

    def run() -> None:
        jax.block_until_ready(program(shown.append))
        jax.effects_barrier()

    with contextlib.redirect_stdout(written), _log_of_jax() as logged:
        error = error_of(run)
    # Devices print in any order.
    lines = sorted(written.getvalue().splitlines())
    return {"error": type(error).__name__, "shown": shown, "printed": lines, "logged": [*logged]}


def _goes_through_hostcb(program: Callable[[Any], Any]) -> bool:
    return "host_callback" in str(jax.make_jaxpr(program)(START))


def _in_kernel(x: Any) -> Any:
    # Only a program that has kernels imports it, and hostcb looks for them then.
    from jax.experimental import pallas

    def kernel(operand: Any, out: Any) -> None:
        jax.debug.print("{}", operand[0])
        out[...] = operand[...]

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@planted("jit", "id_tap", "H27 H32", isolated=True)
def unaware(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H27: what functions get, what is printed and logged, and how it fails; and the places that keep JAX's own."""
    programs = _programs(bench)
    own = {what: _outcome(program) for what, program in programs.items()}
    with library(bench).installed():
        found = {what: _outcome(program) for what, program in programs.items()}
        # JAX's own print fails here, which is a difference on purpose.
        named = _outcome(lambda show: jax.jit(lambda x: jax.debug.print("{{x}} is {x}", x=x))(START))
        errors = [error_of(lambda name=name: _returning(lambda x: np.zeros(4, name))) for name in WIDE]  # type: ignore[misc]
        kept = {
            "jax.debug.breakpoint": _goes_through_hostcb(lambda x: jax.debug.breakpoint(ordered=True)),
            "the function of a Pallas kernel": _goes_through_hostcb(_in_kernel),
        }
    # The failures of JAX's functions are the program's, which knows no barrier of hostcb.
    anomalies = check_quiet_barrier(bench, "after programs that know nothing of it")
    anomalies += [
        Anomaly("mistaken", Stage.CALLBACK, f"{what} gave {found[what]}, and with JAX's own {own[what]}")
        for what in programs
        if found[what] != own[what]
    ]
    if named["printed"] != [f"{{x}} is {START}"]:
        anomalies.append(Anomaly("value", Stage.CALLBACK, f"a named field after doubled braces gave {named}"))
    for name, error in zip(WIDE, errors, strict=True):
        if f"returned {name}[4] in place of float32[3]" not in str(error):
            anomalies.append(Anomaly("poor error", Stage.RESULT, f"{name}[4] in place of float32[3] came to {error!r}"))
    return anomalies + [
        Anomaly("mistaken", Stage.TRACE, f"in {place} there is a callback of hostcb in place of JAX's own")
        for place, taken in kept.items()
        if taken
    ]
