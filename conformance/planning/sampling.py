"""Selects the planned cells among the eligible ones: the whole product is too large, and mostly redundant."""

from __future__ import annotations

from ..model.programs import Program
from ..spec.callbacks import HOST_CALLBACKS, Callback
from ..spec.topology import Topology

EVERY_PAIR = "id_tap"
"""The callback that is tried under every pair of transforms. The others share its machinery."""

REPRESENTATIVES = (
    "pure_callback",
    "pure_callback_sequential",
    "io_callback",
    "io_callback_ordered",
    "debug_callback",
    "debug_callback_ordered",
)
"""External callbacks that are tried under some pairs."""

OTHERS_WITH_PAIRS = ("id_tap_tree", "call", "call_sequential")
"""Host callbacks that are tried under some pairs. Others differ from them in what they receive or return alone."""

ON_FEWEST_DEVICES = (EVERY_PAIR, "call", *REPRESENTATIVES)
"""Callbacks that are planned on the fewest devices as well. Covering rows bring every callback to each number."""

_METHODS = ("sequential_unrolled", "expand_dims", "broadcast_all")

WITH_DEVICES = {"jit", "pmap", "pjit", "shard_map"}
"""Transforms that may go another way where there is one device alone."""

ONLY_BATCHED = {name: tuple(f"{name}_{method}" for method in _METHODS) for name in ("call", "pure_callback")}
"""Callbacks that differ from this one under vmap alone."""

SAMPLED_PAIRS = (
    "jit.vmap",
    "vmap.vmap",
    "vmap.while_body",
    "vmap.while_cond",
    "vmap.cond",
    "vmap.scan",
    "scan.vmap",
    "grad.scan",
    "grad.remat",
    "grad.cond",
    "grad.custom_vjp",
    "jvp.custom_jvp",
    "pmap.scan",
    "pmap.vmap",
    "pmap.cond",
    "vmap.pmap",
    "pjit.scan",
    "pjit.vmap",
    "shard_map.cond",
    "shard_map.while_body",
)
"""Pairs that combine batching, recomputation, data-dependent control flow and devices."""

SAMPLED_DERIVATIVES = (
    "jit.remat",
    "jit.custom_jvp",
    "jit.custom_vjp",
    "jvp.detached",
    "grad.detached",
    "grad.custom_jvp",
    "jvp.scan.detached",
    "grad.scan.detached",
    "grad.fori.detached",
    "grad.cond.detached",
    "grad.remat.detached",
    "grad.scan.custom_vjp",
)
"""Compositions in which a callback that refuses derivatives must still run."""

SAMPLED_TRIPLES = (
    "jit.grad.remat",
    "jit.vmap.cond",
    "jit.vmap.while_cond",
    "jit.pmap.cond",
    "grad.scan.remat",
    "grad.remat.scan",
    "grad.remat.custom_jvp",
    "vmap.grad.remat",
    "pjit.vmap.scan",
    "shard_map.scan.cond",
)
"""As above, compiled as a whole: a compiler then sees which results are used."""

PROGRAMS_WITH_AN_ORDER = ("jit", "scan", "while_body", "fori", "cond", "remat", "pmap", "pjit", "shard_map")

PARTITIONED_PAIRS = ("pjit.scan", "pjit.vmap", "pjit.cond")

# Without buffer_callback: JAX does not document its behaviour here, and JAX's does not refuse.
SIDE_EFFECT_PAIRS = {"dlpack_callback_side_effect": ("jit.vmap", "vmap.scan", "vmap.cond", "vmap.while_body")}

BATCHED_PAIRS = ("jit.vmap", "vmap.vmap", "pjit.vmap")

_HOST_NAMES = frozenset(callback.name for callback in HOST_CALLBACKS)


def is_only_batched(callback: Callback) -> bool:
    return callback.name in ONLY_BATCHED.get(callback.function, ())


def left_out(callback: Callback, program: Program, topology: Topology, largest: Topology) -> str | None:
    """The reason if an eligible cell is not planned; otherwise None."""
    if is_only_batched(callback) and "vmap" not in program.names:
        return f"not sampled: without vmap this is {callback.function}"
    if callback.parts and program.name not in PROGRAMS_WITH_AN_ORDER:
        return "not sampled: mixtures of kinds are tried where they could come in another order"
    if topology != largest and callback.name not in ON_FEWEST_DEVICES and not callback.parts:
        return f"not sampled: this callback meets {topology.name} in covering rows alone"
    if len(program.names) == 1:
        as_on_largest = topology != largest and not {*program.names} & WITH_DEVICES
        return f"not sampled: this program runs on one device of {largest.name}, too" if as_on_largest else None
    if topology != largest:
        # On the larger topology, a program for one device runs on one device, too.
        return f"not sampled: compositions of transforms are planned on {largest.name} alone"
    if callback.name == EVERY_PAIR:
        return None
    sampled: tuple[str, ...] = SIDE_EFFECT_PAIRS.get(callback.name, ())
    if callback.name in REPRESENTATIVES:
        sampled = SAMPLED_PAIRS + SAMPLED_TRIPLES + (() if callback.differentiable else SAMPLED_DERIVATIVES)
    elif callback.name in OTHERS_WITH_PAIRS:
        sampled = SAMPLED_PAIRS
    elif is_only_batched(callback) or callback.name in _HOST_NAMES:
        sampled = BATCHED_PAIRS
    elif callback.partitioned:
        sampled = PARTITIONED_PAIRS
    return None if program.name in sampled else _NOT_SAMPLED


_NOT_SAMPLED = f"not sampled: pairs of transforms are complete for {EVERY_PAIR} alone"
