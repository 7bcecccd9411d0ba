"""Callbacks whose functions run JAX themselves: with more devices than threads that is where others deadlock."""

from __future__ import annotations

import os

import pytest
from support.subprocesses import run_program

PROGRAM = """
mesh = Mesh(np.array(jax.devices()), "d")
N = SIZE
heavy = lambda x: jnp.sum(jnp.outer(x[:300], x[:300]) @ jnp.outer(x[:300], x[:300])) + jnp.sum(jnp.sin(x))
single = jax.jit(heavy)
mapped = jax.pmap(lambda x: jax.lax.psum(jnp.sin(x), "d"), "d")
spread = jax.jit(lambda x: jnp.sum(jnp.sin(x)))
def inside_single(a):
    return np.float32(single(a.ravel()))
def inside_pmap(a):
    return np.float32(np.asarray(mapped(a.ravel()[:N // 8 * 8].reshape(8, -1)))[0, 0])
def inside_mesh(a):
    flat = a.ravel()[:N // 8 * 8]
    return np.float32(spread(jax.device_put(flat, NamedSharding(mesh, P("d")))))
def inside_eager(a):
    return np.float32(np.asarray(jnp.sum(jnp.asarray(a) * 2)))
def inside_tap(a):
    hcb.id_tap(lambda b, t: seen.append(inside_single(b)), a)
    return np.float32(1)
def inside_call(a):
    return np.float32(hcb.call(lambda b: np.float32(inside_single(b)), a, result_shape=1.0))
nested = jax.jit(lambda a: hcb.call(inside_single, hcb.id_tap(lambda b, t: seen.append(0), a), result_shape=1.0))
def inside_jitted_callbacks(a):
    return np.float32(nested(a))
seen, ran = [], []
def run(function):
    tap = lambda a, t: ran.append(function(a))
    def program(x):
        y = x
        for _ in range(2):
            if KIND == "tap":
                y = hcb.id_tap(tap, y + 1) + 1
            else:
                y = hcb.id_tap(lambda a, t: seen.append(0), y + 1)
                y = y + hcb.call(lambda a: np.float32(ran.append(function(a)) is None), y, result_shape=1.0)
        return y
    x, many = np.zeros(N, np.float32), np.zeros((8, N), np.float32)
    if OUTER == "pmap":
        out = jax.pmap(program)(many)
    else:
        out = jax.jit(program)(x if OUTER == "jit" else jax.device_put(x, NamedSharding(mesh, P("d"))))
    out = np.asarray(jax.block_until_ready(out))
    hcb.barrier_wait()
    assert (out == 4).all(), out
    count = 16 if OUTER == "pmap" else 2
    assert len(ran) == count, (len(ran), count)
    ran.clear()
for name in FUNCTIONS:
    run(globals()["inside_" + name])
    print(name, flush=True)
"""
ON_ONE_DEVICE = ["eager", "single", "tap", "call", "jitted_callbacks"]
ON_ALL_DEVICES = ["pmap", "mesh"]


@pytest.mark.contract("H4")
@pytest.mark.parametrize(
    ("outer", "kind", "size"),
    [
        *(("jit", "call", 2**20), ("pmap", "tap", 2**20), ("mesh", "call", 2**20), ("pmap", "call", 800)),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("jit", "tap", 2**20), ("pmap", "call", 2**20), ("mesh", "tap", 2**20), ("mesh", "call", 800))
        ),
    ],
)
def test_callbacks_that_run_jax(outer: str, kind: str, size: int) -> None:
    """With a call, a program on many devices waits for its callback, and XLA's CPU runtime starts no other program on
    those devices together meanwhile: JAX's own callbacks hang there just so. All the rest has to work.
    """
    functions = ON_ONE_DEVICE + (ON_ALL_DEVICES if outer == "jit" or kind == "tap" else [])
    source = PROGRAM.replace("OUTER", repr(outer)).replace("KIND", repr(kind)).replace("SIZE", str(size))
    ended = run_program(source.replace("FUNCTIONS", repr(functions)), timeout=60)
    assert ended.lines == functions, f"these came to their end: {ended.lines}, but should {functions}: {ended}"
    ended.check()


def test_hostcb_imported_too_late_says_so() -> None:
    """The number of the runtime's threads is fixed when JAX starts its devices, and then only a warning is left."""
    source = """
import jax, logging, numpy as np, os
# As on a machine with few cores.
os.sched_getaffinity = lambda process: {0, 1}
os.cpu_count = lambda: 2
logging.basicConfig()
jax.devices()
import hostcb as hcb
jax.pmap(lambda x: hcb.id_tap(lambda a, t: None, x))(np.ones(8))
hcb.barrier_wait()
"""
    ended = run_program(source, prelude="").check()
    assert "hostcb" in ended.stderr and "deadlock" in ended.stderr, f"it should warn: {ended}"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform has no affinity of processes")
def test_threads_are_asked_for_where_the_process_may_use_few_of_many_cores() -> None:
    """As in a container, or in a batch system: the runtime's pool has the size of the part, not of the machine."""
    source = """
from hostcb._threads import pool
os.cpu_count = lambda: 64
hcb.id_tap(lambda a, t: None, 1.0)
print(pool._asked_for)
"""
    assert run_program(source).check().lines == ["32"]


def test_a_child_process_inherits_the_environment_of_the_program_and_nothing_of_hostcb() -> None:
    source = """
import os, subprocess, sys

def inherited():
    child = [sys.executable, "-c", "import os; print(sorted(os.environ.items()))"]
    return subprocess.run(child, capture_output=True, check=True).stdout

import jax
jax_alone = inherited()
import hostcb as hcb, numpy as np
from hostcb._threads import pool
os.cpu_count = lambda: 2
if hasattr(os, "sched_getaffinity"):
    os.sched_getaffinity = lambda process: {0, 1}
hcb.install()
jax.pmap(lambda x: hcb.id_tap(lambda a, t: None, x))(np.ones(8))
hcb.barrier_wait()
print(len(jax.devices()), pool._asked_for, inherited() == jax_alone)
"""
    assert run_program(source, prelude="", fresh=True).check().lines == ["8 32 True"]


def test_a_users_own_thread_number_is_kept() -> None:
    source = "hcb.id_tap(lambda a, t: None, 1.0); print(os.environ.get('PJRT_NPROC'), os.environ.get('NPROC'))"
    assert run_program(source, env={"NPROC": "24"}).check().lines == ["None 24"]
    assert run_program(source, env={"PJRT_NPROC": "24"}).check().lines == ["24 None"]


@pytest.mark.contract("H5")
def test_nested_program_is_the_one_that_runs() -> None:
    """A callback runs the very program that it is called from, one level deeper, and order is kept at each level."""
    source = """
seen = []
def function(a):
    depth = int(a)
    seen.append(("begin", depth))
    if depth < 3:
        program(jnp.float32(depth + 1)).block_until_ready()
    seen.append(("end", depth))
    return a
@jax.jit
def program(x):
    hcb.id_tap(lambda a, t: seen.append(("tap", int(a))), x)
    y = hcb.call(function, x, result_shape=x)
    hcb.id_tap(lambda a, t: seen.append(("after", int(a))), x)
    return y
program(jnp.float32(3)).block_until_ready()  # JAX refuses recursion while it compiles
hcb.barrier_wait()
seen.clear()
program(jnp.float32(0)).block_until_ready()
hcb.barrier_wait()
def level(n):
    if n > 3:
        return []
    return [("tap", n), ("begin", n), *level(n + 1), ("end", n), ("after", n)]
assert seen == level(0), seen
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]


@pytest.mark.contract("H15")
def test_failures_inside_nested_programs() -> None:
    source = """
def bad(a):
    raise ValueError("the reason")
inner = jax.jit(lambda x: hcb.call(bad, x, result_shape=x))
def outer_function(a):
    try:
        inner(a)
    except jax.errors.JaxRuntimeError as error:
        return np.float32("the reason" in str(error))
outer = jax.jit(lambda x: hcb.call(outer_function, x, result_shape=x))
for _ in range(3):
    assert float(outer(jnp.float32(5))) == 1.0
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as exception:
        assert len(exception.failures) == 1, exception
        print("reported")
"""
    assert run_program(source, timeout=120).check().lines == ["reported"] * 3


@pytest.mark.contract("H5")
def test_a_program_that_a_callback_has_started_keeps_its_order_later() -> None:
    source = """
order = []
def tapped(step, x):
    hcb.id_tap(lambda a, t: order.append(int(a)), step)
    return x
def program(x):
    x = jax.lax.fori_loop(0, 20, tapped, x)
    return hcb.call(lambda a: (order.append(-1), a)[1], x, result_shape=x)
inner = jax.jit(program)
inner(np.float32(1))
hcb.barrier_wait()
order.clear()
jax.jit(lambda x: hcb.id_tap(lambda a, t: jax.block_until_ready(inner(a)), x))(np.float32(1))
hcb.barrier_wait()
for _ in range(10):
    jax.block_until_ready(inner(np.float32(1)))
hcb.barrier_wait()
assert order == [*range(20), -1] * 11, order
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]


@pytest.mark.contract("H15")
def test_each_run_of_a_program_in_a_callback_has_its_own_end() -> None:
    """It taps and then fails, in its first run as well."""
    source = """
def failing(a):
    if a < 0:
        raise ValueError("the reason")
    return a
inner = jax.jit(lambda x: hcb.call(failing, hcb.id_tap(lambda a, t: None, x), result_shape=x))
ends = []
def outer(a):
    for number in (-1, 2, -3, 4):
        try: ends.append(float(inner(np.float32(number))))
        except jax.errors.JaxRuntimeError as error: ends.append("the reason" in str(error))
    return a
program = jax.jit(lambda x: hcb.call(outer, x, result_shape=x))
for _ in range(2):
    assert float(program(np.float32(5))) == 5
assert ends == [True, 2.0, True, 4.0] * 2, ends
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]


@pytest.mark.contract("H13", "H15")
def test_a_program_on_several_devices_is_refused_inside_of_another_one_three_levels_deep() -> None:
    source = """
like = jax.ShapeDtypeStruct((), np.float32)
devices = jax.devices()
third = jax.pmap(lambda x: hcb.id_tap(lambda *_: None, x), devices=devices[2:4])
start_third = lambda v: (jax.block_until_ready(third(np.ones(2, np.float32))), v)[1]
second = jax.jit(lambda x: hcb.call(start_third, x, result_shape=like))
start_second = lambda v: np.asarray(second(jax.device_put(v, devices[5])))
first = jax.pmap(lambda x: hcb.call(start_second, x, result_shape=like), devices=devices[:2])
try:
    jax.block_until_ready(first(np.ones(2, np.float32)))
except jax.errors.JaxRuntimeError as error:
    print("runs on several devices itself" in str(error))
"""
    assert run_program(source, timeout=60).lines == ["True"]


@pytest.mark.contract("H5", "H15")
def test_a_program_that_was_refused_in_a_callback_keeps_its_order_later() -> None:
    source = """
gate, seen, x = threading.Event(), [], np.arange(2, dtype=np.float32)
gate.set()
def tapped(name, wait=lambda: None):
    return jax.pmap(lambda x: hcb.id_tap(lambda v, t: (wait(), seen.append((float(v), name))), x))
first, second = tapped("first", lambda: gate.wait(20)), tapped("second")
jax.block_until_ready([first(x), second(x), first(x), second(x)])
inside = lambda v: (second(x), v)[1]
try:
    jax.block_until_ready(jax.pmap(lambda x: hcb.call(inside, x, result_shape=x))(x))
except jax.errors.JaxRuntimeError:
    print("refused")
try: hcb.barrier_wait()
except hcb.CallbackException: pass
for _ in range(3):
    seen.clear(), gate.clear()
    jax.block_until_ready([first(x), second(x)])
    gate.set()
    hcb.barrier_wait()
    print(*(name for value in (0.0, 1.0) for each, name in seen if each == value))
"""
    ended = run_program(source, devices=2, timeout=60).check()
    assert ended.lines == ["refused", *["first second first second"] * 3]
