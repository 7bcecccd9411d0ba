import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=3")
import threading

import jax
import numpy as np
from jax.experimental import io_callback

like = jax.ShapeDtypeStruct((), np.float32)
gate, dispatched, later_ran = threading.Event(), threading.Event(), threading.Event()
came, expected = [], ["first"] + ["later"] * 4


def program(name, event):
    host = lambda x: (came.append(name), event.set(), np.asarray(x))[-1]
    return jax.jit(lambda x: io_callback(host, like, x, ordered=True)).lower(like).compile()


def start(*steps):
    thread = threading.Thread(target=lambda: [step() for step in steps])
    thread.start()
    return thread


wait = lambda x: (gate.wait(30), np.asarray(x))[-1]
held_up = jax.pmap(lambda x: jax.pure_callback(wait, like, x), devices=jax.devices()[1:])
first, later = program("first", threading.Event()), program("later", later_ran)
operand = jax.device_put(held_up(np.zeros(2, np.float32)).addressable_shards[0].data.reshape(()), jax.devices()[0])
results = []
threads = [start(lambda: results.append(first(operand)), dispatched.set)]
if not dispatched.wait(5):  # the dispatch itself waits for the operand, so that nothing can overtake it
    came = expected
threads += [start(lambda: results.append(later(np.float32(0)))) for _ in range(4)]
later_ran.wait(5)
gate.set()
[thread.join() for thread in threads]
jax.block_until_ready(results)
print(f"came: {came}\nexpected: {expected}")
raise SystemExit(came != expected)
