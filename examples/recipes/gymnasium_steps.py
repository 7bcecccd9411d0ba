"""Step a Gymnasium environment inside a `scan` on the device, and differentiate through that scan.

Run it with `python examples/recipes/gymnasium_steps.py`; it needs `pip install gymnasium`. It prints how long the pole
stays up, on average, with a policy that decides by chance, and after some steps of a policy gradient.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import hostcb


class Environments:
    """Environments in a row, as functions for programs on the device; their calls keep the order of the program."""

    def __init__(self, name: str, count: int) -> None:
        self._environments = gymnasium.make_vec(name, num_envs=count, vectorization_mode="sync")
        numbers = jax.ShapeDtypeStruct((count,), np.float32)
        space = self._environments.observation_space
        self._observation = jax.ShapeDtypeStruct(space.shape, space.dtype)
        self._stepped = self._observation, numbers, jax.ShapeDtypeStruct((count,), bool)

    def reset(self, seed: Any) -> Any:
        """Return the first observation of each."""

        def on_host(seed: Any) -> Any:
            observation, _ = self._environments.reset(seed=int(seed))
            return observation

        return hostcb.io_callback(on_host, self._observation, seed, ordered=True)

    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        """Return observation, reward, and whether the episode is over, of each."""

        def on_host(actions: Any) -> Any:
            observation, reward, terminated, truncated, _ = self._environments.step(actions)
            return observation, reward.astype(np.float32), terminated | truncated

        return hostcb.io_callback(on_host, self._stepped, actions, ordered=True)


def rollout(environments: Environments, policy: Any, key: Any, steps: int) -> tuple[Any, Any, Any]:
    """Return rewards, ends of episodes, and the logarithms of the actions' probabilities, of each step."""

    def step(observation: Any, key: Any) -> Any:
        logits = observation @ policy
        # An integer has no tangent, so no differentiated value reaches the callback.
        actions = jax.random.categorical(key, logits)
        chances = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)[:, 0]
        observation, reward, over = environments.step(actions)
        return observation, (reward, over, chances)

    first = environments.reset(jax.random.randint(key, (), 0, 2**31 - 1))
    return jax.lax.scan(step, first, jax.random.split(key, steps))[1]


def length_of_episodes(over: Any) -> Any:
    """Return the average number of steps of an episode."""
    return over.size / jnp.maximum(jnp.sum(over), 1)


def loss(environments: Environments, policy: Any, key: Any, steps: int) -> tuple[Any, Any]:
    """Return what a policy gradient makes smaller, and the length of the episodes."""
    rewards, over, chances = rollout(environments, policy, key, steps)

    def discounted(later: Any, now: Any) -> Any:
        reward, over = now
        value = reward + 0.95 * jnp.where(over, 0, later)
        return value, value

    _, values = jax.lax.scan(discounted, jnp.zeros(rewards.shape[1]), (rewards, over), reverse=True)
    return -jnp.mean(chances * (values - jnp.mean(values))), length_of_episodes(over)


def main() -> None:
    environments = Environments("CartPole-v1", 8)
    improve = jax.jit(jax.grad(lambda policy, key: loss(environments, policy, key, 200), has_aux=True))
    policy = jnp.zeros((4, 2))
    lengths = []
    for key in jax.random.split(jax.random.key(0), 20):
        gradient, length = improve(policy, key)
        policy -= 0.5 * gradient
        lengths.append(float(length))
    print(f"at first {lengths[0]:.0f} steps, then {lengths[-1]:.0f}")


if __name__ == "__main__":
    main()
