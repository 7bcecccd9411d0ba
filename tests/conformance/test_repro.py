"""Programs of one cell: those that import the suite, and those that import nothing of it and give the same verdict.

Most run inside this process, on its devices: the environment that a program sets is without effect then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from suite_runs import Capture, ran
from support import sessions

from conformance.cli.commands import main
from conformance.cli.repro import program
from conformance.implementations import load
from conformance.oracle.history import Recorder
from conformance.planning.cells import Plan, ProgramCell, parse_cell
from conformance.standalone.programs import standalone_program
from conformance.worker.cells import run_cell

pytestmark = pytest.mark.contract("C5")

PASSING = "jax/io_callback_ordered/scan/cpu-1dev"
KNOWN_FAILURE = "jax/io_callback/grad.scan.detached/cpu-2dev"


def test_a_program_with_the_suite(tmp_path: Path, capsys: Capture) -> None:
    """It brings its own platform and devices, against what is inherited."""
    cell_id, file = "hostcb/id_tap_device/pmap.scan/cpu-2dev", tmp_path / "cell.py"
    assert main(["repro", cell_id, "--program", str(file)]) == 0
    assert capsys.readouterr().out == f"python -m conformance run --cell {cell_id}\n"
    inherited = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "nonesuch"}
    ended = ran(tmp_path, sys.executable, file, **inherited)
    assert ended.returncode == 0, ended.stderr
    *events, last = ended.stdout.splitlines()
    assert last == f"{cell_id}: pass"
    assert {json.loads(event)["device"] for event in events} == {0, 1}
    # A case may need flags of its own. It says what must hold.
    text = program(parse_cell("hostcb/call/case.raises_before_collective.pmap/cpu-8dev"))
    words = "=8 --xla_cpu_collective_call_warn_stuck_timeout"
    assert words in text and text.index("os.environ") < text.index("from conformance")
    assert "\n\nOne device fails while its peers wait for it in a collective: the program ends with that f" in text


# Without the suite.


@pytest.fixture(autouse=True, scope="module")
def _devices_of_this_process(devices: list[jax.Device]) -> None:
    """They are made before a program sets another number of them."""


@contextlib.contextmanager
def as_a_process() -> Iterator[io.StringIO]:
    """What a program changes in its process is changed back; gives what it prints."""
    environment, streams, later = dict(os.environ), (sys.stdout, sys.__stdout__), faulthandler.dump_traceback_later
    settings = {name: jax.config.values[name] for name in ("jax_enable_x64", "jax_use_shardy_partitioner")}
    printed = io.StringIO()
    sys.stdout = sys.__stdout__ = printed  # type: ignore[misc,assignment]
    faulthandler.dump_traceback_later = lambda *_, **__: None
    try:
        yield printed
    finally:
        sys.stdout, sys.__stdout__ = streams  # type: ignore[misc]
        faulthandler.dump_traceback_later = later
        os.environ.clear()
        os.environ.update(environment)
        for name, value in settings.items():
            jax.config.update(name, value)


def verdict(text: str) -> str:
    """Run a program: `pass`, or the kind of the first anomaly that it prints."""
    with as_a_process() as printed:
        try:
            exec(compile(text, "cell.py", "exec"), {"__name__": "__main__"})
        except SystemExit as ended:
            if not ended.code:
                return "pass"
            shown = ended.code if isinstance(ended.code, str) else printed.getvalue()
            return shown.partition(":")[0]
        except Exception:
            return "error"
    raise AssertionError("a program ends with SystemExit")


def both_verdicts(cell: ProgramCell) -> tuple[str, str]:
    """That of the cell's program, and that of the suite."""
    devices = jax.devices()[: cell.topology.device_count]
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    with as_a_process():
        outcome = run_cell(cell, load(cell.implementation), recorder, devices)
    return verdict(standalone_program(cell)), outcome.anomaly.replace("unsupported", "error") or "pass"


def test_programs_have_the_verdicts_of_their_cells(cpu_plan: Plan) -> None:
    cells = [cell for cell in cpu_plan.cells if isinstance(cell, ProgramCell) and cell.callback.function != "id_print"]
    for cell in random.Random(0).sample(cells, sessions.rounds(12, 200)):
        own, of_suite = both_verdicts(cell)
        assert own == of_suite, cell.id
    for cell_id, kind in {
        "hostcb/call_device/pmap/cpu-2dev": "pass",
        KNOWN_FAILURE: "lost",
        "jax/pure_callback/jit+typed_key-scalar-one/cpu-1dev": "error",
        "jax/buffer_callback_side_effect/pjit/cpu-8dev": "wrong refusal",
    }.items():
        chosen = parse_cell(cell_id)
        assert isinstance(chosen, ProgramCell)
        assert both_verdicts(chosen) == (kind, kind)


BARRIER = "BARRIER"
"""The program's call of the barrier."""

RECORDING = "    calls.append((site, np.asarray(x).tolist()))"
UNUSED = '    callback("unused", x * 4 + 3)\n'
FUNCTION = "def function(x):"
REFUSING = f"{FUNCTION}\n    raise NotImplementedError"
TWICE = f"{RECORDING}\n    if site == 'unused':\n    {RECORDING}"


@pytest.mark.parametrize(
    ("cell_id", "before", "after", "kind"),
    [
        (PASSING, UNUSED, "", "lost"),
        (PASSING, UNUSED, UNUSED.replace("3", "2"), "wrong operand"),
        (PASSING, BARRIER, "BARRIER; calls[:2] = calls[1::-1]", "order"),
        (PASSING, "return total", "return total + 1", "result"),
        (PASSING, BARRIER, "BARRIER; calls[3:4] = calls[:1]", "stale operand"),
        ("jax/pure_callback/jit/cpu-1dev", RECORDING, TWICE, "pass"),
        ("jax/debug_callback/vmap.cond/cpu-1dev", BARRIER, "BARRIER; calls += calls", "duplicate"),
        ("hostcb/call_device/pmap/cpu-2dev", "device.id", "1 - device.id", "wrong device"),
        ("hostcb/id_tap/vmap/cpu-1dev", "*transforms))", "*transforms * 2))", "wrong transforms"),
        ("hostcb/call/jit+int8-vector-pair/cpu-1dev", "plus(1, 1)", "plus(1, 2)", "wrong operand"),
        ("hostcb/call/vmap/cpu-1dev", ", result_shape", ', vmap_method="sequential", result_shape', "not refused"),
        ("hostcb/call/vmap/cpu-1dev", FUNCTION, REFUSING, "refusal without a way out"),
    ],
)
def test_a_program_names_what_goes_wrong(cell_id: str, before: str, after: str, kind: str) -> None:
    text = standalone_program(parse_cell(cell_id))
    (barrier,) = re.findall(r"^(?:jax.effects_barrier|hostcb.barrier_wait)\(\)$", text, re.MULTILINE) or [""]
    before, after = (part.replace(BARRIER, barrier) for part in (before, after))
    assert text.count(before) == 1, text
    assert verdict(text.replace(before, after)) == kind


def test_a_printed_program_is_a_bug_report(tmp_path: Path, capsys: Capture) -> None:
    """In a process that can import neither hostcb nor the suite."""
    assert main(["repro", "--standalone", KNOWN_FAILURE]) == 0
    without = "import sys\nsys.modules['hostcb'] = sys.modules['conformance'] = None\n"
    ended = ran(tmp_path, sys.executable, "-c", without + capsys.readouterr().out, XLA_FLAGS="")
    assert ended.returncode == 1, ended.stderr
    assert "lost: ('unused', 15.0)" in ended.stdout.splitlines()
    for cell_id in ("hostcb/call/case.raises.jit/cpu-2dev", "hostcb/id_print/jit/cpu-1dev", "nonsense"):
        assert main(["repro", cell_id, "--standalone"]) == 2
        assert capsys.readouterr().err.startswith("ERROR: ")
