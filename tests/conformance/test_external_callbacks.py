"""Broken versions of JAX's own callbacks, which cells must catch: those that no mutant of hostcb stands for."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from conformance.cases.harness.running import run_case
from conformance.implementations import load
from conformance.implementations.host_functions import PrintedCallbacks
from conformance.implementations.jax import NAMESPACE, Jax
from conformance.oracle.history import Recorder
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.planning.cells import CaseCell, ProgramCell, TableCell, parse_cell
from conformance.worker.execution import run_cell, run_table_cell

pytestmark = pytest.mark.contract("C6")


def broken(**names: Any) -> Jax:
    return Jax(SimpleNamespace(**{**vars(NAMESPACE), **names}))


def pure_for_io(function: Any, wanted: Any, *args: Any, ordered: bool = False) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="sequential")


def expanding(function: Any, wanted: Any, *args: Any, vmap_method: Any = None) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="expand_dims")


def debug(callback: Any = jax.debug.callback, print: Any = jax.debug.print) -> SimpleNamespace:  # noqa: A002
    return SimpleNamespace(callback=callback, print=print)


def gathered(function: Any, *args: Any, ordered: bool, partitioned: bool) -> None:
    jax.debug.callback(function, *args, ordered=ordered)


def mumbled(text: str, what: str, value: Any, ordered: bool) -> None:
    jax.debug.print("something: {value}", value=value, ordered=ordered)


def taking_anything(function: Any, wanted: Any, **options: Any) -> Any:
    def host(context: Any, out: Any, operand: Any) -> None:
        np.asarray(out)[...] = function(context, out, operand)

    return NAMESPACE.buffer_callback(host, wanted, **options)


BROKEN = {
    "io elided": (broken(io_callback=pure_for_io), "io_callback/jit", "lost: cpu:0 never ran #2 (unused"),
    "method ignored": (broken(pure_callback=expanding), "pure_callback_broadcast_all/vmap", "wrong operand"),
    "not partitioned": (broken(debug=debug(gathered)), "debug_callback_partitioned/pjit", "wrong operand"),
    "lost print": (broken(debug=debug(print=mumbled)), "debug_print/jit", "lost"),
    "ignored": (
        broken(buffer_callback=taking_anything),
        "buffer_callback/case.returns_a_value.jit",
        "nothing was raised",
    ),
}


def run(implementation: Any, name: str, devices: Sequence[jax.Device]) -> Outcome:
    cell = parse_cell(f"jax/{name}/cpu-8dev")
    if isinstance(cell, CaseCell):
        return run_case(cell.case, implementation, devices)
    assert isinstance(cell, ProgramCell)
    return run_cell(cell, implementation, Recorder({device.id: index for index, device in enumerate(devices)}), devices)


@pytest.mark.parametrize(("implementation", "name", "witness"), BROKEN.values(), ids=BROKEN)
def test_a_broken_callback_is_caught(
    implementation: Jax, name: str, witness: str, devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # taken back after the test, whatever is installed in it
    outcome = run(implementation, name, devices)
    assert outcome.verdict is Verdict.FAIL
    assert witness in outcome.reason


@pytest.mark.contract("C5")
@pytest.mark.parametrize("name", ["pure_callback/table.grad", "debug_callback/table.returns"])
def test_a_wrong_entry_of_the_table_is_found(name: str, devices: list[jax.Device]) -> None:
    cell = parse_cell(f"jax/{name}/cpu-8dev")
    assert isinstance(cell, TableCell)
    wrong = replace(cell, entry=replace(cell.entry, supported=not cell.entry.supported))
    for tried, verdict in ((cell, Verdict.PASS), (wrong, Verdict.FAIL)):
        assert run_table_cell(tried, load("jax"), Recorder(), devices).verdict is verdict


@pytest.mark.contract("C5")
@pytest.mark.parametrize("value", [np.float32(7), np.arange(8, dtype=np.float32), np.ones((40, 3), np.float32)])
def test_prints_are_read_back(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, recorder = io.StringIO(), Recorder()
    monkeypatch.setattr(sys, "stdout", stream)
    PrintedCallbacks.install(recorder)
    sys.stdout.write(PrintedCallbacks.FORMAT.format(what="first", value=value) + "\n")
    print("something else")
    (event,) = recorder.history().events
    assert event.site == "first"
    np.testing.assert_array_equal(event.leaves[0], value)
    assert event.leaves[0].dtype == np.float32
    assert stream.getvalue() == "something else\n"
