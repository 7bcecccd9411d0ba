"""Older releases of JAX: what the suite does not ask of them, and what it says of what they do not have."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.interpreters import mlir

from conformance.cases.harness.catalogue import RUNTIME_TARGETS
from conformance.cases.harness.registry import COLLECTIVE_TIMEOUT_FLAGS
from conformance.cli import commands
from conformance.engine.options import RunOptions
from conformance.engine.preparation import prepare
from conformance.implementations.jax import IMPLEMENTATION as JAX
from conformance.planning.cells import UnknownCellError, make_plan, parse_cell
from conformance.spec.external_callbacks import EXTERNAL_CALLBACKS
from conformance.spec.topology import Topology
from conformance.spec.xla_flags import QUICK_COMPILATION, known, why_unknown
from conformance.worker.processes import worker_environment
from conformance.worker.transport import last_words

ONE = Topology("cpu", 1)
LEVEL, EMITTERS, ONE_MODULE, UNTILED = QUICK_COMPILATION
OLD_EMITTERS = (LEVEL, EMITTERS, ONE_MODULE)
installed = importlib.metadata.version


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the installed JAX and jaxlib look like another release."""

    def pretend(version: str) -> None:
        versions = {"jax": version, "jaxlib": version}
        monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or installed(name))

    return pretend


@pytest.mark.parametrize(
    ("jaxlib", "quick", "collective"),
    [
        ("0.4.31", (LEVEL,), False),
        ("0.5.0", (LEVEL, ONE_MODULE), False),
        ("0.5.3", OLD_EMITTERS, False),
        ("0.7.2", OLD_EMITTERS, False),
        ("0.8.0", OLD_EMITTERS, True),
        ("0.11.0", OLD_EMITTERS, True),
        ("0.11.1", (LEVEL, ONE_MODULE, UNTILED), True),
        ("0.13.0.dev20261122", (LEVEL, ONE_MODULE, UNTILED), True),
    ],
)
def test_flags_by_version(jaxlib: str, quick: tuple[str, ...], collective: bool, release: Any) -> None:
    assert known(QUICK_COMPILATION, jaxlib) == quick
    assert known(COLLECTIVE_TIMEOUT_FLAGS, jaxlib) == (COLLECTIVE_TIMEOUT_FLAGS if collective else ())
    why = why_unknown(COLLECTIVE_TIMEOUT_FLAGS, jaxlib)
    assert why is None if collective else why and why.startswith(f"the XLA of jaxlib {jaxlib} has no --xla_cpu_")
    release(jaxlib)
    flags = worker_environment(ONE, (), {})["XLA_FLAGS"].split()
    assert flags == ["--xla_force_host_platform_device_count=1", *quick]


def test_what_the_user_asks_of_xla_is_asked(release: Any) -> None:
    """An unknown flag of the user's is not swallowed."""
    release("0.5.0")
    assert EMITTERS in worker_environment(ONE, (), {"XLA_FLAGS": EMITTERS})["XLA_FLAGS"].split()


@pytest.mark.parametrize("stamp", ["2026-11-22 10:29:06.969619: F external/xla/xla/", "F1122 10:29:06.575088   12137 "])
def test_the_words_of_xla_are_kept_when_a_worker_does_not_start(stamp: str) -> None:
    """They name the flag, by which the next worker is started without it."""
    log = f"{stamp}parse_flags_from_env.cc:226] Unknown flags in XLA_FLAGS: --xla_none=1\nFatal Python error: Aborted\n"
    words = last_words(
        f'{log}\nCurrent thread 0x00007fa16ea62b80 (most recent call first):\n  File "/some.py", line 78\n'
    )
    assert "--xla_none=1" in words
    assert "Fatal Python error: Aborted" in words


def reasons(part: str) -> set[str]:
    """Why cells with this in their id are not planned; none of them may be."""
    plan = make_plan(["jax"], [Topology("cpu", 8)])
    assert not [cell.id for cell in plan.cells if part in cell.id]
    return {cell.reason for cell in plan.ineligible if part in cell.id}


def test_faults_that_need_flags_are_not_applicable(release: Any) -> None:
    release("0.7.0")
    (reason,) = reasons("case.raises_before_collective.")
    assert reason.startswith("the XLA of jaxlib 0.7.0 has no --xla_cpu_collective_call_")
    with pytest.raises(UnknownCellError, match=r"means nothing: the XLA of jaxlib 0\.7\.0"):
        parse_cell("jax/io_callback/case.raises_before_collective.shard_map/cpu-8dev")


@pytest.mark.parametrize("name", ["build_ffi_lowering_function", "register_lowering"])
def test_runtime_targets_that_cannot_be_lowered_to_are_not_applicable(name: str, monkeypatch: Any) -> None:
    if name == "register_lowering":
        # As up to JAX 0.5.
        monkeypatch.setattr(mlir, name, lambda prim, rule, platform=None: None)
    else:
        monkeypatch.delattr(jax.ffi, name)
    for target in RUNTIME_TARGETS:
        (reason,) = reasons(f"/{target}/")
        assert name in reason
        assert jax.__version__ in reason
        with pytest.raises(UnknownCellError, match=name):
            parse_cell(f"jax/{target}/case.short_result.jit/cpu-8dev")


@pytest.mark.parametrize(("kind", "function"), [("explicit_mesh", "set_mesh"), ("without_tracing", "no_tracing")])
def test_faults_that_need_a_function_are_not_applicable(
    kind: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(jax, function)
    assert reasons(f"/case.{kind}.") == {f"JAX {jax.__version__} has no jax.{function}"}


@pytest.mark.parametrize(
    ("function", "callback", "lacking"),
    [
        # Before `partitioned=` JAX gave it to the callback, which failed for it.
        ("callback", "debug_callback_partitioned", "debug.callback(partitioned=...)"),
        # By its text the suite knows what was printed.
        ("print", "debug_print_ordered", "debug.print of text"),
    ],
)
def test_what_debug_functions_lack(function: str, callback: str, lacking: str, monkeypatch: Any) -> None:
    (found,) = (one for one in EXTERNAL_CALLBACKS if one.name == callback)
    assert JAX.lacks(found) is None

    def old(first: Any, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
        raise TypeError(f"Argument {first!r} is not a valid JAX type")

    monkeypatch.setattr(jax.debug, function, old)
    assert JAX.lacks(found) == f"{lacking} in {jax.__version__}"


ENTRY = """\
[[expect]]
cells = "jax/pure_callback/jit/cpu-1dev"
verdict = "fail"
reason = "Planted."
link = "none"
since = "2026-11-22"
"""


@pytest.mark.contract("C7")
def test_known_failures_are_those_of_supported_releases(release: Any, tmp_path: Path, capsys: Any) -> None:
    def known(*named: str) -> int:
        cell = ["run", "--cell", "jax/pure_callback/jit/cpu-1dev", "--results", "none"]
        return len(prepare(RunOptions.of(commands.parsed([*cell, *named])))._report.expectations.entries)

    release("0.10.2")
    assert known() > 0
    assert "NOTE" not in capsys.readouterr().err
    release("0.7.0")
    assert known() == 0
    assert capsys.readouterr().err == "NOTE: known failures are listed for JAX >=0.10.2, none for 0.7.0\n"
    # A file that somebody names is about what they run.
    (tmp_path / "mine.toml").write_text(ENTRY)
    assert known("--expectations", str(tmp_path / "mine.toml")) == 1
