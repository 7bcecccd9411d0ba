"""H13, H18, H21: what JAX's fast dispatch leaves behind, and a JAX that does not report its begin and its end."""

from __future__ import annotations

import _thread
import contextlib
import gc
import sys
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import DEADLINE, wait_until
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._runtime.executions.executions import tracker


def warm(program: Any) -> None:
    """Run a program until the fast dispatch takes it, and wait for its callbacks."""
    for _ in range(3):
        jax.block_until_ready(program(np.float32(3)))
    hcb.barrier_wait()


@pytest.mark.contract("H18")
def test_the_fast_dispatch_keeps_no_function_alive() -> None:
    class Function:
        def __call__(self, value: Any, _: Any) -> None:
            pass

    def run() -> weakref.ref[Function]:
        function = Function()
        warm(jax.jit(lambda x: hcb.id_tap(function, x) + 1))
        return weakref.ref(function)

    gone = run()
    jax.clear_caches()
    gc.collect()
    # The thread that ran the last tap has its value until it looks for the next one, which may be after the barrier.
    wait_until(lambda: gone() is None)


DISTRUST = """
import jax
from jax._src.interpreters import pxla
{change}
import jax.numpy as jnp, hostcb as hcb
seen = []
program = jax.jit(lambda x: hcb.id_tap(lambda v, t: seen.append(float(v)), x) + 1)
outs = [float(program(jnp.float32(n))) for n in range(5)]
hcb.barrier_wait()
from hostcb._runtime.executions.executions import ExecutionTracker
print(json.dumps([outs, seen]))
"""


CHANGES = {
    "layouts_that_are_not_asked": """
plain = pxla.MeshExecutableFastpathData._replace
pxla.MeshExecutableFastpathData._replace = lambda self, **named: plain(
    self, **{**named, "in_device_local_layouts": [None] * len(named["in_device_local_layouts"])})
""",
    "no_fast_dispatch": """
from jax._src import pjit
pjit._get_fastpath_data = lambda executable, out_tree, args_flat, out_flat, effects, consts_for_constvars, \\
    pgle_profiler, const_args: None
""",
    "another_fast_dispatch": """
from jax._src import pjit
pjit._get_fastpath_data = lambda *parts: None
import warnings
warnings.simplefilter("ignore")
""",
}


@pytest.mark.contract("H21")
@pytest.mark.parametrize("change", CHANGES)
def test_a_jax_that_reports_no_ends_dispatches_in_python(change: str) -> None:
    outs, seen = run_program(DISTRUST.replace("{change}", CHANGES[change]), devices=1, timeout=60).json()
    assert outs == [1, 2, 3, 4, 5] and seen == [0, 1, 2, 3, 4]


FRESH = """
import gc, weakref

class Large:
    pass

def user():
    large = Large()
    program = jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x) + 1)
    for _ in range(4):
        program(jnp.float32(1))
    return weakref.ref(large)

large = user()
hcb.barrier_wait()
gc.collect()
print(json.dumps(large() is None))
"""


@pytest.mark.contract("H18")
def test_the_first_program_of_a_process_keeps_no_frame_alive() -> None:
    assert run_program(FRESH, devices=1, timeout=60).json()


TOGETHER = """
import threading
from hostcb._runtime.executions.executions import ExecutionTracker
plain, begun = ExecutionTracker.begin_fast, []
ExecutionTracker.begin_fast = lambda self, program, *others: (begun.append(program), plain(self, program, *others))[1]
barrier = threading.Barrier(4)

def work(number):
    program = jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x) + number)
    program.lower(jnp.float32(1)).compile()
    barrier.wait(30)
    for _ in range(4):
        program(jnp.float32(1))

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[each.start() for each in threads]
[each.join(60) for each in threads]
hcb.barrier_wait()
print(json.dumps(len(set(map(id, begun)))))
"""


@pytest.mark.contract("D3")
def test_first_programs_in_several_threads_take_the_fast_dispatch() -> None:
    assert run_program(TOGETHER, devices=1, timeout=60).json() == 4


@pytest.mark.contract("H18")
def test_a_dispatch_that_raises_keeps_no_local_variable_alive() -> None:
    class Large:
        pass

    step = jax.jit(lambda x, y: hcb.id_tap(lambda v, _: None, x) + y, donate_argnums=0)
    for _ in range(3):
        step(jnp.ones(3), jnp.ones(3))

    def user() -> weakref.ref[Large]:
        large = Large()
        one = jnp.ones(3)
        with contextlib.suppress(ValueError):
            step(one, one)
        return weakref.ref(large)

    gone = user()
    gc.collect()
    assert gone() is None
    hcb.barrier_wait()


@pytest.mark.contract("H13")
def test_a_thread_without_a_frame_whose_dispatch_raises_holds_nothing_up() -> None:
    step = jax.jit(lambda x, y: hcb.id_tap(lambda v, _: None, x) + y, donate_argnums=0)
    for _ in range(3):
        step(jnp.ones(3), jnp.ones(3))
    one, left = jnp.ones(3), threading.Event()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda _: left.set())
        _thread.start_new_thread(step, (one, one))
        assert left.wait(DEADLINE)
    waiter = threading.Thread(target=hcb.barrier_wait, daemon=True)
    waiter.start()
    waiter.join(DEADLINE)
    assert not waiter.is_alive()
    assert tracker.live() == []
