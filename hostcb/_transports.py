"""The ways in which operands reach the host and results the device, one function a way.

Each makes the handler that the runtime calls and emits the operation that calls it. Which way is taken is decided in
`_lowering`. All of them thread the token of ordered callbacks, which is what keeps the order on a device; others have
none.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from . import _jax
from ._blocks import LEAST_BYTES, blocks
from ._failures import forget_locals
from ._handlers import Host
from ._native import has_failed, postpone
from ._results import Refused
from ._running import running
from ._wire import unchanged


@dataclasses.dataclass(frozen=True)
class Site:
    """One equation being lowered, its operands and results in the types in which they cross."""

    context: Any
    host: Host
    token: Any
    operands: Sequence[Any]
    operand_avals: Sequence[Any]
    result_avals: Sequence[Any]
    # From what crosses to what the function gets, and back.
    decode: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
    encode: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Emitted:
    token: Any
    results: Sequence[Any]


def _custom_call(
    context: Any,
    target: str,
    handler: Callable[..., Any],
    operands: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    sharding: Any,
    *,
    side_effect: bool = True,
    aliases: Sequence[tuple[int, int]] = (),
) -> Sequence[Any]:
    """Emit a call of `handler`, which lives as long as the executable."""
    module_context = context.module_context
    module_context.add_host_callback(handler)
    index = np.uint64(len(module_context.host_callbacks) - 1)
    inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
    build = jax.ffi.build_ffi_lowering_function(
        target, has_side_effect=side_effect, operand_output_aliases=dict(aliases)
    )
    op = build(inner, *operands, index=index)
    if sharding is not None:
        _jax.annotate(module_context, op, sharding)
    return list(op.results)


def _contiguous(array: np.ndarray) -> np.ndarray:
    # Not `np.ascontiguousarray`, which gives a scalar a dimension.
    return np.asarray(array, order="C")


def _with_token(site: Site, values: Sequence[Any], token: Any) -> list[Any]:
    """`values` behind the token, where the callback has one."""
    return [*values] if site.token is None else [token, *values]


def _split_token(site: Site, results: Sequence[Any]) -> Emitted:
    if site.token is None:
        return Emitted(None, list(results))
    return Emitted(results[0], list(results[1:]))


def views(site: Site, devices: Mapping[int, Any], sharding: Any) -> Emitted:
    """CPU, one device or a device's own part of a mesh: the handler gets views of the device's memory."""
    host, decode, encode = site.host, site.decode, site.encode
    kind = host.callback.kind
    count = len(site.operands)
    view, copyto = np.asarray, np.copyto

    # A copy each, since the memory is the device's again as soon as the handler returns. One operand, one result, and
    # both in their own types, are nearly every callback, and are spared the loops.
    one_operand = count == 1 and decode is unchanged
    one_result = len(site.result_avals) == 1 and encode is unchanged

    def own(buffer: Any) -> np.ndarray:
        array = view(buffer)
        return array.copy() if array.nbytes < LEAST_BYTES else blocks.copy(array)

    def owned(buffers: Sequence[Any]) -> Sequence[np.ndarray]:
        return (own(buffers[0]),) if one_operand else decode([own(buffer) for buffer in buffers[:count]])

    def hand_over(buffers: Sequence[Any], first: int, payload: Sequence[np.ndarray]) -> None:
        if one_result:
            return copyto(view(buffers[-1]), payload[0])
        for buffer, value in zip(buffers[first:], encode(payload), strict=True):
            copyto(view(buffer), value)
        return None

    def tap(_: Any, token: Any, *buffers: Any) -> None:
        arrays = owned(buffers)
        host.tap(devices[token.__dlpack_device__()[1]], arrays)

    def in_order(_: Any, token: Any, *buffers: Any) -> None:
        device = devices[token.__dlpack_device__()[1]]
        arrays = owned(buffers)
        try:
            payload = host.run(device, arrays)
        except BaseException as exception:
            error = host.refuse_failed(device, exception)
            raise error from error.__cause__
        hand_over(buffers, count + 1, payload)

    def in_any_order(_: Any, *buffers: Any) -> None:
        if running.frame.pending is not None and has_failed():
            return clear(buffers[count:])
        try:
            arrays = owned(buffers)
            payload = host.run(None, arrays)
        except BaseException as exception:
            error = host.refuse_failed(_device_of(buffers, devices, exception), exception)
            clear(buffers[count:])
            if not postpone(host.program, error):
                raise error from error.__cause__
            return None
        return hand_over(buffers, count, payload)

    results = _custom_call(
        site.context,
        "xla_buffer_python_cpu_callback",
        tap if kind.identity else in_order if kind.ordered else in_any_order,
        _with_token(site, site.operands, site.token),
        _with_token(site, site.operand_avals, _jax.abstract_token),
        _with_token(site, site.result_avals, _jax.abstract_token),
        sharding,
        side_effect=not kind.pure,
    )
    return _split_token(site, results)


def clear(buffers: Sequence[Any]) -> None:
    """Hand over zeros, where an error will be raised in place of them."""
    for buffer in buffers:
        # What is not the handler's own memory cannot be written to; see `_device_of`.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            np.asarray(buffer)[...] = 0


def _device_of(buffers: Sequence[Any], devices: Mapping[int, Any], exception: BaseException) -> Any:
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


def in_place(site: Site, target: str, sharding: Any, devices: Mapping[int, Any]) -> Emitted:
    """The function itself is given the memory of operands and results (B1, B2)."""
    host = site.host
    program, callback = host.program, host.callback
    count = callback.operand_count
    # Nearly every callback takes its buffers as they are, and a call spared here is a tenth of what it costs.
    function = callback.function if callback.fills_leaves else None

    def handler(context: Any, *buffers: Any) -> None:
        frame = running.frame
        if frame.pending is not None and has_failed():
            return clear(buffers[count:])
        held, frame.holds_gang = frame.holds_gang, frame.holds_gang or program.gang
        frame.depth += 1
        try:
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

    results = _custom_call(
        site.context,
        target,
        handler,
        site.operands,
        site.operand_avals,
        site.result_avals,
        sharding,
        side_effect=not callback.kind.pure,
        aliases=callback.aliases,
    )
    return Emitted(None, list(results))


def parts(site: Site, target: str) -> Emitted:
    """A program that the compiler spreads over devices: each calls with the part of the operands that it has (X4)."""
    if site.token is not None:
        raise NotImplementedError(
            f"{site.host.callback}: partitioned=True has no order under jit over several devices. Drop ordered=True, "
            "or use shard_map, in which each device calls in order."
        )
    host, decode = site.host, site.decode

    def handler(*operands: Any) -> Sequence[Any]:
        payload = host.call(None, decode([np.array(operand) for operand in operands]))
        if isinstance(payload, Refused):
            raise host.refuse(None, payload.failure)
        return ()

    _custom_call(site.context, target, handler, site.operands, site.operand_avals, [], None)
    return Emitted(None, [])


def _exchange(site: Site) -> Callable[[Any, Sequence[Any]], Sequence[np.ndarray]]:
    """What a handler does that is given arrays: hand them to a device's callback, and return its results."""
    host, decode, encode = site.host, site.decode, site.encode

    def exchange(device: Any, operands: Sequence[Any]) -> Sequence[np.ndarray]:
        owned = decode([np.array(operand) for operand in operands])
        if host.callback.kind.identity:
            host.tap(device, owned)
            return ()
        payload = host.call(device, owned)
        if isinstance(payload, Refused):
            raise host.refuse(device, payload.failure)
        return tuple(map(_contiguous, encode(payload)))

    return exchange


def arrays(site: Site, target: str, locate: Callable[[Sequence[Any]], Any], position: Any, sharding: Any) -> Emitted:
    """Where views are not to be had: the runtime makes arrays of the operands and copies the results.

    `position`, if any, is one more operand, a number by which `locate` tells the device.
    """
    exchange = _exchange(site)
    extra, extra_avals = _position_operand(position)
    first = len(extra)

    def in_any_order(*operands: Any) -> Sequence[Any]:
        return tuple(exchange(locate(operands[:first]), operands[first:]))

    def in_order(token: Any, *operands: Any) -> Sequence[Any]:
        return (token, *in_any_order(*operands))

    results = _custom_call(
        site.context,
        target,
        in_any_order if site.token is None else in_order,
        _with_token(site, [*extra, *site.operands], site.token),
        _with_token(site, [*extra_avals, *site.operand_avals], _jax.abstract_token),
        _with_token(site, site.result_avals, _jax.abstract_token),
        sharding,
        side_effect=not site.host.callback.kind.pure,
    )
    return _split_token(site, results)


def _position_operand(position: Any) -> tuple[list[Any], list[Any]]:
    if position is None:
        return [], []
    return [position], [jax.core.ShapedArray((), np.uint32)]


def one_of_many(site: Site, targets: tuple[str, str], index: int) -> Emitted:
    """A program that the compiler spreads over devices: the whole operand goes to one of them (H10).

    A call's result then reaches every device by a collective. If the one device refused a failed result, the others
    would wait in that collective for ever; so a verdict travels with the result, and all devices refuse together.
    """
    host, decode, encode = site.host, site.decode, site.encode
    target, target_everywhere = targets
    program = host.program
    # Not `site` itself in the handlers: it would keep the module that is being lowered, which JAX's caches go by.
    result_avals = list(site.result_avals)

    has_token = site.token is not None

    def tap(token: Any, *operands: Any) -> Sequence[Any]:
        host.tap(program.device_at(index), decode([np.array(operand) for operand in operands]))
        return (token,)

    def call(*operands: Any) -> Sequence[Any]:
        token, operands = operands[:has_token], operands[has_token:]
        payload = host.call(program.device_at(index), decode([np.array(operand) for operand in operands]))
        if isinstance(payload, Refused):
            blanks = [np.zeros(aval.shape, aval.dtype) for aval in result_avals]
            return (*token, np.ones(1, np.uint8), *blanks)
        return (*token, np.zeros(1, np.uint8), *map(_contiguous, encode(payload)))

    def judge(verdict: Any, *results: Any) -> Sequence[Any]:
        if verdict[0]:
            device = program.device_at(index)
            raise host.refuse(device, program.failures.get(device))
        return results

    kind = host.callback.kind
    verdict_aval = jax.core.ShapedArray((1,), np.uint8)
    avals_out = _with_token(site, [] if kind.identity else [verdict_aval, *site.result_avals], _jax.abstract_token)
    emitted = _split_token(
        site,
        _custom_call(
            site.context,
            target,
            tap if kind.identity else call,
            _with_token(site, site.operands, site.token),
            _with_token(site, site.operand_avals, _jax.abstract_token),
            avals_out,
            _jax.one_device_sharding(index, len(avals_out)),
            side_effect=not kind.pure,
        ),
    )
    if kind.identity:
        return emitted
    # Without the barrier the verdict may arrive, and be acted on, while other devices still wait for the result.
    together = hlo.OptimizationBarrierOp(emitted.results).results
    # A replicated operation must not have side effects, hence the target for partitioned callbacks: it may, and so
    # it stays even where nobody uses the result. Passing the result through keeps all that needs it behind it.
    # One for each result, since the compiler aborts on the sharding of several.
    verdict, *values = together
    judged: list[Any] = []
    results_each = [([value], [aval]) for value, aval in zip(values, site.result_avals, strict=True)]
    for group, avals in results_each or [([], [])]:
        judged += _custom_call(
            site.context,
            target_everywhere,
            judge,
            [verdict, *group],
            [verdict_aval, *avals],
            avals,
            _jax.whole_sharding([aval.ndim for aval in avals] or [0], manual=False),
            side_effect=not kind.pure,
        )
    return Emitted(emitted.token, judged)


def send_and_receive(site: Site, locate: Callable[[Sequence[Any]], Any], position: Any, sharding: Any) -> Emitted:
    """TPU, and platforms that JAX serves like it: JAX's own emitter, with our checks in front of its checks."""
    exchange = _exchange(site)
    extra, extra_avals = _position_operand(position)
    first = len(extra)

    def handler(*operands: Any) -> Sequence[Any]:
        return exchange(locate(operands[:first]), operands[first:])

    avals_in = [*extra_avals, *site.operand_avals]
    results, token, _ = mlir.emit_python_callback(
        site.context.replace(avals_in=avals_in, avals_out=list(site.result_avals)),
        handler,
        site.token,
        [*extra, *site.operands],
        avals_in,
        list(site.result_avals),
        has_side_effect=not site.host.callback.kind.pure,
        returns_token=site.token is not None,
        sharding=sharding,
    )
    return Emitted(token, results)
