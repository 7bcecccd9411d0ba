"""The ways in which operands reach the host and results the device, one function a way.

Each makes the handler that the runtime calls and emits the operation that calls it. Which way is taken is decided in
`_lowering`. All of them thread the token of ordered callbacks, which is what keeps the order on a device; others have
none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from . import _jax
from ._crossing import Crossing
from ._custom_calls import custom_call
from ._results import Refused


@dataclasses.dataclass(frozen=True)
class Site:
    """One equation being lowered, its operands in the types in which they cross."""

    context: Any
    crossing: Crossing
    token: Any
    operands: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Emitted:
    token: Any
    results: Sequence[Any]


def _contiguous(array: np.ndarray) -> np.ndarray:
    # Not `np.ascontiguousarray`, which gives a scalar a dimension.
    return np.asarray(array, order="C")


def with_token(site: Site, values: Sequence[Any], token: Any) -> list[Any]:
    """`values` behind the token, where the callback has one."""
    return [*values] if site.token is None else [token, *values]


def split_token(site: Site, results: Sequence[Any]) -> Emitted:
    if site.token is None:
        return Emitted(None, list(results))
    return Emitted(results[0], list(results[1:]))


def parts(site: Site, target: str) -> Emitted:
    """A program that the compiler spreads over devices: each calls with the part of the operands that it has (X4)."""
    if site.token is not None:
        raise NotImplementedError(
            f"{site.crossing.host.callback}: partitioned=True has no order under jit over several devices. Drop "
            "ordered=True, or use shard_map, in which each device calls in order."
        )
    host, decode = site.crossing.host, site.crossing.decode

    def handler(*operands: Any) -> Sequence[Any]:
        payload = host.call(None, decode([np.array(operand) for operand in operands]))
        if isinstance(payload, Refused):
            raise host.refuse(None, payload.failure)
        return ()

    custom_call(site.context, target, handler, site.operands, site.crossing.operand_avals, [], None)
    return Emitted(None, [])


def _exchange(site: Site) -> Callable[[Any, Sequence[Any]], Sequence[np.ndarray]]:
    """What a handler does that is given arrays: hand them to a device's callback, and return its results."""
    crossing = site.crossing
    host, decode, encode = crossing.host, crossing.decode, crossing.encode

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

    results = custom_call(
        site.context,
        target,
        in_any_order if site.token is None else in_order,
        with_token(site, [*extra, *site.operands], site.token),
        with_token(site, [*extra_avals, *site.crossing.operand_avals], _jax.abstract_token),
        with_token(site, site.crossing.result_avals, _jax.abstract_token),
        sharding,
        side_effect=not site.crossing.host.callback.kind.pure,
    )
    return split_token(site, results)


def _position_operand(position: Any) -> tuple[list[Any], list[Any]]:
    if position is None:
        return [], []
    return [position], [jax.core.ShapedArray((), np.uint32)]


def one_of_many(site: Site, targets: tuple[str, str], index: int) -> Emitted:
    """A program that the compiler spreads over devices: the whole operand goes to one of them (H10).

    A call's result then reaches every device by a collective. If the one device refused a failed result, the others
    would wait in that collective for ever; so a verdict travels with the result, and all devices refuse together.
    """
    crossing = site.crossing
    host, decode, encode = crossing.host, crossing.decode, crossing.encode
    target, target_everywhere = targets
    program = host.program
    # Not `site` itself in the handlers: it would keep the module that is being lowered, which JAX's caches go by.
    result_avals = list(site.crossing.result_avals)

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
    avals_out = with_token(
        site, [] if kind.identity else [verdict_aval, *site.crossing.result_avals], _jax.abstract_token
    )
    emitted = split_token(
        site,
        custom_call(
            site.context,
            target,
            tap if kind.identity else call,
            with_token(site, site.operands, site.token),
            with_token(site, site.crossing.operand_avals, _jax.abstract_token),
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
    results_each = [([value], [aval]) for value, aval in zip(values, site.crossing.result_avals, strict=True)]
    for group, avals in results_each or [([], [])]:
        judged += custom_call(
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

    avals_in = [*extra_avals, *site.crossing.operand_avals]
    results, token, _ = mlir.emit_python_callback(
        site.context.replace(avals_in=avals_in, avals_out=list(site.crossing.result_avals)),
        handler,
        site.token,
        [*extra, *site.operands],
        avals_in,
        list(site.crossing.result_avals),
        has_side_effect=not site.crossing.host.callback.kind.pure,
        returns_token=site.token is not None,
        sharding=sharding,
    )
    return Emitted(token, results)
