"""Each workaround names a bug that a supported JAX has, and the trial for one of them is right."""

from __future__ import annotations

import contextlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax_bugs
import pytest
from support.helpers import mesh_of

import hostcb._workarounds
from hostcb._workarounds import memory_kinds

MODULES = sorted(
    path for path in Path(hostcb._workarounds.__file__).parent.glob("*.py") if path.stem not in ("__init__", "dummies")
)
SUPPORTED = ("0.10.2", "0.12.0.1", version("jax"))


@pytest.mark.contract("H4")
@pytest.mark.parametrize("in_mesh", [False, True], ids=["alone", "in a mesh"])
def test_a_jax_that_forgets_no_token_is_not_taken_for_one_that_does(
    in_mesh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a JAX without the bug: a program that has no token to forget. JAX refuses its device inside of a mesh."""

    def without_token(x: Any) -> Any:
        return x

    monkeypatch.setattr(memory_kinds, "_ordered_identity", without_token)
    surroundings = jax.set_mesh(mesh_of(jax.devices())) if in_mesh else contextlib.nullcontext()
    with surroundings:
        assert memory_kinds._tokens_are_forgotten.__wrapped__() is False


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_each_names_reports_of_bugs_that_a_supported_jax_has(path: Path) -> None:
    """The run of a report's program, or of its cells, fails where the bug is cured."""
    named = re.findall(r"^- (docs/jax-bugs/\S+|https://\S+): JAX (.+)$", path.read_text(), re.MULTILINE)
    pages = {report.link: report for report in jax_bugs.reports()}
    expected_failures = jax_bugs.entries_by_link()
    assert named
    for link, releases in named:
        assert link in expected_failures, f"{link} has no cells that are expected to fail"
        report = pages.get(link)
        if report is not None:
            assert releases == " or ".join(report.affected), f"{link} was seen in other releases"
            assert any(map(report.affects, SUPPORTED)), f"{link} is cured in each supported JAX: remove its workaround"
