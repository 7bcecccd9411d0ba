"""What the tests share: a thread-safe record of what callbacks saw, and the layouts in which programs run."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostcb as hcb
from hostcb._native.library import library
from hostcb._runtime.memory import blocks, owners

# How long an event that must happen is waited for. In seconds.
DEADLINE = 30.0

STAGES = pytest.mark.parametrize("stage", [lambda f: f, jax.jit], ids=["eager", "jit"])
"""A test of a program outside of jit and in it."""


def like(x: Any) -> jax.ShapeDtypeStruct:
    """The shape and the type of `x`."""
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def address(array: Any) -> int:
    """Where the memory of `array` begins."""
    return int(np.asarray(array).__array_interface__["data"][0])


@dataclasses.dataclass(frozen=True)
class Seen:
    """One callback."""

    arg: Any
    transforms: Any
    device: Any
    label: Any
    thread: str


class Record:
    """What callbacks saw, in the order in which they began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all: list[Seen] = []

    def add(self, arg: Any, transforms: Any = None, device: Any = None, label: Any = None) -> None:
        with self._lock:
            self.all.append(Seen(arg, transforms, device, label, threading.current_thread().name))

    def tap(self, arg: Any, transforms: Any, *, device: Any = None) -> None:
        self.add(arg, transforms, device)

    def labelled(self, label: Any) -> Callable[..., None]:
        """A tap function that puts `label` into the record."""
        return lambda arg, transforms, device=None: self.add(arg, transforms, device, label)

    def caller(self, label: Any = None, result: Callable[[Any], Any] = lambda arg: arg) -> Callable[..., Any]:
        """A call's function that records and returns `result(arg)`."""

        def function(arg: Any, device: Any = None) -> Any:
            self.add(arg, None, device, label)
            return result(arg)

        return function

    @property
    def args(self) -> list[Any]:
        return [seen.arg for seen in self.all]

    @property
    def values(self) -> list[Any]:
        return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), seen.arg) for seen in self.all]

    @property
    def labels(self) -> list[Any]:
        return [seen.label for seen in self.all]

    @property
    def transforms(self) -> list[Any]:
        return [seen.transforms for seen in self.all]

    def on(self, device: jax.Device) -> list[Seen]:
        return [seen for seen in self.all if seen.device == device]


def mesh_of(devices: Sequence[jax.Device], *names: str, shape: tuple[int, ...] | None = None) -> Mesh:
    grid = np.asarray(devices, dtype=object).reshape(shape or (len(devices),))
    return Mesh(grid, names or ("d",))


def shard_map(function: Callable[..., Any], mesh: Mesh, in_specs: Any = None, out_specs: Any = None) -> Any:
    spec = P(*mesh.axis_names)
    return jax.shard_map(
        function, mesh=mesh, in_specs=spec if in_specs is None else in_specs,
        out_specs=spec if out_specs is None else out_specs, check_vma=False,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layout:
    """A way to run one function of one pytree of arrays; each of the `callers` runs it on a value of its own."""

    name: str
    callers: tuple[int, ...]
    prepare: Callable[[Callable[[Any], Any]], Callable[[list[Any]], Any]]
    split: Callable[[Any], list[Any]]

    def compile(self, function: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
        """The program as a function of a list, one value for each caller; it starts the computation, no more."""
        return self.prepare(function)

    def run(self, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        """Run and wait; one result for each caller."""
        return self.split(jax.block_until_ready(self.compile(function)(values)))

    def same(self, value: Any) -> list[Any]:
        return [value] * len(self.callers)


def _stack(values: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *values)


def _unstack(count: int) -> Callable[[Any], list[Any]]:
    return lambda out: [jax.tree.map(lambda leaf: np.asarray(leaf)[i], out) for i in range(count)]


def _whole(out: Any) -> list[Any]:
    return [jax.tree.map(np.asarray, out)]


def _eager(function: Any) -> Any:
    return lambda values: function(jax.tree.map(jax.numpy.asarray, values[0]))


def _on_device(index: int) -> Any:
    def prepare(function: Any) -> Any:
        jitted = jax.jit(function)
        return lambda values: jitted(jax.device_put(values[0], jax.devices()[index]))

    return prepare


def _pmap(indices: Sequence[int]) -> Any:
    def prepare(function: Any) -> Any:
        mapped = jax.pmap(function, axis_name="d", devices=[jax.devices()[i] for i in indices])
        return lambda values: mapped(_stack(values))

    return prepare


def _shard_map(indices: Sequence[int], shape: tuple[int, ...] | None = None, names: tuple[str, ...] = ("d",)) -> Any:
    def prepare(function: Any) -> Any:
        mesh = mesh_of([jax.devices()[i] for i in indices], *names, shape=shape)

        def shard(block: Any) -> Any:
            out = function(jax.tree.map(lambda leaf: leaf[0], block))
            return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf)[None], out)

        mapped = jax.jit(shard_map(shard, mesh, P(names), P(names)))
        return lambda values: mapped(_stack(values))

    return prepare


def sharded(value: Any, mesh: Mesh) -> Any:
    """`value` spread over the first axis of `mesh` where its first dimension allows, else a copy on each device."""

    def put(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        axis = mesh.axis_names[0]
        fits = leaf.ndim > 0 and leaf.shape[0] > 0 and leaf.shape[0] % mesh.shape[axis] == 0
        return jax.device_put(leaf, NamedSharding(mesh, P(axis) if fits else P()))

    return jax.tree.map(put, value)


def _mesh(indices: Sequence[int], shape: tuple[int, ...] | None = None, names: tuple[str, ...] = ("d",)) -> Any:
    def prepare(function: Any) -> Any:
        mesh = mesh_of([jax.devices()[i] for i in indices], *names, shape=shape)
        jitted = jax.jit(function)
        return lambda values: jitted(sharded(values[0], mesh))

    return prepare


def _many(name: str, indices: tuple[int, ...], prepare: Any) -> Layout:
    return Layout(name, indices, prepare, _unstack(len(indices)))


EIGHT = tuple(range(8))
EAGER = Layout("eager", (0,), _eager, _whole)
JIT = Layout("jit", (0,), _on_device(0), _whole)
JIT_DEVICE_5 = Layout("jit_device_5", (5,), _on_device(5), _whole)
PMAP = _many("pmap", EIGHT, _pmap(EIGHT))
PMAP_SUBSET = _many("pmap_subset", (6, 3), _pmap((6, 3)))
SHARD_MAP = _many("shard_map", EIGHT, _shard_map(EIGHT))
SHARD_MAP_SUBSET = _many("shard_map_subset", (4, 5, 6, 7), _shard_map((4, 5, 6, 7)))
SHARD_MAP_REVERSED = _many("shard_map_reversed", EIGHT[::-1], _shard_map(EIGHT[::-1]))
SHARD_MAP_2D = _many("shard_map_2d", (0, 2, 4, 6, 1, 3, 5, 7), _shard_map((0, 2, 4, 6, 1, 3, 5, 7), (2, 4), ("a", "b")))
SHARD_MAP_ONE = _many("shard_map_one", (3,), _shard_map((3,)))
MESH = Layout("mesh", (0,), _mesh(EIGHT), _whole)
MESH_REVERSED = Layout("mesh_reversed", (7,), _mesh(EIGHT[::-1]), _whole)
MESH_SUBSET = Layout("mesh_subset", (4,), _mesh((4, 5)), _whole)
MESH_2D = Layout("mesh_2d", (1,), _mesh((1, 3, 5, 7, 0, 2, 4, 6), (2, 4), ("a", "b")), _whole)

LAYOUTS = (
    EAGER, JIT, JIT_DEVICE_5, PMAP, PMAP_SUBSET, SHARD_MAP, SHARD_MAP_SUBSET, SHARD_MAP_REVERSED, SHARD_MAP_2D,
    SHARD_MAP_ONE, MESH, MESH_REVERSED, MESH_SUBSET, MESH_2D,
)  # fmt: skip
# One of each kind.
MAIN_LAYOUTS = (EAGER, JIT, PMAP, SHARD_MAP, MESH)
COMPILED = (JIT, PMAP, SHARD_MAP, MESH)


def named(layout: Layout) -> str:
    return layout.name


def bytes_in_blocks() -> int:
    """The memory of all large operands that are held, from the pools of Python and of the native extension."""
    mapped, ready = owners.mapped() if library.problem is None else (0, 0)
    return sum(block.nbytes for _, block in list(blocks.blocks._lent.values())) + mapped - ready


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait for something of which no event tells; fail at the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not reached():
        assert time.monotonic() < deadline, "it did not come"
        threading.Event().wait(0.001)


def finish(out: Any = None) -> Any:
    """Wait for a computation and all callbacks; give its result back."""
    jax.block_until_ready(out)
    hcb.barrier_wait()
    return out


def equal(actual: Any, expected: Any, what: str) -> None:
    """Equal in tree, shape, dtype and every bit."""
    __tracebackhide__ = True
    actual_tree, expected_tree = jax.tree.structure(actual), jax.tree.structure(expected)
    assert actual_tree == expected_tree, f"{what}: tree {actual_tree}, but should be {expected_tree}"
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        got, want = np.asarray(got), np.asarray(want)
        assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, but should be {want.dtype}"
        assert got.shape == want.shape, f"{what}: shape {got.shape}, but should be {want.shape}"
        assert _bits(got) == _bits(want), f"{what}: {got}, but should be {want}"


def _bits(array: np.ndarray) -> bytes:
    if array.dtype.name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn"):
        # Stored in bytes of which some bits mean nothing.
        array = array.astype(np.float32)
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "fcV":
        # One NaN is as good as another: JAX itself turns them into each other.
        parts = array.reshape(-1).view(array.real.dtype).copy()
        parts[np.isnan(parts)] = np.float32("nan").astype(parts.dtype)
        array = parts
    return array.tobytes()


def failed(match: str, function: Any, *args: Any) -> BaseException:
    """The error of a computation that a callback ended; the barrier reports the same failure."""
    __tracebackhide__ = True
    with pytest.raises(jax.errors.JaxRuntimeError, match=match) as caught:
        jax.block_until_ready(function(*args))
    with pytest.raises(hcb.CallbackException, match=match):
        hcb.barrier_wait()
    return caught.value
