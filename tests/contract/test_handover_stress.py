"""H24: many threads, devices, calls and failures at once, beside a thread that computes."""

from __future__ import annotations

import pytest
from support import sessions
from support.subprocesses import run_program

from hostcb._native import library as native

pytestmark = pytest.mark.contract("H24")

needs_library = pytest.mark.skipif(native.library.problem is not None, reason=f"the library: {native.library.problem}")


STRESS = """
def computing():
    x = 0
    while not over:
        x += 1

seen = collections.defaultdict(list)
failed = [0]
lock = threading.Lock()

def tap(arg, transforms, device):
    n = int(arg[1])
    seen[int(arg[0]), device.id].append(n)
    if n % 1000 == 999:
        raise ValueError("asked for")

inner = jax.jit(lambda x: hcb.id_tap(lambda a, t: nested.append(float(a)), x) + 1)
nested = []

def answer(arg, device):
    n = int(arg[1])
    seen[int(arg[0]), device.id].append(n)
    if n % 2000 == 4:
        before = len(nested)
        inner(float(n)).block_until_ready()
        nested_at_once.append(len(nested) > before)
    return arg

nested_at_once = []

def step(i, x):
    x = hcb.id_tap(tap, x, tap_with_device=True)
    x = x.at[1].add(1)
    calls = lambda x: hcb.call(answer, x, result_shape=x, call_with_device=True)
    return jax.lax.cond(x[1] % 100 == 4, calls, lambda x: x, x)

def program(steps):
    return lambda x: jax.lax.fori_loop(0, steps, step, x)

def thread(number, device):
    compiled = jax.jit(program(STEPS))
    for round in range(ROUNDS):
        key = 100 * (number + 1) + round
        compiled(jax.device_put(np.array([key, 0], np.int32), device)).block_until_ready()

over = False
busy = threading.Thread(target=computing)
busy.start()
threads = [threading.Thread(target=thread, args=(n, jax.devices()[n % 2])) for n in range(4)]
for each in threads: each.start()
for each in threads: each.join()
failures = 0
def finish():
    global failures
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as error:
        failures += len(error.failures)
finish()
# A callback of a program on several devices may not run one on several itself; this one runs one on a single device.
spread = jax.pmap(program(STEPS))
for round in range(ROUNDS):
    x = np.array([[round, 0]] * 8, np.int32)
    jax.block_until_ready(spread(x))
finish()
over = True
busy.join()

expected = []
for n in range(STEPS):
    expected.append(n)
    if (n + 1) % 100 == 4:
        expected.append(n + 1)
runs = {(100 * (n + 1) + r, jax.devices()[n % 2].id) for n in range(4) for r in range(ROUNDS)}
runs |= {(r, d.id) for r in range(ROUNDS) for d in jax.devices()}
assert set(seen) == runs, sorted(set(seen) ^ runs)
for key, got in seen.items():
    wrong = [(i, a, b) for i, (a, b) in enumerate(zip(got, expected)) if a != b]
    assert got == expected, (key, len(got), len(expected), wrong[:3])
assert failures == len(runs) * (STEPS // 1000), failures
assert nested_at_once and all(nested_at_once)
from hostcb._native.library import library
print(len(runs) * len(expected), library.problem)
"""


@needs_library
def test_many_threads_devices_calls_failures_and_a_computing_thread() -> None:
    """Nothing is lost, and on each device everything comes in its program's order."""
    # A million values in a thorough session.
    steps, rounds = sessions.rounds(3000, 21_000), sessions.rounds(2, 4)
    text = f"import collections\nSTEPS, ROUNDS = {steps}, {rounds}\n" + STRESS
    ended = run_program(text, timeout=sessions.rounds(200, 900)).check()
    count, problem = ended.lines[-1].split(maxsplit=1)
    assert int(count) == 12 * rounds * (steps + steps // 100) and problem == "None"
