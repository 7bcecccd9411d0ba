"""`list --promises`: each pair of a promise and a kind of callback has cells, or a reason that is not stale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import promises as contract
import pytest

from conformance.cases.harness.registry import planted
from conformance.cli.commands import main, parsed
from conformance.engine.preparation import plan_of
from conformance.planning.cells import CaseCell, Cell
from conformance.planning.promised import PromiseTable, promise_table, show
from conformance.spec.external_callbacks import ALL_CALLBACKS, callback_named
from conformance.spec.promises import ABOUT, OPTIONS, PROMISES, REASONS, TESTS_ALONE, Reason, is_about

pytestmark = pytest.mark.contract("C61")

OWN = ALL_CALLBACKS[:36]
"""Without those of vendors, which other tests may have added."""


@pytest.fixture(scope="module")
def cells() -> tuple[Cell, ...]:
    return plan_of(parsed(["list", "--implementation", "hostcb"])).cells


@pytest.fixture(scope="module")
def table(cells: tuple[Cell, ...]) -> PromiseTable:
    return promise_table(cells, kinds=OWN)


def test_there_is_no_hole_and_no_stale_reason(table: PromiseTable) -> None:
    assert (table.holes, table.stale) == ((), ())


def test_the_promises_are_those_of_the_contract() -> None:
    assert sorted(PROMISES) == sorted(number for number in contract.numbered() if number[0] in "HXBD")


def test_the_data_names_what_there_is() -> None:
    names, functions = {one.name for one in OWN}, {one.function for one in OWN}
    assert {*ABOUT, *TESTS_ALONE} <= {*PROMISES}
    assert {function for functions in ABOUT.values() for function in functions} <= functions
    assert {*OPTIONS} | {of for of, _ in OPTIONS.values()} <= names
    for reason in REASONS:
        assert {*reason.promises.split()} <= {*PROMISES}
        assert {*reason.kinds.split()} <= names | functions


def test_each_reason_is_used(table: PromiseTable) -> None:
    used = {*table.reasons.values()}
    assert [reason.words for reason in REASONS if reason.words not in used] == []
    assert {*TESTS_ALONE.values()} <= used


def test_a_pair_without_cells_and_without_reason_is_a_hole(cells: tuple[Cell, ...]) -> None:
    fewer = [cell for cell in cells if not (cell.callback_name == "call" and "H13" in cell.promises)]
    (hole,) = {kind for promise, kind in promise_table(fewer, kinds=OWN).holes if promise == "H13" and kind == "call"}
    assert hole == "call"
    assert "HOLE: no cell of call for H13, and no reason" in show(promise_table(fewer, kinds=OWN))


def test_a_reason_for_a_pair_with_cells_is_stale(cells: tuple[Cell, ...]) -> None:
    stale = promise_table(cells, kinds=OWN, reasons=(*REASONS, Reason("H9", "id_tap", "nobody cares"))).stale
    assert len(stale) == 1
    assert "H9" in stale[0]
    assert "cells of id_tap, and a reason for none: nobody cares" in stale[0]


def test_a_reason_of_a_function_with_a_callbacks_name_is_of_that_callback_alone(cells: tuple[Cell, ...]) -> None:
    table = promise_table(cells, ["H13"], [callback_named("pure_callback"), callback_named("io_callback")])
    assert [*table.reasons] == [("H13", "pure_callback")]
    assert table.counts["H13", "io_callback"]


def test_a_fault_cites_only_promises_about_its_callback(cells: tuple[Cell, ...]) -> None:
    for cell in cells:
        if isinstance(cell, CaseCell):
            function = callback_named(cell.case.callback).function
            assert all(is_about(promise, function) for promise in cell.promises), cell.id


def test_a_fault_without_a_promise_about_its_callback_is_refused() -> None:
    with pytest.raises(ValueError, match="scenario of id_tap cites no promise about id_tap"):

        @planted("jit", "id_tap", "X3")
        def scenario(bench: Any, callback: Any) -> Any: ...


def test_a_vendors_function_has_the_promises_that_the_vendor_names() -> None:
    of_vendor = replace(callback_named("io_callback"), name="vendor_callback", function="vendor_callback")
    assert is_about("X3", of_vendor.function)
    assert not is_about("X3", "pure_callback")


@pytest.mark.parametrize("option", ["--coverage", "--ineligible", "-k=id_tap"])
def test_the_table_is_of_the_whole_plan(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--promises", option]) == 2
    assert capsys.readouterr().err.startswith("ERROR: --promises prints a table of the whole plan")


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--promises"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split() == [*PROMISES]
    assert "D3: all" in printed
