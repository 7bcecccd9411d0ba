"""The placement of a callback: the device of the computation that calls, as a number or a device (H10, X5)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import _compat
from .callback import HostCallback
from .kinds import Kind
from .naming import shown, subject


def position(kind: Kind, function: Any, device_index: Any) -> int:
    """Return `device_index` as an integer.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative.
    """
    try:
        index = operator.index(device_index)
    except TypeError:
        raise TypeError(
            f"{subject(kind.name, function)}: device_index must be an integer, got {shown(device_index)}."
        ) from None
    if index < 0:
        raise ValueError(f"{subject(kind.name, function)}: device_index must be 0 or more, got {index}.")
    return index


def device_of(kind: Kind, function: Any, sharding: Any) -> Any:
    """Return the device of `sharding`; 0, the computation's first device, if `sharding` is None (X5).

    Raises:
        TypeError: it is no sharding.
        NotImplementedError: it has several devices.
    """
    if sharding is None:
        return 0
    if not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(
            f"{subject(kind.name, function)}: sharding must be a jax.sharding.SingleDeviceSharding or None, got "
            f"{shown(sharding)} of {type(sharding)}."
        )
    if len(sharding.device_set) != 1:
        raise NotImplementedError(
            f"{subject(kind.name, function)}: {kind.name} only supports SingleDeviceSharding, but got "
            f"{sharding!r} with {len(sharding.device_set)} devices. Name the one that calls: "
            "jax.sharding.SingleDeviceSharding(jax.devices()[0])."
        )
    (device,) = sharding.device_set
    return device


def position_among(callback: HostCallback, wanted: Any, count: int, devices: Callable[[], Sequence[Any]]) -> int:
    """Return the position of the calling device among the `count` devices of a computation.

    `wanted` is a position or a device; `devices()` returns all devices.

    Raises:
        ValueError: `wanted` is none of them.
    """
    if isinstance(wanted, int):
        if wanted >= count:
            raise ValueError(
                f"{callback}: device_index={wanted} is out of range: the computation runs on {count} "
                f"device{'s' if count > 1 else ''}, so it must be {'0' if count == 1 else f'from 0 to {count - 1}'}."
            )
        return wanted
    all_devices = tuple(devices())
    if wanted not in all_devices:
        raise ValueError(
            f"{callback}: the sharding names the device {wanted} that is not in the device assignment of the "
            f"computation, {', '.join(map(str, all_devices))}. Name one of these, or run the computation where the "
            "callback should be."
        )
    return all_devices.index(wanted)


def placed_per_device(callback: HostCallback) -> NotImplementedError:
    """The error for a sharding inside pmap or shard_map, where every device calls."""
    return NotImplementedError(
        f"{callback}: callbacks do not support specifying sharding inside spmd computations (pmap, shard_map), where "
        "every device calls with its own part. Drop sharding=, or call back outside."
    )


def partial_automatic(callback: HostCallback, manual: Any, names: Any) -> NotImplementedError:
    """The error for a shard_map that leaves some mesh axes to the compiler."""
    automatic = sorted(str(name) for name in names if name not in manual)
    return NotImplementedError(
        f"{callback} was used in a shard_map that is manual over {sorted(map(str, manual))} only, but host callbacks "
        "are supported when all mesh axes are partitioned manually, not with partially automatic sharding. Make "
        f"{automatic} manual too (drop axis_names=), or call back outside the shard_map."
    )


def check_reduced(callback: HostCallback, avals: Sequence[Any]) -> None:
    """Refuse operands of which each device has only a term of their sum.

    XLA sums them for callbacks in place, but in a `shard_map`. It ends the process for others.

    Raises:
        NotImplementedError: one is such an operand.
    """
    axes = frozenset[Any]().union(*map(_compat.unreduced_over, avals))
    if axes and not (callback.kind.in_place and not jax.sharding.get_abstract_mesh().manual_axes):
        raise NotImplementedError(
            f"{callback} was given an array that is unreduced over {sorted(map(str, axes))}: each device has a term of "
            "the sum that is its value. Add the terms first, with jax.sharding.reshard(x, spec) for a spec without "
            "unreduced, or with jax.lax.psum in a shard_map."
        )
