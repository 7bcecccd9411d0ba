"""H13: `jax.effects_barrier` waits for the taps of this thread, whatever else was run since."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H13")


def test_effects_barrier_waits_for_taps_before_any_other_program() -> None:
    wrong = run_program(
        """
        seen, gate = [], threading.Event()
        def slow(value, transforms):
            gate.wait(20)
            seen.append(float(np.ravel(value)[0]))
        def fails(value):
            raise ValueError("on purpose")
        def ended(run, *operands):
            try: jax.block_until_ready(run(*operands))
            except jax.errors.JaxRuntimeError: pass
        one, two = jnp.float32(1), jnp.arange(2.0)
        mesh = Mesh(np.array(jax.devices()), "d")
        def sharded(function):
            return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        def printing(x):
            jax.debug.callback(lambda v: None, x)
            return x
        def ordered(x):
            jax.debug.callback(lambda v: None, x, ordered=True)
            return x
        def io(x):
            return jax.experimental.io_callback(lambda v: v, x, x)
        def own(x):
            hcb.debug.callback(lambda v: None, x)
            return x
        import jax.experimental
        taps = {
            "jit": jax.jit(lambda x: hcb.id_tap(slow, x)),
            "eager": lambda x: hcb.id_tap(slow, x),
            "other device": lambda x: jax.jit(lambda x: hcb.id_tap(slow, x))(jax.device_put(x, jax.devices()[1])),
            "unordered": jax.jit(lambda x: (hcb.debug.callback(lambda v: slow(v, ()), x), x)[1]),
        }
        failing = jax.jit(lambda x: hcb.call(fails, x, result_shape=x))
        between = {
            "nothing": lambda: None,
            "plain": lambda: jax.jit(lambda x: x + 1)(one),
            "debug": lambda: jax.jit(printing)(one), "debug eager": lambda: printing(one),
            "debug pmap": lambda: jax.pmap(printing)(two), "debug shard_map": lambda: sharded(printing)(two),
            "ordered": lambda: jax.jit(ordered)(one), "io": lambda: jax.jit(io)(one), "io eager": lambda: io(one),
            "pure": lambda: jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x))(one),
            "scan": lambda: jax.jit(lambda x: jax.lax.scan(lambda c, y: (printing(c), y), x, two))(one),
            "other device": lambda: jax.jit(printing)(jax.device_put(one, jax.devices()[1])),
            "own": lambda: jax.jit(own)(one), "own pmap": lambda: jax.pmap(own)(two),
            "failing": lambda: ended(failing, one),
        }
        logging.getLogger("hostcb").setLevel(logging.CRITICAL)
        wrong = []
        for first, tap in taps.items():
            for second, run in between.items():
                seen.clear(), gate.clear()
                # It opens while the barrier waits, or somebody before it who may.
                opener = threading.Timer(0.03, gate.set)
                opener.start()
                tap(one), run()
                try: jax.effects_barrier()
                except Exception as error: wrong.append([first, second, repr(error)])
                if seen != [1.0]: wrong.append([first, second, list(seen)])
                gate.set(), opener.join()
                try: hcb.barrier_wait()
                except hcb.CallbackException: pass
        seen.clear(), gate.set()
        # A second barrier has nothing to wait for, and the next taps count again.
        for number in range(3):
            taps["jit"](jnp.float32(number)), between["debug"](), jax.effects_barrier(), jax.effects_barrier()
            if len(seen) != number + 1: wrong.append(["again", number, list(seen)])
        print(json.dumps(wrong))
        """.replace("\n        ", "\n"),
        devices=2,
        timeout=120,
    ).json()
    assert wrong == []


def test_effects_barrier_waits_for_a_callback_of_jax_before_taps_on_its_devices() -> None:
    """What waits for taps stands for JAX's own token, and waits for that as well. The last device is late."""
    ended = run_program(
        """
        gate, ended = threading.Event(), []
        def held(value):
            if value == len(jax.devices()) - 1: gate.wait(20)
            ended.append(int(value))
        program = jax.pmap(lambda x: (jax.debug.callback(held, x), x)[1])
        numbers = jnp.arange(len(jax.devices()))
        gate.set(), program(numbers), jax.effects_barrier()
        ended.clear(), gate.clear()
        program(numbers)
        for device in jax.devices():
            hcb.id_tap(lambda v, t: None, jax.device_put(1.0, device))
        # One-sided: a barrier that returns too early has this time.
        threading.Timer(0.2, gate.set).start()
        jax.effects_barrier()
        print(json.dumps(sorted(ended)))
        """.replace("\n        ", "\n"),
        devices=2,
        timeout=60,
    ).json()
    assert ended == [0, 1]


def test_effects_barrier_waits_for_a_tap_that_comes_late_on_one_device() -> None:
    """The device runs a call before the tap: the tap is not in the queue yet when the barrier begins."""
    seen = run_program(
        """
        gate, seen = threading.Event(), []
        def held(value):
            if value: gate.wait(20)
            return value
        tap = lambda value, transforms: seen.append(int(value))
        program = jax.pmap(lambda x: hcb.id_tap(tap, hcb.call(held, x, result_shape=x)))
        numbers = jnp.arange(2)
        # The second run may go another way.
        gate.set(), jax.block_until_ready([program(numbers), program(numbers)]), hcb.barrier_wait()
        for _ in range(2):
            seen.clear(), gate.clear()
            result = program(numbers)
            threading.Timer(0.2, gate.set).start()
            jax.effects_barrier()
            print(json.dumps(sorted(seen)))
        """.replace("\n        ", "\n"),
        devices=2,
        timeout=60,
    )
    assert seen.check().lines == ["[0, 1]"] * 2


def test_a_signal_handler_taps_on_another_device_while_effects_barrier_waits() -> None:
    seen = run_program(
        """
        import signal
        seen, gate = [], threading.Event()
        tap = jax.jit(lambda x: hcb.id_tap(lambda v, t: (gate.wait(30), seen.append(int(v))), x))
        first, second = (jax.device_put(1 + i, device) for i, device in enumerate(jax.devices()))
        def handler(*_):
            tap(second), hcb.id_tap(lambda v, t: None, second)
            gate.set()
        signal.signal(signal.SIGALRM, handler)
        tap(first)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        # It waits for the first value, until the handler lets it go.
        jax.effects_barrier()
        hcb.barrier_wait()
        print(json.dumps(sorted(seen)))
        """.replace("\n        ", "\n"),
        devices=2,
        timeout=60,
    ).json()
    assert seen == [1, 2]


def test_in_a_tap_it_does_not_wait_for_the_queue_and_the_barrier_waits_for_that_tap() -> None:
    source = """
passed, early = threading.Event(), []
inner = jax.jit(lambda x: hcb.id_tap(lambda a, t: None, x))
def outer(a, t):
    jax.block_until_ready(inner(np.float32(1)))
    jax.effects_barrier()
    # One-sided: a barrier that returns too early has this time.
    early.append(passed.wait(0.1))
tapped, plain = jax.jit(lambda x: hcb.id_tap(outer, x)), jax.jit(lambda x: x)
for program, eager in [(tapped, False), (tapped, True), (plain, True)] * 2:
    passed.clear()
    program(np.float32(0))
    if eager:
        hcb.id_tap(outer, np.float32(0))
    hcb.barrier_wait()
    passed.set()
    hcb.barrier_wait()
assert early == [False] * 8, early
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]
