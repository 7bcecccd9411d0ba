"""`diff`: what differs between two results, and the table of more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from results_fakes import KNOWN, LOST, PASSED, cell, write

from conformance.cli.commands import main

pytestmark = pytest.mark.contract("C1", "C8")

ONE, TWO, THREE = (f"jax/pure_callback/{program}/cpu-1dev" for program in ("jit", "vmap", "scan"))
OF_HOSTCB = ONE.replace("jax/", "hostcb/")
LACKED = "jax has no buffer_callback"
NOTHING = "0 fixed, 0 broken, 0 changed, 0 new, 0 gone"


def failing(cell_id: str, **fields: Any) -> dict[str, Any]:
    return LOST | {"id": cell_id} | fields


class Runs:
    """Two results folders, and what `diff` says about them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.error = ""

    def diff(self, before: list[Any], after: list[Any] | None, *options: str, **fields: Any) -> tuple[int, list[str]]:
        folders = [f"A={write(self._folder / 'before', *before)}"]
        if after is not None:
            folders.append(f"B={write(self._folder / 'after', *after, **fields)}")
        code = main(["diff", *folders, *options])
        out, self.error = self._capsys.readouterr()
        return code, out.splitlines()


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tmp_path, capsys)


OTHER = LOST | {"id": "hostcb/call/cond/cpu-8dev"}
DIFFERENCES = {
    "nothing": ([PASSED, LOST], [PASSED, LOST], 0, NOTHING),
    "fixed": ([LOST], [cell(LOST["id"])], 0, "FIXED: hostcb/call/scan/cpu-8dev: fail at callback (lost) -> pass"),
    "broken": ([cell(LOST["id"])], [LOST], 1, "BROKEN: hostcb/call/scan/cpu-8dev: pass -> fail at callback (lost)"),
    "other anomaly": ([LOST], [LOST | {"anomaly": "order"}], 1, "fail at callback (lost) -> fail at callback (order)"),
    "other words": ([LOST], [LOST | {"witness": "lost: cpu:2 never ran #5"}], 0, "0 changed"),
    "new": ([PASSED], [PASSED, OTHER], 0, "NEW: hostcb/call/cond/cpu-8dev: fail at callback (lost)"),
    "gone": ([PASSED, OTHER], [PASSED], 1, "GONE: hostcb/call/cond/cpu-8dev: fail at callback (lost)"),
}


@pytest.mark.parametrize(("before", "after", "code", "line"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_differences(runs: Runs, before: list[Any], after: list[Any], code: int, line: str) -> None:
    found, lines = runs.diff(before, after)
    assert found == code
    assert any(line in each for each in lines)


def test_what_fails_by_chance_is_shown_and_is_no_failure(runs: Runs) -> None:
    known = KNOWN["known"] | {"intermittent": True}
    fails, passes = KNOWN | {"known": known}, cell(KNOWN["id"], known=known, expected="fail")
    for before, after in ((passes, fails), (fails, passes)):
        code, lines = runs.diff([before], [after])
        assert code == 0 and lines[0].startswith(f"INTERMITTENT: {KNOWN['id']}: ")
    assert runs.diff([fails], [fails])[1] == [NOTHING]
    # It fails, and not in the known way.
    assert runs.diff([passes], [fails | {"verdict": "hang", "status": "changed_failure"}])[0] == 1


def test_cells_of_one_side_are_counted_with_the_reason(runs: Runs) -> None:
    left_out = [{"id": TWO, "reason": LACKED}, {"id": THREE, "reason": LACKED}]
    three = [cell(ONE), cell(TWO), cell(THREE)]
    code, lines = runs.diff(three, [cell(ONE)], ineligible=left_out)
    assert (code, lines[0]) == (1, f"GONE: {TWO}: pass -> not applicable: {LACKED}")
    code, lines = runs.diff(three, [cell(ONE)], "--only-common", ineligible=left_out)
    assert (code, lines[0]) == (0, f"only in A: 2 cells not applicable in B: {LACKED}")
    assert runs.diff([cell(ONE), cell(TWO)], [failing(ONE)], "--only-common")[0] == 1


def test_two_implementations(runs: Runs) -> None:
    """Of one run, or each in a folder of its own."""
    both = [cell(OF_HOSTCB), failing(ONE), PASSED]
    asked = ("--implementation", "hostcb", "--implementation", "jax")
    code, lines = runs.diff(both, None, *asked)
    assert code == 1
    assert lines[0] == "BROKEN: */pure_callback/jit/cpu-1dev: pass -> fail at callback (lost)"
    assert lines[-1] == "0 fixed, 1 broken, 0 changed, 0 new, 1 gone"
    assert runs.diff([cell(OF_HOSTCB)], [failing(ONE)], *asked)[1][-1].startswith("0 fixed, 1 broken")


@pytest.mark.parametrize(
    ("after", "options", "message"),
    [
        ([cell(ONE)], ["-k", "grad"], "no cell matches grad"),
        ([cell(TWO)], ["--only-common"], "A and B have no cell in common"),
        (None, [], "a comparison needs two columns, and there is 'A' alone"),
        (None, ["--implementation", "hostcb", "--implementation", "jax"], "there is 'jax' alone"),
    ],
)
def test_nothing_to_compare(runs: Runs, after: list[Any] | None, options: list[str], message: str) -> None:
    assert runs.diff([cell(ONE)], after, *options) == (2, [])
    assert runs.error.startswith("ERROR: ") and message in runs.error


def test_three_results_are_columns_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agreed, first, second = (cell(f"jax/{name}/jit/cpu-1dev") for name in ("io_callback", "a", "b"))
    lost, info = [failing(one["id"]) for one in (first, second)], {"cpu-8dev": {"jax": "0.12.0"}}
    one = write(tmp_path / "one", first, second, agreed, cell(ONE))
    two = write(tmp_path / "two", *lost, agreed, run_info=info)
    three = write(tmp_path / "three", first, second, agreed)
    assert main(["diff", str(one), f"new={two}", str(three)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "4 cells with 3 columns: 2 differ, 1 agree (1 pass), 1 ran in one column at most (1 pass)." in printed
    assert "## 2 cells: pass in one, three; fail at callback (lost) in new" in printed
    assert f"With new: {LOST['witness']}" in printed
    assert "- 1 cell ran in one alone" in printed
    # What is the same in all columns is not shown.
    assert "| jax | 0.12.0.1 | 0.12.0 | 0.12.0.1 |" in printed
    assert not [line for line in printed if line.startswith("| platform |")]
