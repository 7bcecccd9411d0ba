"""H17: the process ends, with its own exit code, beside threads that go on calling back and functions that hang."""

from __future__ import annotations

import pytest
from support.pairwise import in_turns
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H17")

# The program of a test: `callback(x)` of a kind calls `host`, and `program` calls it in a layout.
MAKE = """
from jax.experimental import io_callback as jax_io
kind, layout, how = sys.argv[1:4]

def filling(context, out, value):
    np.asarray(out)[...] = host(np.asarray(value))

def nothing(value, *transforms):
    host(value)

class Stream:
    def write(self, text):
        host(text)

def callback(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    if kind == "id_tap":
        return hcb.id_tap(nothing, x)
    if kind == "id_print":
        return hcb.id_print(x, output_stream=Stream())
    if kind == "call":
        return hcb.call(host, x, result_shape=like)
    if kind.startswith("debug"):
        hcb.debug.callback(nothing, x, ordered=kind.endswith("ordered"))
        return x
    if kind == "buffer_callback":
        return hcb.buffer_callback(filling, like)(x)
    if kind == "dlpack_callback":
        return hcb.dlpack_callback(host, like)(x)
    if kind == "pure_callback":
        return hcb.pure_callback(host, like, x)
    if kind == "installed":
        return jax_io(host, like, x, ordered=True)
    return hcb.io_callback(host, like, x, ordered=kind.endswith("ordered"))

if kind == "installed":
    hcb.install()
mesh = Mesh(np.array(jax.devices()), "d")
x = jnp.ones(8)
if layout in ("mesh", "shard_map"):
    x = jax.device_put(x, NamedSharding(mesh, P("d")))
program = {
    "eager": callback,
    "jit": jax.jit(callback),
    "mesh": jax.jit(callback),
    "shard_map": jax.jit(jax.shard_map(callback, mesh=mesh, in_specs=P("d"), out_specs=P("d"))),
}[layout]
"""

LOOP = """
begun = threading.Event()

def host(value):
    begun.set()
    time.sleep(0.002)
    return value

def loop(y):
    while True:
        try:
            y = program(y)
            # A program that was compiled before calls another function than `host`.
            begun.set()
        except Exception as error:
            if how == "stops":
                raise
            y = x

threading.Thread(target=loop, args=(x,), daemon=True).start()
begun.wait(30)
"""


LOOPS = [
    ("id_tap", "jit", "stops"),
    ("id_print", "shard_map", "goes_on"),
    ("call", "mesh", "goes_on"),
    ("pure_callback", "jit", "goes_on"),
    ("pure_callback", "shard_map", "stops"),
    ("pure_callback", "eager", "goes_on"),
    ("io_callback", "jit", "stops"),
    ("io_callback_ordered", "eager", "goes_on"),
    ("debug_ordered", "jit", "goes_on"),
    ("buffer_callback", "shard_map", "goes_on"),
    ("dlpack_callback", "mesh", "stops"),
]
FURTHER = [
    ("id_tap", "jit", "goes_on"),
    ("call", "jit", "stops"),
    ("pure_callback", "eager", "stops"),
    ("io_callback", "mesh", "goes_on"),
    ("io_callback_ordered", "jit", "goes_on"),
    ("io_callback_ordered", "shard_map", "stops"),
    ("debug", "shard_map", "stops"),
    ("buffer_callback", "jit", "stops"),
    ("installed", "jit", "goes_on"),
]


@pytest.mark.parametrize(
    ("kind", "layout", "how"), [*LOOPS, *(pytest.param(*loop, marks=pytest.mark.thorough) for loop in FURTHER)]
)
def test_a_daemon_thread_that_calls_back_in_a_loop(kind: str, layout: str, how: str) -> None:
    """It is refused, whether it ends then or tries again; what it has started before runs."""
    devices = 4 if layout in ("mesh", "shard_map") else 1
    run_program(MAKE + LOOP, kind, layout, how, devices=devices, timeout=90.0).check()


@pytest.mark.parametrize("layout", ["jit", "shard_map"])
def test_a_loop_over_a_program_that_the_main_thread_ran_first(layout: str) -> None:
    """JAX dispatches one of pure callbacks in C++ from its second run on, and tells nobody of it."""
    devices = 4 if layout == "shard_map" else 1
    before = "\nhost = lambda value: value\nfor _ in range(3):\n    jax.block_until_ready(program(x))\n"
    run_program(MAKE + before + LOOP, "pure_callback", layout, "goes_on", devices=devices, timeout=90.0).check()


HANG = """
begun = threading.Event()

def host(value):
    begun.set()
    if how == "waits":
        threading.Event().wait()
    while True:
        if how == "polls":
            time.sleep(0.002)

def start():
    result = program(x)
    # Not in `block_until_ready`: jaxlib's wait may take Python's lock after the interpreter's end, and crash.
    threading.Event().wait()

threading.Thread(target=start, daemon=True).start()
begun.wait(30)
"""
ENDS = {
    "normally": ("", 0),
    "timeout": ("hcb.barrier_wait(timeout=0.1)", 1),
    "status": ("sys.exit(3)", 3),
}


@in_turns(
    ("callback", "hanging"),
    ["id_tap jit", "call jit", "call shard_map", "pure_callback mesh", "io_callback shard_map"],
    ["waits timeout", "polls status", "computes normally"],
)
def test_a_function_that_never_returns_is_given_up_and_named(callback: str, hanging: str) -> None:
    (kind, layout), (how, end) = callback.split(), hanging.split()
    devices = 4 if layout in ("mesh", "shard_map") else 1
    text, status = ENDS[end]
    ended = run_program(
        MAKE + HANG + text, kind, layout, how, devices=devices, timeout=90.0, env={"HOSTCB_EXIT_TIMEOUT": "0.5"}
    )
    assert ended.returncode == status, ended
    said = next(line for line in ended.stderr.splitlines() if "these callbacks never finished" in line)
    assert ("nothing" if kind == "id_tap" else "host") in said


IN_VAIN = {
    "timeout": ("hcb.barrier_wait(timeout=0.1)", 1),
    "Ctrl-C": ("threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\nhcb.barrier_wait()", -2),
}


@pytest.mark.parametrize("end", IN_VAIN)
def test_after_a_barrier_has_waited_in_vain_the_exit_says_for_what_and_waits_for_seconds(end: str) -> None:
    text, status = IN_VAIN[end]
    program = f"""
import signal
from hostcb._runtime import exiting
# A process in the background begins with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
exiting.SECONDS_IN_VAIN = 0.5
def hang(value, transforms):
    threading.Event().wait()
jax.jit(lambda x: hcb.id_tap(hang, x))(1.0)
{text}
"""
    ended = run_program(program, devices=1, timeout=60.0)
    assert ended.returncode == status and "these callbacks never finished" in ended.stderr, ended
    said = next(line for line in ended.stderr.splitlines() if "still waiting for" in line)
    assert "hang" in said and said.endswith("An interrupt (Ctrl-C) gives it up.")


def test_functions_that_begin_and_end_are_not_given_up() -> None:
    """Each takes less than the exit's timeout, and all of them together take longer."""
    program = """
tap = jax.jit(lambda x: hcb.id_tap(lambda v, t: (time.sleep(0.2), os.write(1, b"ran\\n")), x))
for _ in range(10):
    tap(1.0)
"""
    ended = run_program(program, devices=1, timeout=60.0, env={"HOSTCB_EXIT_TIMEOUT": "1"}).check()
    assert ended.lines == ["ran"] * 10


QUEUED = """
from hostcb._runtime import exiting
exiting.SECONDS_FOR_DAEMONS = 0.3
tap = jax.jit(lambda x: hcb.id_tap(lambda v, t: (time.sleep(0.05), os.write(1, b"ran\\n")), x))

def start():
    for _ in range(20):
        tap(1.0)

for daemon in sys.argv[1:]:
    thread = threading.Thread(target=start, daemon=daemon == "daemon")
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("threads", [("daemon",), ("other",), ("daemon", "other")], ids=" and ".join)
def test_the_exit_waits_longer_for_what_others_than_daemon_threads_have_started(threads: tuple[str, ...]) -> None:
    ended = run_program(QUEUED, *threads, devices=1, timeout=60.0).check()
    if threads == ("daemon",):
        assert len(ended.lines) < 20 and "these callbacks never finished" in ended.stderr, ended
    else:
        assert ended.lines == ["ran"] * 20 * len(threads), ended


def test_a_pure_callback_of_the_main_thread_ends_before_the_exit() -> None:
    program = """
from hostcb._runtime import exiting
exiting.SECONDS_FOR_DAEMONS = 0.1
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.ones(2, np.float32), NamedSharding(mesh, P("d")))
longer = [0.0]

def host(value):
    time.sleep(longer[0])
    os.write(1, b"ran\\n")
    return value

body = lambda x: hcb.pure_callback(host, x, x)
step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
for _ in range(2):
    jax.block_until_ready(step(x))
longer[0] = 1.0
kept = step(x)
"""
    ended = run_program(program, devices=2, timeout=60.0).check()
    assert ended.lines == ["ran"] * 6, ended


EARLIER = """
import atexit, os

def last():
    os.write(1, b"last\\n")
    program(1.0)

atexit.register(last)
import jax
import hostcb as hcb
program = jax.jit(lambda x: hcb.id_tap(lambda v, t: os.write(1, b"ran\\n"), x))
for _ in range(3):
    program(1.0)
"""


def test_an_exit_function_that_was_registered_before_hostcb_was_imported_may_tap() -> None:
    """It runs after the exit of hostcb, and its value in the thread that exits."""
    ended = run_program(EARLIER, prelude="", devices=1, timeout=60.0, fresh=True).check()
    assert ended.lines[:4] == ["ran"] * 3 + ["last"], ended


def test_the_device_may_compute_for_longer_than_the_timeout() -> None:
    """Only a function of a user hangs."""
    program = """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.ones((2, 256, 256), np.float32), NamedSharding(mesh, P("d")))

def steps(x):
    x = jax.lax.fori_loop(0, 1000, lambda _, x: jnp.tanh(x @ x), x)
    return hcb.id_tap(lambda v, t: os.write(1, b"ran\\n"), x)

jax.jit(jax.shard_map(steps, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
"""
    ended = run_program(program, devices=2, timeout=90.0, env={"HOSTCB_EXIT_TIMEOUT": "0.2"}).check()
    assert ended.lines == ["ran"] * 2


def test_an_interrupt_gives_up_and_failures_are_reported() -> None:
    program = """
import signal
begun = threading.Event()

def fail(value, transforms):
    raise ValueError("first failure")

def hang(value, transforms):
    begun.set()
    threading.Event().wait()

hcb.id_tap(fail, 1.0)
hcb.id_tap(hang, 1.0)
begun.wait(30)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.alarm(2)
"""
    ended = run_program(program, devices=1, timeout=60.0)
    assert ended.returncode == 0, ended
    assert "these callbacks never finished" in ended.stderr and "hang" in ended.stderr
    assert "no barrier_wait reported it" in ended.stderr and "first failure" in ended.stderr


def test_functions_of_atexit_may_tap_beside_one_that_was_given_up_before() -> None:
    program = """
import atexit
def tap(function, device):
    x = jax.device_put(np.float32(1), jax.devices()[device])
    jax.jit(lambda x: hcb.id_tap(lambda value, transforms: function(), x))(x)

ran, hung = threading.Event(), threading.Event()
tap(ran.set, 0)
tap(lambda: (hung.set(), threading.Event().wait()), 1)
ran.wait(30), hung.wait(30)
atexit.register(tap, lambda: (time.sleep(0.5), os.write(1, b"saved\\n")), 0)
"""
    ended = run_program(program, devices=2, timeout=60.0, env={"HOSTCB_EXIT_TIMEOUT": "1"}).check()
    assert ended.lines == ["saved"] and "these callbacks never finished" in ended.stderr, ended
