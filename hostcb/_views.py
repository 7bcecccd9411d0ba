"""Transports in which the handler is given the device's memory as it is: on CPU for all, on GPU to write in place.

This is the way of nearly every callback, and most of what one costs is spent here. So what can be known of a callback
beforehand is, and the usual ones have handlers of their own, which do nothing but what they must.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import _jax
from ._blocks import LEAST_BYTES, blocks
from ._crossing import Crossing
from ._custom_calls import custom_call
from ._failures import forget_locals
from ._handlers import Host
from ._native import has_failed, postpone
from ._pages import LEAST_BYTES as LEAST_MAPPED
from ._pages import advise
from ._running import running
from ._transports import Emitted, Site, split_token, with_token
from ._wire import size_of, unchanged

Handler = Callable[..., None]
Devices = Mapping[int, Any]


def views(site: Site, devices: Devices, sharding: Any) -> Emitted:
    """CPU, one device or a device's own part of a mesh: the handler gets views of the device's memory."""
    crossing = site.crossing
    if crossing.handler is None:
        crossing.handler = _handler(crossing, devices)
        if sharding is not None and site.operands and site.context.module_context.axis_context.mesh.size > 1:
            crossing.handler = crossing.host.program.turns.taking(crossing.handler)
    results = custom_call(
        site.context,
        "xla_buffer_python_cpu_callback",
        crossing.handler,
        with_token(site, site.operands, site.token),
        with_token(site, crossing.operand_avals, _jax.abstract_token),
        with_token(site, crossing.result_avals, _jax.abstract_token),
        sharding,
        side_effect=not crossing.host.callback.kind.pure,
    )
    return split_token(site, results)


# The runtime calls a handler with its context, the operands, and then the results; a token is the first of either.
# `buffer.__array__()` is all that `np.asarray` does of it, at a quarter of the price.


def _handler(crossing: Crossing, devices: Devices) -> Handler:
    host, kind = crossing.host, crossing.host.callback.kind
    take = _taking(crossing)
    if kind.identity:
        return _tap(host, devices, take)
    give = _giving(crossing)
    if kind.ordered:
        return _in_order(host, devices, take, give)
    return _in_any_order(host, devices, len(crossing.operand_avals), take, give)


def _taking(crossing: Crossing) -> Callable[[Sequence[Any]], Sequence[np.ndarray]]:
    """What makes the function's arrays of the buffers of operands, whatever comes after these.

    A copy each, since the memory is the device's again as soon as the handler returns.
    """
    copies = [np.ndarray.copy if size_of(aval) < LEAST_BYTES else blocks.copy for aval in crossing.operand_avals]
    decode = crossing.decode
    if len(copies) == 1 and decode is unchanged:
        copy = copies[0]
        return lambda buffers: (copy(buffers[0].__array__()),)
    return lambda buffers: decode([copy(buffer.__array__()) for copy, buffer in zip(copies, buffers, strict=False)])


def _giving(crossing: Crossing) -> Callable[[Sequence[Any], Sequence[np.ndarray]], None]:
    """What copies the function's arrays into the buffers of results, given as the last ones of all."""
    count, encode = len(crossing.result_avals), crossing.encode
    if count == 1 and encode is unchanged and size_of(crossing.result_avals[0]) < LEAST_MAPPED:

        def give_one(buffers: Sequence[Any], payload: Sequence[np.ndarray]) -> None:
            buffers[-1].__array__()[...] = payload[0]

        return give_one

    def give(buffers: Sequence[Any], payload: Sequence[np.ndarray]) -> None:
        for buffer, value in zip(buffers[len(buffers) - count :], encode(payload), strict=True):
            advise(buffer.__array__())[...] = value

    return give


def _tap(host: Host, devices: Devices, take: Any) -> Handler:
    tap, large = host.tap, host.nbytes >= LEAST_BYTES

    def taps(_: Any, token: Any, *buffers: Any) -> None:
        device = devices[token.__dlpack_device__()[1]]
        if large:
            host.make_room(device)
        tap(device, take(buffers))

    return taps


def _in_order(host: Host, devices: Devices, take: Any, give: Any) -> Handler:
    run = host.run

    def in_order(_: Any, token: Any, *buffers: Any) -> None:
        device = devices[token.__dlpack_device__()[1]]
        arrays = take(buffers)
        try:
            payload = run(device, arrays)
        except BaseException as exception:
            error = host.refuse_failed(device, exception)
            raise error from error.__cause__
        if payload:
            give(buffers, payload)

    return in_order


def _in_any_order(host: Host, devices: Devices, count: int, take: Any, give: Any) -> Handler:
    run = host.run

    def in_any_order(_: Any, *buffers: Any) -> None:
        if running.frame.pending is not None and has_failed():
            return skipped(buffers[count:])
        try:
            payload = run(None, take(buffers))
            if payload:
                give(buffers, payload)
        except BaseException as exception:
            error = host.refuse_failed(_device_of(buffers, devices, exception), exception)
            clear(buffers[count:])
            if not postpone(host.program, error):
                raise error from error.__cause__
        return None

    return in_any_order


def clear(buffers: Sequence[Any]) -> None:
    """Hand over zeros, where an error will be raised in place of them."""
    for buffer in buffers:
        # What is not the handler's own memory cannot be written to; see `_device_of`.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            np.asarray(buffer)[...] = 0


def skipped(buffers: Sequence[Any]) -> None:
    """The same after a failure in the same dispatch."""
    try:
        clear(buffers)
    except BaseException:
        # An interrupt: the dispatch ends here, and what was to be raised at its end must not meet the next one.
        running.frame.pending = None
        raise


def _device_of(buffers: Sequence[Any], devices: Devices, exception: BaseException) -> Any:
    """The device that memory is on; None where there is no memory to ask, or `devices` does not know it.

    If the memory is not the handler's own, that is why the function failed, and `exception` gets a note that says so.
    """
    try:
        return devices[buffers[0].__dlpack_device__()[1]]
    except (IndexError, KeyError):
        return None
    except RuntimeError as stale:
        exception.add_note(str(stale))
        return None


def in_place(site: Site, target: str, sharding: Any, devices: Devices) -> Emitted:
    """The function itself is given the memory of operands and results (B1, B2)."""
    crossing = site.crossing
    callback = crossing.host.callback
    if crossing.handler is None:
        on_cpu = site.context.module_context.platforms == ("cpu",)
        crossing.handler = _filling(crossing, devices, on_cpu)
    results = custom_call(
        site.context,
        target,
        crossing.handler,
        site.operands,
        crossing.operand_avals,
        crossing.result_avals,
        sharding,
        side_effect=not callback.kind.pure,
        aliases=callback.aliases,
    )
    return Emitted(None, list(results))


def _mapped_anew(crossing: Crossing) -> list[int]:
    """Which buffers hold large results in memory that nobody has used yet."""
    shared = {result for _, result in crossing.host.callback.aliases}
    return [
        len(crossing.operand_avals) + position
        for position, aval in enumerate(crossing.result_avals)
        if position not in shared and size_of(aval) >= LEAST_MAPPED
    ]


def _filling(crossing: Crossing, devices: Devices, on_cpu: bool) -> Handler:
    host = crossing.host
    program, callback = host.program, host.callback
    count = callback.operand_count
    # Nearly every callback takes its buffers as they are, and a call spared here is a tenth of what it costs.
    function = callback.function if callback.fills_leaves else None
    if function is not None and callback.kind.lends and on_cpu:
        function = function.on_cpu  # type: ignore[attr-defined]
    mapped = _mapped_anew(crossing) if on_cpu else ()

    def handler(context: Any, *buffers: Any) -> None:
        frame = running.frame
        if frame.pending is not None and has_failed():
            return skipped(buffers[count:])
        held, frame.holds_gang = frame.holds_gang, frame.holds_gang or program.gang
        frame.depth += 1
        try:
            for position in mapped:
                advise(buffers[position].__array__())
            if function is None:
                callback.fill(context, buffers)
            elif function(context, buffers[count], *buffers[:count]) is not None:
                raise callback.returned_something()
        except BaseException as exception:
            error = host.refuse_failed(_device_of(buffers, devices, exception), exception)
            # The memory is the device's again, and what the traceback's frames hold of it would only do harm: see
            # `_device_of`.
            forget_locals(exception)
            if program.native:
                # On a CPU, so the buffers can be written to here.
                clear(buffers[count:])
            if not postpone(program, error):
                raise error from error.__cause__
        finally:
            frame.depth -= 1
            frame.holds_gang = held
        return None

    return handler
