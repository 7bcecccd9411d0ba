"""Programs of cells that import nothing of the suite: they run, and give the verdicts of their cells.

Most run inside this process, on its devices: the environment that a program sets is without effect then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from suite_runs import python

from conformance.cli.commands import main
from conformance.implementations import callbacks_of, load
from conformance.model.transforms import TRANSFORMS
from conformance.oracle.history import Recorder
from conformance.planning.cells import ProgramCell, UnknownCellError, parse_cell
from conformance.planning.selection import CPU_DEVICE_COUNTS, plan_of
from conformance.spec.callbacks import Callback
from conformance.spec.configurations import CONTEXTS, PLACEMENTS
from conformance.spec.data import ELEMENT_TYPES, SHAPES, STRUCTURES
from conformance.standalone.programs import standalone_program
from conformance.worker.execution import run_cell

pytestmark = pytest.mark.contract("C5")

PASSING = "jax/io_callback_ordered/scan/cpu-1dev"
KNOWN_FAILURE = "jax/io_callback/grad.scan.detached/cpu-2dev"


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


def of(cell_id: str) -> str:
    return standalone_program(parse_cell(cell_id))


def verdict_of_suite(cell: ProgramCell) -> str:
    devices = jax.devices()[: cell.topology.device_count]
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    with as_a_process():
        outcome = run_cell(cell, load(cell.implementation), recorder, devices)
    return outcome.anomaly.replace("unsupported", "error") or "pass"


# Every callback, transform, element type, shape, structure, placement and configuration -------------------------------


def written_out(implementation: str) -> list[Callback]:
    """The callbacks of which there are programs."""
    return [one for one in callbacks_of(implementation) if one.function != "id_print"]


def samples() -> Iterator[str]:
    """Cells that pass, so many that each value of each axis is in some; transforms stand with different callbacks."""
    for implementation in ("hostcb", "jax"):
        transforms = [name for name in TRANSFORMS if name != "detached"]
        callbacks = [one for one in written_out(implementation) if implementation == "hostcb" or not one.parts]
        for place, callback in enumerate(callbacks):
            turned = transforms[place % len(transforms) :] + transforms[: place % len(transforms)]
            # JAX refuses ordered debug callbacks on several devices, and may hang where one of several calls back.
            count = 1 if implementation == "jax" else 2
            cells = (f"{implementation}/{callback.name}/{name}/cpu-{count}dev" for name in turned)
            yield next(cell_id for cell_id in cells if meaningful(cell_id))
    for name in TRANSFORMS:
        yield f"hostcb/id_tap/{'jvp.' if name == 'detached' else ''}{name}/cpu-2dev"
    for place, element in enumerate(ELEMENT_TYPES.values()):
        shape, structure = list(SHAPES)[place % len(SHAPES)], list(STRUCTURES)[place % len(STRUCTURES)]
        callback_name = ("call", "id_tap_result", "io_callback", "call_expand_dims", "id_tap_tree")[place % 5]
        yield f"hostcb/{callback_name}/jit+{element.name}-{shape}-{structure}/cpu-1dev{'+x64' * element.wide}"
    for placement in PLACEMENTS:
        yield f"hostcb/id_tap_device/shard_map/cpu-8dev{'+' + placement if placement != 'all' else ''}"
    for configuration in CONTEXTS:
        yield f"jax/io_callback_ordered/scan/cpu-1dev+{configuration}"


def meaningful(cell_id: str) -> bool:
    try:
        parse_cell(cell_id)
    except UnknownCellError:
        return False
    return True


def of_new_values() -> Iterator[str]:
    """The samples that have a value of an axis which those before them do not have."""
    seen: set[object] = set()
    for cell_id in samples():
        cell = parse_cell(cell_id)
        assert isinstance(cell, ProgramCell)
        data = (cell.data.element, cell.data.shape, cell.data.structure)
        values = {*cell.program.names, *data, cell.placement, cell.configuration}
        values.add((cell.implementation, cell.callback.name))
        if not values <= seen:
            yield cell_id
        seen |= values


SAMPLES = [
    *of_new_values(),
    *("hostcb/id_tap/pjit.vmap.pmap/cpu-2dev", "hostcb/call_device/pmap/cpu-4dev+part"),
    *("hostcb/debug_callback/vmap+int8-matrix-many/cpu-1dev", "jax/debug_print/scan+int16-large-one/cpu-1dev"),
    # Here each leaf is a separate operand.
    "jax/pure_callback/jit+int8-vector-many/cpu-1dev",
    *(f"hostcb/{one}/jit+float32-vector-many/cpu-1dev" for one in ("buffer_callback", "dlpack_callback")),
]


@pytest.mark.parametrize("cell_id", SAMPLES)
def test_a_program_passes_as_its_cell_does(cell_id: str) -> None:
    assert verdict(of(cell_id)) == "pass"


@pytest.mark.parametrize(
    ("cell_id", "kind"),
    [
        (KNOWN_FAILURE, "lost"),
        ("jax/debug_callback_ordered/pmap/cpu-8dev", "error"),
        ("jax/pure_callback/jit+typed_key-scalar-one/cpu-1dev", "error"),
        ("jax/buffer_callback_side_effect/pjit/cpu-8dev", "wrong refusal"),
    ],
)
def test_a_program_fails_as_its_cell_does(cell_id: str, kind: str) -> None:
    cell = parse_cell(cell_id)
    assert isinstance(cell, ProgramCell)
    assert verdict(of(cell_id)) == verdict_of_suite(cell) == kind


def planned() -> list[ProgramCell]:
    plan = plan_of(("hostcb", "jax"), "cpu", CPU_DEVICE_COUNTS)
    cells = [cell for cell in plan.cells if isinstance(cell, ProgramCell)]
    return [cell for cell in cells if cell.callback in written_out(cell.implementation)]


@pytest.mark.thorough
def test_planned_programs_compile() -> None:
    for cell in planned():
        compile(standalone_program(cell), cell.id, "exec")


@pytest.mark.thorough
def test_planned_programs_have_the_verdicts_of_their_cells() -> None:
    chosen = random.Random(0).sample(planned(), 60)
    found = {cell.id: (verdict(standalone_program(cell)), verdict_of_suite(cell)) for cell in chosen}
    assert {cell_id: pair for cell_id, pair in found.items() if pair[0] != pair[1]} == {}


# What a program notices -----------------------------------------------------------------------------------------------


def changed(text: str, before: str, after: str) -> str:
    (barrier,) = re.findall(r"^(?:jax.effects_barrier|hostcb.barrier_wait)\(\)$", text, re.MULTILINE) or [""]
    before, after = (part.replace(BARRIER, barrier) for part in (before, after))
    assert text.count(before) == 1, text
    return text.replace(before, after)


BARRIER = "BARRIER"
"""The program's call of the barrier."""

RECORDING = "    calls.append((site, np.asarray(x).tolist()))"
FUNCTION = "def function(x):"
REFUSING = f"{FUNCTION}\n    raise NotImplementedError"
TWICE = f"{RECORDING}\n    if site == 'unused':\n    {RECORDING}"


@pytest.mark.parametrize(
    ("cell_id", "before", "after", "kind"),
    [
        (PASSING, '    callback("unused", x * 4 + 3)\n', "", "lost"),
        (PASSING, RECORDING, TWICE, "duplicate"),
        (PASSING, '    callback("unused", x * 4 + 3)\n', '    callback("unused", x * 4 + 2)\n', "wrong operand"),
        (PASSING, '    callback("unused"', '    callback("unasked", x)\n    callback("unused"', "unexpected"),
        (PASSING, BARRIER, "BARRIER; calls[:2] = calls[1::-1]", "order"),
        (PASSING, "return total", "return total + 1", "result"),
        (PASSING, BARRIER, "BARRIER; calls[3:4] = calls[:1]", "stale operand"),
        (PASSING.replace("1dev", "1dev+x64"), "(site, show(x))", "(site, show(np.float64(x)))", "wrong operand"),
        ("jax/pure_callback/jit/cpu-1dev", RECORDING, TWICE, "pass"),
        ("jax/pure_callback/jit/cpu-1dev", BARRIER, "BARRIER; calls.clear()", "lost"),
        ("jax/debug_callback/vmap.while_cond/cpu-1dev", BARRIER, "BARRIER; calls += calls", "pass"),
        ("jax/debug_callback/vmap.cond/cpu-1dev", BARRIER, "BARRIER; calls += calls", "duplicate"),
        ("hostcb/call_device/pmap/cpu-2dev", "device.id", "1 - device.id", "wrong device"),
        ("hostcb/call/pmap/cpu-2dev", BARRIER, "BARRIER; calls.reverse()", "order"),
        ("hostcb/id_tap_device/vmap/cpu-1dev", BARRIER, "BARRIER; calls.reverse()", "order"),
        ("hostcb/id_tap/vmap/cpu-1dev", "*transforms))", "*transforms * 2))", "wrong transforms"),
        ("hostcb/call/jit+int8-vector-pair/cpu-1dev", "plus(1, 1)", "plus(1, 2)", "wrong operand"),
        ("hostcb/call/vmap/cpu-1dev", ", result_shape", ', vmap_method="sequential", result_shape', "not refused"),
        ("hostcb/call/vmap/cpu-1dev", "def function(x):", "def function(x):\n    1 / 0", "wrong refusal"),
        ("hostcb/call/vmap/cpu-1dev", FUNCTION, REFUSING, "refusal without a way out"),
        (PASSING, "def function(x):", "def function(x):\n    1 / 0", "error"),
    ],
)  # fmt: skip
def test_a_program_names_what_goes_wrong(cell_id: str, before: str, after: str, kind: str) -> None:
    assert verdict(changed(of(cell_id), before, after)) == kind


# The command ----------------------------------------------------------------------------------------------------------


def test_a_printed_program_is_a_bug_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process that can import neither hostcb nor the suite."""
    assert main(["repro", "--standalone", KNOWN_FAILURE]) == 0
    file = tmp_path / "cell.py"
    file.write_text(f"import sys\nsys.modules['hostcb'] = sys.modules['conformance'] = None\n{capsys.readouterr().out}")
    ended = python(tmp_path, file.name, XLA_FLAGS="")
    assert ended.returncode == 1, ended.stderr
    assert "lost: ('unused', 15.0)" in ended.stdout.splitlines()


@pytest.mark.parametrize(
    "cell_id",
    [
        "hostcb/call/case.raises.jit/cpu-2dev",
        "hostcb/io_callback/table.vmap/cpu-2dev",
        "conformance.mutants:late/id_tap/jit/cpu-8dev",
        "hostcb/id_print/jit/cpu-1dev",
        "nonsense",
    ],
)
def test_cells_without_a_standalone_program(cell_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", cell_id, "--standalone"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR: ")
