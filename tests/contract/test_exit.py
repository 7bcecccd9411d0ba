"""H17: what was started runs before the process ends, however it ends; a pure callback that runs ends before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.subprocesses import run_program

LAYOUTS = {
    "one_device": """
x = np.ones(1 << 12, np.float32)
program = jax.jit(lambda x: call(x) * 2)
""",
    "mesh": """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.ones(1 << 12, np.float32), NamedSharding(mesh, P("d")))
program = jax.jit(call)
""",
    "explicit mesh": """
jax.set_mesh(jax.make_mesh((4,), "d", axis_types=(jax.sharding.AxisType.Explicit,)))
x = jax.device_put(np.ones(1 << 12, np.float32), jax.sharding.PartitionSpec("d"))
program = jax.jit(call)
""",
    "pmap": """
x = np.ones((4, 1 << 10), np.float32)
program = jax.pmap(call)
""",
    "shard_map": """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.ones(1 << 12, np.float32), NamedSharding(mesh, P("d")))
program = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
""",
}
CALLERS = {"one_device": 1, "mesh": 1, "explicit mesh": 1, "pmap": 4, "shard_map": 4}

START = """
entered, last = threading.Event(), threading.Event()
main = threading.main_thread()

def host(array):
    if last.is_set():
        entered.set()
        # In the main thread the program is over before the interpreter ends.
        while main.is_alive() and threading.current_thread() is not main:
            time.sleep(0.01)
        # For as long as this the interpreter ends beside the callback.
        time.sleep(0.3)
        os.write(1, b"ended\\n")
    return np.asarray(array) * 1

def call(x):
    return hcb.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
"""

END = """
for _ in range(int(sys.argv[1])):
    jax.block_until_ready(program(x))
last.set()
program(x)
entered.wait(30)
"""


@pytest.mark.contract("H17")
@pytest.mark.parametrize(
    ("layout", "runs_before"),
    [
        *(("one_device", 0), ("one_device", 2), ("shard_map", 0), ("shard_map", 2)),
        *(("mesh", 2), ("explicit mesh", 0), ("pmap", 2)),
        *(pytest.param(*both, marks=pytest.mark.thorough) for both in (("mesh", 0), ("explicit mesh", 2), ("pmap", 0))),
    ],
)
def test_a_pure_callback_that_runs_at_exit(layout: str, runs_before: int) -> None:
    """JAX dispatches such a program in a way that it tells nobody of, from the second time on."""
    ended = run_program(START + LAYOUTS[layout] + END, str(runs_before), devices=4, timeout=60.0).check()
    assert ended.lines == ["ended"] * CALLERS[layout], f"every callback should have ended: {ended}"
    assert "Error" not in ended.stderr, ended


AT_THE_VERY_END = """
program = eval(sys.argv[1])
x = jnp.float32(1)
jax.block_until_ready(program(x))
hcb.barrier_wait()

class Garbage:
    def __init__(self):
        self.me = self

    def __del__(self, sys=sys):
        print("finalizing", sys.is_finalizing(), flush=True)
        program(x)

# Collected when the interpreter is finalized, and not before.
gc.set_threshold(1_000_000)
Garbage()
"""


@pytest.mark.contract("H17")
@pytest.mark.parametrize(
    "program",
    ["jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))", "lambda x: hcb.call(lambda v: v, x, result_shape=x)"],
    ids=["jit", "eager"],
)
def test_a_program_of_a_finalizer_while_the_interpreter_is_finalized_is_refused(program: str) -> None:
    ended = run_program(AT_THE_VERY_END, program, devices=1, timeout=60.0).check()
    assert ended.lines == ["finalizing True"]
    assert "was started while the Python interpreter is finalized" in ended.stderr


EXIT = """
seen = []
def tap(a, t=None):
    time.sleep(0.002)
    os.write(1, b"tap\\n")  # in one piece, whichever threads write
START
END
"""
IN_THREAD = "t = threading.Thread(target=lambda: WORK, daemon=DAEMON); t.start(); t.join()"
STARTS = {
    "eager": ("[hcb.id_tap(tap, 1.0) for _ in range(80)]", 80),
    "jit": ("p = jax.jit(lambda x: hcb.id_tap(tap, x)); [p(1.0) for _ in range(80)]", 80),
    "pmap": ("p = jax.pmap(lambda x: hcb.id_tap(tap, x)); [p(np.ones(8)) for _ in range(10)]", 80),
    "pmap_call": ("p = jax.pmap(lambda x: hcb.call(tap, x)); [p(np.ones(8)) for _ in range(10)]", 80),
    "thread": (IN_THREAD.replace("WORK", "[hcb.id_tap(tap, 1.0) for _ in range(80)]").replace("DAEMON", "False"), 80),
    "daemon": (
        IN_THREAD.replace("WORK", "jax.pmap(lambda x: hcb.call(tap, x))(np.ones(8))").replace("DAEMON", "True"),
        8,
    ),
    "atexit": ("import atexit; atexit.register(lambda: hcb.id_tap(tap, 1.0))", 1),
    "atexit_jit": ("import atexit; p = jax.jit(lambda x: hcb.id_tap(tap, x)); p(1.0); atexit.register(p, 2.0)", 2),
    "from_a_callback_jit": (
        "p = jax.jit(lambda x: hcb.id_tap(tap, x)); hcb.id_tap(lambda a, t: [p(a) for _ in range(5)], 1.0)",
        5,
    ),
    "from_a_callback_pmap": (
        "p = jax.pmap(lambda x: hcb.id_tap(tap, x)); hcb.id_tap(lambda a, t: [p(np.ones(8)) for _ in range(5)], 1.0)",
        40,
    ),
    "from_a_callback": ("hcb.id_tap(lambda a, t: [hcb.id_tap(tap, a) for _ in range(5)], 1.0)", 5),
}  # fmt: skip
ENDS = {"end": ("", 0), "exit": ("sys.exit(3)", 3), "exception": ("raise ValueError('the end')", 1)}


@pytest.mark.contract("H17")
@pytest.mark.parametrize("start", STARTS)
def test_pending_callbacks_run_before_the_program_ends(start: str) -> None:
    code, count = STARTS[start]
    ended = run_program(EXIT.replace("START", code).replace("END", "")).check()
    assert ended.lines == ["tap"] * count, f"{len(ended.lines)} of {count} callbacks ran: {ended}"
    for noise in ("Exception ignored", "Traceback", "Fatal"):
        assert noise not in ended.stderr, f"the end should be quiet: {ended}"


@pytest.mark.contract("H17")
@pytest.mark.parametrize("end", ENDS)
def test_pending_callbacks_run_however_it_ends(end: str) -> None:
    code, status = ENDS[end]
    ended = run_program(EXIT.replace("START", STARTS["pmap"][0]).replace("END", code))
    assert (ended.returncode, ended.lines) == (status, ["tap"] * 80), f"exit status {status} and 80 taps, but: {ended}"


CLOSED = """
import atexit
file = open(sys.argv[1], "w")
atexit.register(file.close)

@jax.jit
def loop(steps):
    def step(i, x):
        hcb.id_tap(lambda v, t: (time.sleep(0.002), file.write(f"{v}\\n")), i)
        return x + i
    return jax.lax.fori_loop(0, steps, step, 0)

loop(300)
"""


@pytest.mark.contract("H17")
def test_pending_callbacks_run_before_functions_that_were_registered_for_the_exit(tmp_path: Path) -> None:
    """They may close what the callbacks write to: a file, a logger's queue."""
    file = tmp_path / "log"
    run_program(CLOSED, str(file)).check()
    assert file.read_text().split() == [str(i) for i in range(300)]


STARTED_AT_EXIT = """
import atexit
mesh = Mesh(np.array(jax.devices()), "d")
program = jax.jit(jax.shard_map(
    lambda x: hcb.call(lambda v: (os.write(1, b"called\\n"), v)[1], x, result_shape=x),
    mesh=mesh, in_specs=P("d"), out_specs=P("d"),
))
atexit.register(lambda: jax.block_until_ready(program(np.arange(4.0, dtype=np.float32))))
program(np.ones(4, np.float32))
"""


@pytest.mark.contract("H17")
def test_a_function_that_was_registered_for_the_exit_may_run_programs_with_callbacks() -> None:
    ended = run_program(STARTED_AT_EXIT, devices=4).check()
    assert ended.lines == ["called"] * 8, ended
    assert "Error" not in ended.stderr, ended
