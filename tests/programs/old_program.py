"""A program of the time when JAX had host_callback, as it was: it knows nothing of hostcb."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.experimental import host_callback as hcb

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 3, "Steps of training.")

losses = []


def log(loss, transforms, *, name, device=None):
    losses.append((name, round(float(loss), 3), [kind for kind, _ in transforms], str(device is not None)))


def host_solve(arg):
    matrix, vector = arg
    return np.linalg.solve(matrix, vector)


@jax.jit
def train(weights, target):
    def step(_, weights):
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum((w - target) ** 2))(weights)
        hcb.id_tap(functools.partial(log, name="loss"), loss, tap_with_device=True)
        return weights - 0.25 * gradient

    return jax.lax.fori_loop(0, FLAGS.steps, step, weights)


def main(argv):
    del argv
    weights = train(jnp.zeros(2), jnp.array([1.0, 2.0]))
    hcb.barrier_wait("training")
    for entry in losses:
        print(*entry)
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    solution = jax.jit(lambda m, v: hcb.call(host_solve, (m, v), result_shape=shape))(2 * jnp.eye(2), weights)
    hcb.id_print(solution, what="solution")
    jax.vmap(lambda x: hcb.id_print(x, what="batched"))(jnp.arange(2.0))
    seen = []
    hcb.id_tap(lambda value, transforms: seen.append(threading.current_thread()), 1.0)
    hcb.barrier_wait()
    print("inline:", jax.config.read("jax_host_callback_inline"), seen == [threading.current_thread()])
    jax.jit(lambda x: hcb.id_tap(lambda value, transforms: 1 / 0, x))(1.0)
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as error:
        print("failed:", type(error.__cause__).__name__)
    hcb.stop_outfeed_receiver()


if __name__ == "__main__":
    app.run(main)
