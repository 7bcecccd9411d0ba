"""NNX: callbacks of all kinds inside `nnx.jit`, `nnx.value_and_grad`, `nnx.scan`, `nnx.vmap` and `nnx.remat`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import timing
from flax import nnx
from jax.experimental import io_callback

# JAX keeps no order between the callbacks of the two: hence two lists.
calls: list[int] = []
losses: list[tuple[int, float]] = []


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.calls = nnx.Variable(jnp.int32(0))

    def __call__(self, x: Any) -> Any:
        self.calls[...] += 1
        return nnx.tanh(self.linear(x))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        @nnx.vmap(in_axes=0, out_axes=0)
        def layer(keys: Any) -> Layer:
            return Layer(nnx.Rngs(keys))

        self.layers = layer(jax.random.split(rngs.params(), 3))
        self.last = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: Any, layer: Layer) -> Any:
            x = layer(x)
            jax.debug.callback(lambda number: calls.append(int(number)), layer.calls[...], ordered=True)
            return x

        return self.last(forward(x, self.layers))


def record(step: Any, loss: Any) -> None:
    losses.append((int(step), round(float(loss), 4)))


@nnx.jit
def train(model: Model, optimizer: nnx.Optimizer, x: Any, y: Any) -> Any:
    def loss_of(model: Model) -> Any:
        scale = jax.pure_callback(lambda x: np.float32(x.mean() + 1), jax.ShapeDtypeStruct((), jnp.float32), x)
        return jnp.mean((nnx.remat(lambda model, x: model(x))(model, x) - jax.lax.stop_gradient(scale) * y) ** 2)

    loss, gradient = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradient)
    io_callback(record, None, optimizer.step[...], loss, ordered=True)
    return loss


model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
x, y = jnp.linspace(0, 1, 8).reshape(2, 4), jnp.ones((2, 1))
for _ in range(5):
    train(model, optimizer, x, y)
jax.effects_barrier()
print(*losses, sep="\n")
print(*calls)
assert [step for step, _ in losses] == [1, 2, 3, 4, 5]
# Three layers, in the forward pass and once more for the gradient.
assert calls == [number for number in range(1, 6) for _ in range(6)]

timing.report(lambda: [train(model, optimizer, x, y) for _ in range(20)])
