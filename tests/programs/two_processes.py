"""One of two processes with two CPU devices each; prints what its callbacks saw and got, as a line of JSON."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostcb as hcb

number, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"localhost:{port}", 2, number)

mine = jax.local_devices()
mesh = Mesh(np.array(jax.devices()), "d")
lock = threading.Lock()
calls: list[tuple[Any, ...]] = []
outcomes: dict[str, Any] = {}


def log(value: Any, transforms: Any = None, *, device: Any = None) -> None:
    with lock:
        calls.append((np.ravel(np.asarray(value)).tolist(), None if device is None else jax.devices().index(device)))


def plus_one(value: Any, device: Any = None) -> Any:
    log(value, device=device)
    return np.asarray(value) + 1


def fill(_: Any, out: Any, value: Any) -> None:
    log(np.array(np.asarray(value)))
    np.asarray(out)[...] = np.asarray(value) + 1


def raises(value: Any, device: Any = None) -> Any:
    raise ValueError(f"failed in process {number}")


def tap(x: Any) -> Any:
    return hcb.id_tap(log, x, tap_with_device=True)


def shaped(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


KINDS: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda x: tap(x) + 1,
    "call": lambda x: hcb.call(plus_one, x, result_shape=shaped(x), call_with_device=True),
    "pure": lambda x: hcb.pure_callback(plus_one, shaped(x), x),
    "io": lambda x: hcb.io_callback(plus_one, shaped(x), x),
    "ordered io": lambda x: hcb.io_callback(plus_one, shaped(x), x, ordered=True),
    "debug": lambda x: (hcb.debug.callback(log, x), x + 1)[1],
    "ordered debug": lambda x: (hcb.debug.callback(log, x, ordered=True), x + 1)[1],
    "buffer": lambda x: hcb.buffer_callback(fill, shaped(x))(x),
    "dlpack": lambda x: hcb.dlpack_callback(lambda v: plus_one(np.from_dlpack(v)), shaped(x))(x),
}


def outcome(name: str, run: Callable[[], Any]) -> None:
    """Keep what a program returns, or which failure its error names, with the calls and failures of this process."""
    try:
        result = run()
        shards = sorted(result.addressable_shards, key=lambda shard: shard.device.id)
        ended: Any = [np.ravel(shard.data).tolist() for shard in shards]
    except jax.errors.JaxRuntimeError as error:
        known = ("failed in process 0", "failed in process 1", "failed in another process")
        ended = next((words for words in known if words in str(error)), str(error))
    failures: list[str] = []
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as error:
        failures = [str(each.exception) for each in error.failures]
    outcomes[name] = (ended, sorted(calls, key=str), failures)
    calls.clear()


def spread() -> jax.Array:
    """An array over all devices, with the number of its device in each."""
    return jax.make_array_from_callback((4,), NamedSharding(mesh, P("d")), lambda index: VALUES[index])


def mapped(function: Callable[[Any], Any]) -> jax.Array:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(spread())


def failing(**options: Any) -> Callable[[Any], Any]:
    return lambda x: hcb.call(raises, x, result_shape=shaped(x), **options)


VALUES = np.arange(4, dtype=np.float32)
PART = VALUES[2 * number : 2 * number + 2]
for kind, function in KINDS.items():
    outcome(f"jit {kind}", lambda f=function: jax.jit(f)(jax.device_put(VALUES[number], mine[1])))
    outcome(f"shard_map {kind}", lambda f=function: mapped(f))
for kind in ("id_tap", "call", "ordered io"):
    function = KINDS[kind]
    outcome(f"eager {kind}", lambda f=function: jnp.asarray(f(jax.device_put(VALUES[number], mine[1]))))
    outcome(f"pmap {kind}", lambda f=function: jax.pmap(f)(PART))
    outcome(f"mesh {kind}", lambda f=function: jax.jit(f)(spread()))
to_jax = hcb.dlpack_callback(lambda v: plus_one(jnp.from_dlpack(v)), jax.ShapeDtypeStruct((), np.float32))
outcome("jnp.from_dlpack", lambda: jax.jit(to_jax)(jax.device_put(VALUES[number], mine[1])))
for index in range(1, 4):
    outcome(
        f"call at {index}",
        lambda i=index: jax.jit(
            lambda x: hcb.call(plus_one, x, result_shape=shaped(x), call_with_device=True, device_index=i)
        )(spread()),
    )
outcome("global tap", lambda: hcb.id_tap(log, spread(), tap_with_device=True))
outcome("global call", lambda: KINDS["call"](spread()))
# A failure under a mesh is one of all processes; elsewhere each has its own.
outcome("failing jit", lambda: jax.jit(failing())(PART[0]))
outcome("failing pmap", lambda: jax.pmap(failing())(PART))
outcome("failing at 0", lambda: jax.jit(failing())(spread()))
outcome("failing at 3", lambda: jax.jit(failing(device_index=3))(spread()))
outcome("after a failure", lambda: jax.jit(KINDS["call"])(spread()))
print(json.dumps(outcomes), flush=True)
