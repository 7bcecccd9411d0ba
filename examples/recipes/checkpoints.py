"""Checkpoints while the training on the device goes on: a thread writes them, each whole or not there.

Run it with `python examples/recipes/checkpoints.py`. It prints the steps of the checkpoints that are kept, and whether
a training that goes on from the last one ends as one that was never stopped.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

import hostcb


class Checkpoints:
    """The last `keep` checkpoints of each device in a folder.

    In a `shard_map` each device saves its own part, and `restore(like, device)` gives it back.
    At most `pending` of them wait for the disk. If there are more, their taps wait, then hostcb's queue fills up, and
    then the device waits: memory is bounded, and no checkpoint is lost.
    """

    def __init__(self, folder: Path, keep: int = 3, pending: int = 2) -> None:
        self._folder = folder
        self._keep = keep
        self._pending: queue.Queue[Any] = queue.Queue(pending)
        self._failure: BaseException | None = None
        self._writer = threading.Thread(target=self._write_all, name="checkpoints")

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            hostcb.barrier_wait()
        finally:
            self._pending.put(None)
            self._writer.join()
        if self._failure is not None:
            raise self._failure

    def tap(self, step: Any, tree: Any) -> Any:
        """Save `tree` in a program on the device, which goes on at once, and return it."""
        return hostcb.id_tap(self._put, (step, tree), result=tree, tap_with_device=True)

    def saved(self, device: jax.Device | None = None) -> list[Path]:
        """Return the checkpoints of a device, or of all devices, the newest last."""
        return sorted(self._folder.glob(f"step-*-{_name(device)}.npz" if device else "step-*.npz"))

    def restore(self, like: Any, device: jax.Device | None = None) -> tuple[int, Any]:
        """Return the step and the tree of the newest checkpoint, in the shapes of `like`, or 0 and `like`."""
        saved = self.saved(device)
        if not saved:
            return 0, like
        newest = saved[-1]

        def restored(place: Any, expected: Any) -> Any:
            name = jax.tree_util.keystr(place)
            if arrays[name].shape != expected.shape:
                raise ValueError(f"{newest.name}: {name} has shape {arrays[name].shape} in place of {expected.shape}")
            return jnp.asarray(arrays[name])

        with np.load(newest) as arrays:
            tree = jax.tree.map_with_path(restored, jax.eval_shape(lambda: like))
        return int(newest.name.split("-")[1]), tree

    def _put(self, tapped: Any, transforms: Any, *, device: jax.Device) -> None:
        # The function owns the arrays it gets, so the writer needs no copy of them.
        self._pending.put((device, *tapped))

    def _write_all(self) -> None:
        while (tapped := self._pending.get()) is not None:
            # After a failure the others are still taken, since the taps would wait for ever.
            if self._failure is None:
                try:
                    self._write(*tapped)
                except BaseException as failure:
                    self._failure = failure

    def _write(self, device: jax.Device, step: Any, tree: Any) -> None:
        path = self._folder / f"step-{int(step):09}-{_name(device)}.npz"
        unfinished = path.with_suffix(".unfinished")
        leaves = {jax.tree_util.keystr(place): leaf for place, leaf in jax.tree.leaves_with_path(tree)}
        with unfinished.open("wb") as file:
            np.savez(file, **leaves)
            file.flush()
            os.fsync(file.fileno())
        # Another process, or the next start, sees the old files or the whole new one.
        unfinished.replace(path)
        for old in self.saved(device)[: -self._keep]:
            old.unlink()


def _name(device: jax.Device) -> str:
    return f"{device.platform}-{device.id}"


def train(checkpoints: Checkpoints | None, state: Any, first: Any, last: Any, every: int) -> Any:
    """Do the steps from `first` to `last`, and keep the state after each `every` of them."""

    def step(index: Any, state: Any) -> Any:
        state = {"weights": state["weights"] - 0.1 * state["speed"], "speed": 0.9 * state["speed"] + state["weights"]}
        if checkpoints is not None:
            done = index + 1
            state = jax.lax.cond(done % every == 0, checkpoints.tap, lambda _, state: state, done, state)
        return state

    return jax.lax.fori_loop(first, last, step, state)


def main() -> None:
    start = {"weights": jnp.linspace(-1, 1, 1000), "speed": jnp.zeros(1000)}
    fit = jax.jit(train, static_argnums=(0, 4))
    with tempfile.TemporaryDirectory() as folder:
        with Checkpoints(Path(folder)) as checkpoints:
            fit(checkpoints, start, 0, 90, 20)
        print("kept:", *(path.name for path in checkpoints.saved()))
        step, state = checkpoints.restore(start)
    print("goes on from step", step)
    resumed, never_stopped = fit(None, state, step, 200, 20), fit(None, start, 0, 200, 20)
    print("the same:", all(jax.tree.leaves(jax.tree.map(jnp.array_equal, resumed, never_stopped))))


if __name__ == "__main__":
    main()
