"""Find where a NaN or an infinity arose: each named value is tapped where it is not finite, and the first one is kept.

Run it with `python examples/recipes/first_not_finite.py`. It prints the name, the line of the program and the value.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb


class Finite:
    """Looks at named values; `first` has, for each device, the first one that was not finite."""

    def __init__(self) -> None:
        self.first: dict[jax.Device, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, value: Any, **also: Any) -> Any:
        """Return `value`, a tree of arrays; what is `also` given is shown with it, such as the step."""
        caller = sys._getframe(1)
        place = f"{name} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}"

        def tapped(values: tuple[Any, Any], transforms: Any, *, device: Any) -> None:
            value, also = values
            # Under vmap the tap comes in any case.
            if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(value)):
                return
            # On each device taps come in the order of the program, so the first one is the first place.
            told = "".join(f", {name} {number}" for name, number in also.items())
            with self._lock:
                self.first.setdefault(device, f"{place}{told}: {value}")

        def tap(value: Any, also: Any) -> Any:
            return hostcb.id_tap(tapped, (value, also), result=value, tap_with_device=True)

        good = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(value)]).all()
        return jax.lax.cond(good, lambda value, _: value, tap, value, also)


def main() -> None:
    finite = Finite()

    def step(x: Any, index: Any) -> Any:
        y = finite("difference", x - 0.25, step=index)
        z = finite("logarithm", jnp.log(y), step=index)
        return y, finite("product", y * z, step=index)

    jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(10)))(jnp.array([1.0, 3.0]))
    hostcb.barrier_wait()
    for device, place in finite.first.items():
        print(f"{device}: {place}")


if __name__ == "__main__":
    main()
