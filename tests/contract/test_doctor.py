"""H21: the doctor's report tells the devices of each platform apart."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._compat import extend
from hostcb._compat.registry import Cost, Entry

pytestmark = pytest.mark.contract("H21")

RUN = "import runpy; runpy.run_module('hostcb', run_name='__main__')"
TRANSPORTS = ("callbacks read the device's memory", "one of its devices calls", "without a copy")
DEVICES = {"cpu": ["first", "second"], "cuda": ["third"], "tpu": []}


def test_each_platform_has_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = {name: SimpleNamespace(platform_version=f"version of {name}") for name in DEVICES}

    def local_devices(*_: Any, backend: str = "cpu") -> list[str]:
        return DEVICES[backend]

    monkeypatch.setattr(extend, "backends", lambda: clients)
    monkeypatch.setattr(jax, "local_devices", local_devices)
    lines = str(hcb.doctor()).splitlines()
    for line in (
        "  cpu, version of cpu: first, second",
        "  cuda, version of cuda: third",
        "  tpu, version of tpu: no devices",
    ):
        assert line in lines


def test_on_a_supported_jax_nothing_is_lost_and_the_module_prints_the_same(devices: list[jax.Device]) -> None:
    report, text = hcb.doctor(), str(hcb.doctor())
    assert report.complete and not report.lost and "that hostcb uses are as it expects" in text
    for word in (f"JAX {jax.__version__}", f"NumPy {np.__version__}", *TRANSPORTS):
        assert word in text
    assert all(str(device) in text for device in devices)
    assert "\nthe native extension: " in text and "not imported yet" not in text
    printed = run_program(RUN, "--all").check().lines
    states = [line for line in text.splitlines() if line.startswith("  jax")]
    assert len(states) >= 20 and states == [line for line in printed if line.startswith("  jax")]


def test_the_module_prints_the_most_important_of_it() -> None:
    lines = run_program(RUN, devices=2).check().lines
    assert len(lines) <= 10 and f"JAX {jax.__version__}" in lines[0]
    for part in (
        "cpu:0, cpu:1",
        "the native extension: ",
        "JAX's callbacks: ",
        "that hostcb uses are as it expects",
        "--all",
    ):
        assert sum(part in line for line in lines) == 1, lines


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--al", 2), ("everything", 2)])
def test_the_module_explains_itself_and_refuses_what_it_does_not_know(option: str, code: int) -> None:
    ended = run_program(RUN, option)
    assert ended.returncode == code, ended
    assert "usage: python -m hostcb" in (ended.stderr if code else ended.stdout)
    assert code == 0 or option in ended.stderr.splitlines()[-1]


def test_a_reader_that_wants_no_more_is_not_an_error() -> None:
    """As `head`: the pipe of the output is closed."""
    closed = "import os; read, write = os.pipe(); os.close(read); os.dup2(write, 1)"
    ended = run_program(f"{closed}\n{RUN}", "--all")
    assert (ended.returncode, ended.stderr) == (0, ""), ended


def test_parts_of_modules_that_nobody_has_imported_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("sched:scheduler", "A use.", "A consequence.", ("H21",), Cost.COMFORT, deferred=True)
    monkeypatch.setattr(importlib.import_module("hostcb._api.doctor"), "entries", [entry])
    assert "  sched:scheduler: holds" in str(hcb.doctor()).splitlines()


def test_a_package_without_metadata_does_not_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that was frozen into one file."""

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert f"with JAX {jax.__version__}, jaxlib of unknown version," in str(hcb.doctor()).splitlines()[0]
