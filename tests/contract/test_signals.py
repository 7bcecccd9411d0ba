"""Signal handlers and finalizers that run programs and wait, in the middle of whatever hostcb does (H5, H13)."""

from __future__ import annotations

import pytest
from support import sessions
from support.subprocesses import run_program

# The moments at which they come differ from one to the next.
ROUNDS = sessions.rounds(60, 400)

# What a handler or a finalizer does. Each is jitted before it is used there.
ACTIONS = {
    "jit_tap": "jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))",
    "jit_call": "jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x))",
    "jit_ordered": "jax.jit(lambda x: (hcb.debug.callback(lambda v: None, x, ordered=True), x)[1])",
    "jit_pure": "jax.jit(lambda x: hcb.pure_callback(lambda v: v, x, x))",
    "eager_tap": "lambda x: hcb.id_tap(lambda v, t: None, x)",
    "eager_call": "lambda x: hcb.call(lambda v: v, x, result_shape=x)",
}

PREPARED = """
import gc, signal
if sys.version_info < (3, 12):
    # Python 3.11 collects garbage in the middle of functions of jaxlib, with finalizers and handlers of signals.
    # The one that records a traceback then corrupts the heap, without hostcb as well.
    from jax._src.lib import _jax
    _jax.set_tracebacks_enabled(False)

import contextlib
from jax._src import core

@contextlib.contextmanager
def tracing():
    # In the middle of a bind JAX has no trace, so that no handler could run JAX there, without hostcb as well.
    before = core.trace_ctx.trace
    if before is None:
        core.trace_ctx.set_trace(core.eval_trace)
    try:
        yield
    finally:
        core.trace_ctx.set_trace(before)
"""
COMMON = (
    PREPARED
    + """
action, work = eval(sys.argv[1]), eval(sys.argv[2])
x = jnp.float32(1)
jax.block_until_ready((action(x), work(x)))
rounds = int(sys.argv[3])
counted = 0
"""
)

SIGNALS = (
    COMMON
    + """
def handler(*_):
    global counted
    with tracing():
        action(x)
    counted += 1
    # At whatever step the main thread will have come to.
    signal.setitimer(signal.ITIMER_REAL, 2e-4 + 1e-6 * (counted % 701))

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-3)
while counted < rounds:
    work(x)
signal.setitimer(signal.ITIMER_REAL, 0)
jax.effects_barrier()
hcb.barrier_wait()
print(json.dumps(counted))
"""
)

FINALIZERS = (
    COMMON
    + """
class Logger:
    def __init__(self):
        self.me = self

    def __del__(self):
        global counted
        with tracing():
            action(x)
        counted += 1

gc.set_threshold(50, 3, 3)
while counted < rounds:
    Logger()
    work(x)
gc.set_threshold(100_000)
jax.effects_barrier()
hcb.barrier_wait()
print(json.dumps(counted))
"""
)


@pytest.mark.contract("H5")
@pytest.mark.parametrize(
    ("action", "work"),
    [
        ("jit_tap", "jit_tap"),
        ("jit_call", "eager_tap"),
        ("jit_ordered", "jit_call"),
        ("jit_pure", "jit_tap"),
        ("eager_tap", "jit_call"),
        ("eager_call", "eager_tap"),
    ],
)
def test_a_signal_handler_runs_programs_at_any_moment(action: str, work: str) -> None:
    seen = run_program(SIGNALS, ACTIONS[action], ACTIONS[work], str(ROUNDS), devices=1, timeout=120).json()
    assert seen >= ROUNDS


@pytest.mark.contract("H5")
@pytest.mark.parametrize(
    ("action", "work"), [("jit_tap", "jit_call"), ("jit_call", "jit_tap"), ("eager_tap", "eager_call")]
)
def test_a_finalizer_runs_programs_at_any_moment(action: str, work: str) -> None:
    seen = run_program(FINALIZERS, ACTIONS[action], ACTIONS[work], str(ROUNDS), devices=1, timeout=120).json()
    assert seen >= ROUNDS


@pytest.mark.contract("H5")
def test_a_finalizer_runs_programs_beside_programs_on_several_devices() -> None:
    program = "spread = jax.jit(lambda x: (shared(jnp.stack([x] * 2)), x)[1])\n"
    mapped = """
shared = jax.shard_map(
    lambda x: hcb.call(lambda v: v, hcb.id_tap(lambda v, t: None, x), result_shape=x),
    mesh=Mesh(np.array(jax.devices()), "d"), in_specs=P("d"), out_specs=P("d"),
)
"""
    action = ACTIONS["jit_tap"]
    seen = run_program(mapped + program + FINALIZERS, action, "spread", "100", devices=2, timeout=120).json()
    assert seen >= 100


BARRIERS = (
    PREPARED
    + """
barrier = {"hostcb": hcb.barrier_wait, "jax": jax.effects_barrier}[sys.argv[1]]
program = eval(sys.argv[2])
x = jax.block_until_ready(program(jnp.float32(0)))
returned, refused = 0, 0
ran = []

def handler(*_):
    global returned, refused
    try:
        with tracing():
            barrier()
    except RuntimeError as error:
        assert "inside a callback" in str(error), error
        refused += 1
    else:
        returned += 1
    signal.setitimer(signal.ITIMER_REAL, 5e-4 + 1e-6 * ((returned + refused) % 701))

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-3)
runs = 0
while returned < 100:
    program(x)
    runs += 1
# A handler that runs just now sets the timer again, and a signal at the end of the interpreter would end the process.
signal.signal(signal.SIGALRM, signal.SIG_IGN)
hcb.barrier_wait()
print(json.dumps([returned, refused, runs + 1, len(ran)]))
"""
)
WAITERS = {
    "jit": "jax.jit(lambda x: (hcb.debug.callback(lambda v: ran.append(v), x, ordered=True), x)[1])",
    "jit_tap": "jax.jit(lambda x: hcb.id_tap(lambda v, t: ran.append(v), x))",
    "eager": "lambda x: hcb.id_tap(lambda v, t: ran.append(v), x)",
}


@pytest.mark.contract("H13")
@pytest.mark.parametrize("barrier", ["hostcb", "jax"])
@pytest.mark.parametrize("how", WAITERS)
def test_a_signal_handler_waits_for_all_but_what_it_interrupts(how: str, barrier: str) -> None:
    program = "ran = []\n" + BARRIERS.replace("ran = []\n", "")
    returned, _, runs, ran = run_program(program, barrier, WAITERS[how], devices=1, timeout=120).json()
    # One more where a signal comes between the last look at the number and the end of the timer.
    assert returned >= 100 and ran == runs


INTERRUPTS = (
    PREPARED
    + """
class Interrupt(BaseException):
    pass

def interrupt(*_):
    global armed
    armed = False
    raise Interrupt

logging.getLogger("hostcb").setLevel(logging.CRITICAL)
sys.unraisablehook = lambda *_: None
program = eval(sys.argv[1])
x = jnp.float32(1)
jax.block_until_ready(program(x))
signal.signal(signal.SIGALRM, interrupt)
for number in range(int(sys.argv[2])):
    armed = True
    try:
        signal.setitimer(signal.ITIMER_REAL, 3e-4 + 1e-6 * (number % 997))
        # Python drops an interrupt that meets a finalizer, and then the flag ends the loop.
        while armed:
            program(x)
    except BaseException:
        # JAX makes other exceptions of some. One that comes in a bind leaves JAX without a trace to go on with.
        core.trace_ctx.set_trace(core.eval_trace)
try:
    hcb.barrier_wait()
except hcb.CallbackException:
    # An interrupt that came in a callback is that callback's failure.
    pass
from hostcb._runtime.executions.executions import tracker
from hostcb._runtime.queue.queues import queues
left = [str(each) for each in tracker.live()] + [name for each in queues.all() for name in each.waiting()]
# And all works as before, in order.
order = []
after = jax.jit(lambda x: hcb.call(lambda v: (order.append("call"), v)[1],
                                   hcb.id_tap(lambda v, t: order.append("tap"), x), result_shape=x))
after(x)
hcb.barrier_wait()
print(json.dumps([left, order, [each.held() for each in queues.all()]]))
"""
)
INTERRUPTED = {
    **{name: ACTIONS[name] for name in ("jit_tap", "jit_call", "jit_ordered", "eager_tap")},
    "inline_drain": "lambda x: (hcb.id_tap(lambda v, t: None, x), hcb.call(lambda v: v, x, result_shape=x))",
    "barrier": "lambda x: (hcb.id_tap(lambda v, t: None, x), hcb.barrier_wait())",
    "failing": "lambda x: hcb.id_tap(lambda v, t: 1 / 0, x)",
}


@pytest.mark.contract("H13")
@pytest.mark.parametrize("how", INTERRUPTED)
def test_an_interrupt_at_any_moment_leaves_nothing_that_never_ends(how: str) -> None:
    left, order, held = run_program(INTERRUPTS, INTERRUPTED[how], str(3 * ROUNDS), devices=1, timeout=200).json()
    assert left == [] and order == ["tap", "call"]
    assert all(each == 0 for each in held), f"bytes that the queues still count: {held}"


@pytest.mark.contract("H13")
def test_interrupts_of_programs_on_several_devices_leave_nothing_that_never_ends() -> None:
    mapped = """
work = jax.pmap(lambda x: hcb.call(lambda v: v, hcb.id_tap(lambda v, t: None, x), result_shape=x))
both = np.ones(2, np.float32)
"""
    left, order, held = run_program(
        mapped + INTERRUPTS, "lambda x: work(both)", str(2 * ROUNDS), devices=2, timeout=200
    ).json()
    assert left == [] and order == ["tap", "call"]
    assert all(each == 0 for each in held), f"bytes that the queues still count: {held}"
