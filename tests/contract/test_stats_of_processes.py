"""H29: `hostcb.stats` in a process that clears its backends, forks, or is interrupted."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H29")


def test_after_clear_backends_the_counts_go_on() -> None:
    source = """
import jax.extend.backend
hcb.stats()
def step():
    jax.jit(lambda x: hcb.call(lambda v: v, hcb.id_tap(lambda v, t: None, x), result_shape=x))(jnp.ones(4))
for _ in range(2):
    step()
    hcb.barrier_wait()
    here = hcb.stats()["cpu:0"]
    print(here.taps, here.taps_run, here.calls["call"], here.bytes)
    jax.extend.backend.clear_backends()
print(hcb.stats()["cpu:0"] == here)
"""
    assert run_program(source).check().lines == ["1 1 1 32", "2 2 2 64", "True"]


def test_a_question_in_the_middle_of_clear_backends_counts_each_device_once() -> None:
    """Another thread, or a signal handler, may ask between any two steps."""
    source = """
import jax.extend.backend
from hostcb._runtime.queue.queues import Queues, queues
hcb.stats()
program = jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))
for number in range(3):
    program(jnp.ones(4))
hcb.barrier_wait()
asked = []
def ask():
    here = hcb.stats()["cpu:0"]
    asked.append([here.taps, here.taps_run, here.bytes, here.queued])
class Asking(Queues):
    def clear(self):
        ask()
        super().clear()
        ask()
queues.__class__ = Asking
jax.extend.backend.clear_backends()
ask()
print(json.dumps(asked))
"""
    assert run_program(source).json() == [[3, 3, 48, 0]] * 3


def test_what_a_queue_counts_after_its_device_is_gone_is_not_lost() -> None:
    """A thread may still hold the queue that `clear_backends` drops."""
    source = """
import jax.extend.backend
from hostcb._runtime.queue.queues import queues
hcb.stats()
hcb.id_tap(lambda v, t: None, 1.0)
hcb.barrier_wait()
(queue,) = queues.all()
jax.extend.backend.clear_backends()
queue.counts.unqueued.add(1, 4)
here = hcb.stats()["cpu:0"]
print(here.taps, here.taps_run)
"""
    assert run_program(source).check().lines == ["2 2"]


def test_a_forked_child_counts_anew() -> None:
    source = """
hcb.stats()
jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))(jnp.ones(4))
hcb.barrier_wait()
child = os.fork()
if not child:
    first = hcb.stats()
    print(dict(first.devices), first.barriers, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(hcb.stats()["cpu:0"].taps)
"""
    assert run_program(source, warnings="ignore").check().lines == ["{} 0", "1"]


def test_nothing_watches_before_the_first_call() -> None:
    source = """
from hostcb._runtime.observing import observers
jax.jit(lambda x: hcb.call(lambda v: v, hcb.id_tap(lambda v, t: None, x), result_shape=x))(jnp.ones(4))
hcb.barrier_wait()
print(observers.on)
hcb.stats()
print(observers.on is not None)
# A trace that begins and ends leaves the counting on.
import tempfile
with hcb.trace(tempfile.mktemp()):
    hcb.id_tap(lambda v, t: None, 1.0)
print(observers.on is not None, hcb.stats()["cpu:0"].taps)
"""
    assert run_program(source).check().lines == ["None", "True", "True 1"]


def test_an_interrupt_of_the_first_call_does_not_end_the_counting() -> None:
    source = """
from hostcb._runtime.observing import observers
plain = observers.observe
def observe(observer):
    observers.observe = plain
    raise KeyboardInterrupt
observers.observe = observe
try:
    hcb.stats()
except KeyboardInterrupt:
    hcb.stats()
jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x))(jnp.ones(4)).block_until_ready()
print(hcb.stats()["cpu:0"].calls["call"])
"""
    assert run_program(source).check().lines == ["1"]
