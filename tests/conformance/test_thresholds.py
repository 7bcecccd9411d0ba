"""Each number in hostcb is a threshold with cells on both sides, or has a reason why it is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import thresholds

from conformance.cases.harness.catalogue import all_cases
from conformance.spec.thresholds import NOT_THRESHOLDS, THRESHOLDS, Threshold

pytestmark = pytest.mark.contract("C62")

ROOT = Path(__file__).parents[2]
IN_SOURCE = thresholds.numbers()
OF_SOURCE = {each.constant: each for each in THRESHOLDS.values() if each.constant}
EQUAL = {constant for each in THRESHOLDS.values() for constant in each.same}


def test_a_new_number_is_entered() -> None:
    new = {*IN_SOURCE} - {*OF_SOURCE} - EQUAL - {*NOT_THRESHOLDS}
    assert not new, (
        f"hostcb has new numbers: {sorted(new)}. If the way of a value or a program changes at one, add it to"
        " THRESHOLDS in conformance/spec/thresholds.py, with cells on both sides; otherwise to NOT_THRESHOLDS"
    )


def test_no_entry_is_of_a_number_that_is_gone() -> None:
    gone = ({*OF_SOURCE} | EQUAL | {*NOT_THRESHOLDS}) - {*IN_SOURCE}
    assert not gone, f"hostcb has these numbers no longer: {sorted(gone)}"


def test_a_number_is_entered_once() -> None:
    assert not {*OF_SOURCE} & EQUAL
    assert not ({*OF_SOURCE} | EQUAL) & {*NOT_THRESHOLDS}


@pytest.mark.parametrize("constant", OF_SOURCE)
def test_the_suites_number_is_the_sources(constant: str) -> None:
    assert OF_SOURCE[constant].value == IN_SOURCE[constant]


def test_equal_numbers_are_equal() -> None:
    for each in THRESHOLDS.values():
        for constant in each.same:
            # One that is computed from the constant of another module is read as its offset from that.
            found = IN_SOURCE[constant]
            assert found in (each.value, 1), f"{constant} is {found}, and not {each.value}"


def test_the_flag_of_the_queue_has_the_number() -> None:
    flags = (thresholds.SOURCE / "_spec" / "flags.py").read_text("utf-8")
    assert f"{THRESHOLDS['queue_bytes'].value:_}" in flags


@pytest.mark.parametrize("name", THRESHOLDS)
def test_cells_or_a_test_ask_for_both_sides(name: str) -> None:
    crossing = {case.callback for case in all_cases() if name in case.crosses}
    asked_by = THRESHOLDS[name].asked_by
    assert bool(crossing) != bool(asked_by), f"{name}: plant a case with crosses=({name!r},)"
    assert not asked_by or "C62" in (ROOT / asked_by).read_text("utf-8")


def test_cells_cross_only_what_there_is() -> None:
    assert {name for case in all_cases() for name in case.crosses} <= {*THRESHOLDS}


def test_both_sides_are_next_to_the_number() -> None:
    assert Threshold(16, "elements").around == (15, 16, 17)


def test_numbers_of_python_and_of_c_are_found() -> None:
    python = "A = 1 << 4\n_B: int = A + 1\nC = 2.5\nD = 'text'\nE = len('')\nsmall = 3\nF = True\ndef f():\n    G = 1\n"
    assert dict(thresholds.of_python(python)) == {"A": 16, "_B": 17, "C": 2.5}
    c = "#define MOST 512\n#define PAGE (1 << 16) /* bytes */\n#define WORD UINT64_MAX\n#define GUARD_H_\n"
    assert dict(thresholds.of_c(c)) == {"MOST": 512, "PAGE": 65536}
