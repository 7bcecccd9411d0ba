"""Progress bars of tqdm or rich for `scan` and `fori_loop`: nested loops, and a bar for each loop on each device.

Run it with `XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/recipes/progress_bars.py`, or with
`rich` as its argument; it needs `pip install tqdm` or `pip install rich`. It draws four bars, of two nested loops on
two devices, and prints the results.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import hostcb

UPDATES = 100
"""How often a bar moves in one run of its loop; the device comes to more steps and does not report them."""


def scan(bars: Bars, name: str, step: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None) -> Any:
    """Do `jax.lax.scan` with a bar."""
    if length is None:
        length = jax.tree.leaves(xs)[0].shape[0]

    def shown(carry: Any, numbered: Any) -> Any:
        index, x = numbered
        _tell(bars, name, index, length)
        return step(carry, x)

    out = jax.lax.scan(shown, init, (jnp.arange(length), xs))
    _tell(bars, name, length, length)
    return out


def fori_loop(bars: Bars, name: str, lower: Any, upper: Any, body: Callable[..., Any], init: Any) -> Any:
    """Do `jax.lax.fori_loop` with a bar; the bounds may be traced."""

    def shown(index: Any, carry: Any) -> Any:
        _tell(bars, name, index - lower, upper - lower)
        return body(index, carry)

    out = jax.lax.fori_loop(lower, upper, shown, init)
    _tell(bars, name, upper - lower, upper - lower)
    return out


def _tell(bars: Bars, name: str, done: Any, total: Any) -> None:
    due = (done % jnp.maximum(total // UPDATES, 1) == 0) | (done == total)

    def tap() -> None:
        hostcb.id_tap(partial(bars.tapped, name), (done, total), tap_with_device=True)

    jax.lax.cond(due, tap, lambda: None)


class Bars:
    """A bar for each loop on each device, made when the loop begins; when the block ends, all taps have come."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}
        # The taps of each device come in a thread of their own.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            hostcb.barrier_wait()
        finally:
            self.close()
            self._bars.clear()

    def tapped(self, name: str, progress: Any, transforms: Any, *, device: Any) -> None:
        done, total = map(int, progress)
        with self._lock:
            self.draw(f"{name} on {device}", done, total)


class TqdmBars(Bars):
    """Bars of tqdm, which gets the options."""

    def __init__(self, **options: Any) -> None:
        # Here and not in a tap, so that a missing tqdm is one error.
        from tqdm import tqdm

        super().__init__()
        self._tqdm = tqdm
        self._options = options

    def draw(self, label: str, done: int, total: int) -> None:
        if label not in self._bars:
            self._bars[label] = self._tqdm(desc=label, position=len(self._bars), total=total, **self._options)
        bar = self._bars[label]
        if done < bar.n:
            # The loop inside another one begins again.
            bar.reset(total)
        bar.update(done - bar.n)

    def close(self) -> None:
        for bar in self._bars.values():
            bar.close()


class RichBars(Bars):
    """Bars of rich, with the given columns."""

    def __init__(self, *columns: Any) -> None:
        super().__init__()
        self._columns = columns

    def __enter__(self) -> Self:
        from rich.progress import Progress

        self._progress = Progress(*self._columns)
        self._progress.start()
        return self

    def draw(self, label: str, done: int, total: int) -> None:
        if label not in self._bars:
            self._bars[label] = self._progress.add_task(label)
        self._progress.update(self._bars[label], completed=done, total=total)

    def close(self) -> None:
        self._progress.stop()


def training(bars: Bars, start: Any) -> Any:
    """Return the result of 3 epochs of 500 steps."""

    def epoch(value: Any, _: Any) -> Any:
        return fori_loop(bars, "steps", 0, 500, lambda i, value: value + jnp.cos(value), value), None

    return scan(bars, "epochs", epoch, start, length=3)[0]


def main(kind: str = "tqdm") -> None:
    if kind == "tqdm":
        bars = TqdmBars(file=sys.stdout, bar_format="{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt}")
    else:
        from rich.progress import BarColumn, MofNCompleteColumn

        bars = RichBars("{task.description}:", BarColumn(bar_width=20), MofNCompleteColumn())

    devices = PartitionSpec("device")
    on_each = jax.shard_map(
        partial(training, bars), mesh=Mesh(np.array(jax.devices()), ("device",)), in_specs=devices, out_specs=devices
    )
    with bars:
        result = jax.jit(on_each)(jnp.arange(1.0, 1 + jax.device_count()))
    print("results", *(f"{value:.3f}" for value in result))


if __name__ == "__main__":
    main(*sys.argv[1:])
