"""H26: taps of CUDA devices that are handed over in C, with a stand-in for the driver, since CI has no GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import sessions
from support import stand_in_for_cuda as stand_in
from support.subprocesses import Ended, run_program

from hostcb import _compat
from hostcb._native.library import library

pytestmark = [
    pytest.mark.contract("H26"),
    pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}"),
]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in has the name of a library of Linux")

ASKED_FOR = {"HOSTCB_NATIVE": "1", "HOSTCB_NATIVE_CUDA": "1"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    reason = stand_in.packaging().lacks()
    if reason is not None:
        pytest.skip(f"the stand-in cannot be compiled: {reason}")
    return str(stand_in.compiled(tmp_path_factory.mktemp("driver")))


SCENARIOS = {
    "values": (1, "contents order large_values traced nested raising stopped dropped_program per_device forked"),
    "room": (1, "full_ring small_budget script_for_gpus"),
    "streams": (4, "out_of_order threads"),
    "failures": (1, "failures"),
    "broken": (1, "broken_stream"),
}
"""The streams of a device, and functions of programs/taps_on_streams.py, which share a process."""


@on_linux
@pytest.mark.contract("H5", "H11", "H12", "H14")
@pytest.mark.parametrize("which", SCENARIOS)
def test_taps_on_streams(which: str, driver: str) -> None:
    streams, text = SCENARIOS[which]
    names = text.split()
    steps = {"STEPS": str(sessions.rounds(3_000, 30_000))} if which == "streams" else {}
    ended = run_program(
        *("taps_on_streams.py", driver, str(streams), *names), devices=2, env={**ASKED_FOR, **steps}, timeout=120
    )
    assert ended.check().lines == [f"{name} holds" for name in names], str(ended)


WITHOUT_DRIVER = """
import sys; from support import stand_in_for_cuda as stand_in
with stand_in.installed(sys.argv[1]):
    try:
        print(jax.jit(lambda x: hcb.id_tap(print, x))(1.0))
    except jax.errors.JaxRuntimeError as error:
        print(json.dumps(str(error)))
"""


@on_linux
@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
@pytest.mark.usefixtures("driver")
def test_without_a_driver(tmp_path: Path) -> None:
    path = stand_in.compiled(tmp_path, is_driver=False)
    error = run_program(WITHOUT_DRIVER, str(path), devices=1, env=ASKED_FOR, timeout=60).json()
    assert "hostcb: CUDA's driver cannot be opened: libcuda.so.1: cannot open shared object file" in error


LOWERED = """
from hostcb import _compat
from hostcb._native.cuda import cuda
if "told" in sys.argv:
    # As the plugin of CUDA gives it.
    _compat.cuda_python_handler = lambda: 1
jax.devices()
from conformance.worker.private_jax import lowering_for

def tapped(x):
    return hcb.id_tap(lambda *_: None, (x, x + 1))[0]

def text(program, *operands):
    with lowering_for("cuda"):
        return jax.jit(program).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()

mesh = Mesh(np.array(jax.devices()[:2]), "d")
spread = jax.shard_map(tapped, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
texts = {
    "small": text(tapped, 1.0),
    "large": text(tapped, np.zeros(1 << 15, np.float32)),
    "shard_map": text(spread, jax.ShapeDtypeStruct((2,), np.float32, sharding=NamedSharding(mesh, P("d")))),
    "call": text(lambda x: hcb.call(lambda v: v, x, result_shape=x), 1.0),
}
line = next(line.strip() for line in str(hcb.doctor()).splitlines() if "on CUDA" in line)
print(json.dumps([texts, line]))
"""
TODAYS = "xla_ffi_python_gpu_callback"


def lowered(*arguments: str, env: dict[str, str]) -> tuple[dict[str, str], str]:
    ended: Ended = run_program(LOWERED, *arguments, devices=2, env=env, timeout=60)
    texts, line = ended.json()
    return texts, line


@pytest.fixture(scope="module")
def by_default() -> tuple[dict[str, str], str]:
    return lowered("told", env={"HOSTCB_NATIVE": "1"})


def test_it_is_off_unless_the_environment_asks_for_it(by_default: tuple[dict[str, str], str]) -> None:
    texts, line = by_default
    for text in texts.values():
        assert f"@{TODAYS}(" in text and "hostcb_cuda_tap" not in text
    assert line == (
        "on CUDA: taps are handed over in Python; taps in C are off: one model of GPU alone has run it; "
        "HOSTCB_NATIVE_CUDA=1 turns it on"
    )


def test_what_is_lowered_where_the_environment_asks_for_it(by_default: tuple[dict[str, str], str]) -> None:
    before, _ = by_default
    texts, line = lowered("told", env=ASKED_FOR)
    assert line == "on CUDA: taps are handed over in C, which one model of GPU alone has run"
    for name in ("small", "shard_map"):
        (call,) = [each for each in texts[name].splitlines() if "stablehlo.custom_call @hostcb_cuda_tap(" in each]
        for part in ("has_side_effect = true", "index = 0 : ui64", "!stablehlo.token"):
            assert part in call, call
        assert TODAYS not in texts[name]
        # The position in the mesh is not asked for: C receives the device.
        assert "partition_id" not in texts[name]
    assert {name: texts[name] for name in ("large", "call")} == {name: before[name] for name in ("large", "call")}


@pytest.mark.skipif(_compat.cuda_python_handler() is None, reason="the plugin of CUDA is not installed")
def test_with_the_plugin_it_is_used() -> None:
    texts, line = lowered(env=ASKED_FOR)
    assert "@hostcb_cuda_tap(" in texts["small"]
    assert line == "on CUDA: taps are handed over in C, which one model of GPU alone has run"


@pytest.mark.skipif(_compat.cuda_python_handler() is not None, reason="the plugin of CUDA is installed")
def test_without_the_plugin_it_is_not_used(by_default: tuple[dict[str, str], str]) -> None:
    texts, line = lowered(env=ASKED_FOR)
    assert texts == by_default[0]
    assert "taps in C are off: no plugin of JAX for CUDA gives its handler of Python callbacks" in line


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"HOSTCB_NATIVE": "0", "HOSTCB_NATIVE_CUDA": "1"}, "the library in C is not in use: HOSTCB_NATIVE turns"),
        (
            {"HOSTCB_NATIVE": "1", "HOSTCB_NATIVE_CUDA": "0"},
            "one model of GPU alone has run it; HOSTCB_NATIVE_CUDA=1 turns",
        ),
    ],
)
def test_what_else_turns_it_off(env: dict[str, str], words: str) -> None:
    program = "from hostcb._native.cuda import cuda\nprint(json.dumps([cuda.is_ready(), cuda.problem]))"
    ready, problem = run_program(program, devices=None, env=env).json()
    assert not ready and problem.startswith(words)


def test_a_variable_that_is_no_truth_value_is_refused() -> None:
    ended = run_program("", devices=None, env={"HOSTCB_NATIVE_CUDA": "perhaps"})
    words = "ValueError: HOSTCB_NATIVE_CUDA must be a truth value such as 1, 0, true or false, got 'perhaps'."
    assert ended.returncode == 1 and words in ended.stderr


def test_a_runtime_that_refuses_it() -> None:
    text = """
def refuses(*args, **options):
    if options.get("platform") == "CUDA":
        raise RuntimeError("the version of its interface is too old")
    return register(*args, **options)
register, jax.ffi.register_ffi_target = jax.ffi.register_ffi_target, refuses
"""
    texts, line = json.loads(
        run_program(text + LOWERED, "told", devices=2, env=ASKED_FOR, timeout=60).check().lines[-1]
    )
    assert "hostcb_cuda_tap" not in texts["small"]
    assert "taps in C are off: JAX refuses it: the version of its interface is too old" in line
