"""The transports: how operands reach the host and results the device. Each function is one transport.

A transport makes the handler that the runtime calls, and emits the custom call to it. `rule` chooses the transport. The
token of an ordered callback, which keeps the order on a device, is threaded through; other callbacks have no token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from .. import _compat
from .._compat.extend import hlo
from .._threads.running import called_by_runtime
from .crossing import Crossing
from .custom_calls import custom_call


@dataclasses.dataclass(frozen=True)
class Equation:
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


def with_token(equation: Equation, values: Sequence[Any], token: Any) -> list[Any]:
    """Return `values`, with the token first if the callback has one."""
    return [*values] if equation.token is None else [token, *values]


def split_token(equation: Equation, results: Sequence[Any]) -> Emitted:
    if equation.token is None:
        return Emitted(None, list(results))
    return Emitted(results[0], list(results[1:]))


def parts(equation: Equation, target: str) -> Emitted:
    """Under jit over a mesh, let each device call with its own shard of the operands (X4)."""
    if equation.token is not None:
        raise NotImplementedError(
            f"{equation.crossing.host.callback}: partitioned=True has no order under jit over several devices. Drop "
            "ordered=True, or use shard_map, in which each device calls in order."
        )
    host, decode = equation.crossing.host, equation.crossing.decode

    @called_by_runtime
    def handler(*operands: Any) -> Sequence[Any]:
        host.call(None, decode([np.array(operand) for operand in operands]))
        return ()

    custom_call(equation.context, target, handler, equation.operands, equation.crossing.operand_avals, [], None)
    return Emitted(None, [])


def _exchange(equation: Equation) -> Callable[[Any, Sequence[Any]], Sequence[np.ndarray]]:
    """Return the function that hands a handler's arrays to the callback and returns the results."""
    crossing = equation.crossing
    host, decode, encode = crossing.host, crossing.decode, crossing.encode

    @called_by_runtime
    def exchange(device: Any, operands: Sequence[Any]) -> Sequence[np.ndarray]:
        owned = decode([np.array(operand) for operand in operands])
        if host.callback.kind.identity:
            host.tap(device, owned)
            return ()
        return tuple(map(_contiguous, encode(host.call(device, owned))))

    return exchange


def arrays(
    equation: Equation, target: str, locate: Callable[[Sequence[Any]], Any], position: Any, sharding: Any
) -> Emitted:
    """On platforms without views: the runtime makes arrays of the operands and copies the results.

    `position`, if given, is one more operand: a number from which `locate` finds the device.
    """
    exchange = _exchange(equation)
    extra, extra_avals = _position_operand(position)
    first = len(extra)

    def in_any_order(*operands: Any) -> Sequence[Any]:
        return tuple(exchange(locate(operands[:first]), operands[first:]))

    def in_order(token: Any, *operands: Any) -> Sequence[Any]:
        return (token, *in_any_order(*operands))

    results = custom_call(
        equation.context,
        target,
        in_any_order if equation.token is None else in_order,
        with_token(equation, [*extra, *equation.operands], equation.token),
        with_token(equation, [*extra_avals, *equation.crossing.operand_avals], _compat.abstract_token),
        with_token(equation, equation.crossing.result_avals, _compat.abstract_token),
        sharding,
        side_effect=not equation.crossing.host.callback.kind.pure,
    )
    return split_token(equation, results)


def _position_operand(position: Any) -> tuple[list[Any], list[Any]]:
    if position is None:
        return [], []
    return [position], [jax.core.ShapedArray((), np.uint32)]


def one_of_many(equation: Equation, targets: tuple[str, str], index: int) -> Emitted:
    """Under jit over a mesh, let one device call with the whole operands (H10).

    A collective spreads the result to all devices. If only the calling device refused a failed result, the others would
    wait in that collective for ever. So a verdict travels with the result, and all devices refuse together.
    """
    crossing = equation.crossing
    host, decode, encode = crossing.host, crossing.decode, crossing.encode
    target, target_everywhere = targets
    program = host.program
    # The handlers must not hold `equation`: it would keep the module alive, by which JAX's caches look up.
    result_avals = list(equation.crossing.result_avals)

    has_token = equation.token is not None

    @called_by_runtime
    def tap(token: Any, *operands: Any) -> Sequence[Any]:
        device = program.device_at(index)
        host.tap(device, decode([np.array(operand) for operand in operands]))
        return (token,)

    @called_by_runtime
    def call(*operands: Any) -> Sequence[Any]:
        token, operands = operands[:has_token], operands[has_token:]
        device = program.device_at(index)
        try:
            results = host.run(device, decode([np.array(operand) for operand in operands]))
            encoded = list(map(_contiguous, encode(results)))
        except BaseException as error:
            # Without a verdict the other devices would wait for ever. `judge` raises the failure.
            host.failed(device, error, on_all=True)
            blanks = [np.zeros(aval.shape, aval.dtype) for aval in result_avals]
            return (*token, np.ones(1, np.uint8), *blanks)
        return (*token, np.zeros(1, np.uint8), *encoded)

    @called_by_runtime
    def judge(verdict: Any, *results: Any) -> Sequence[Any]:
        if verdict[0]:
            raise host.marked(program.device_at(index))
        return results

    kind = host.callback.kind
    verdict_aval = jax.core.ShapedArray((1,), np.uint8)
    avals_out = with_token(
        equation, [] if kind.identity else [verdict_aval, *equation.crossing.result_avals], _compat.abstract_token
    )
    emitted = split_token(
        equation,
        custom_call(
            equation.context,
            target,
            tap if kind.identity else call,
            with_token(equation, equation.operands, equation.token),
            with_token(equation, equation.crossing.operand_avals, _compat.abstract_token),
            avals_out,
            _compat.one_device_sharding(index, len(avals_out)),
            side_effect=not kind.pure,
        ),
    )
    if kind.identity:
        return emitted
    # Without the barrier, a device could refuse the verdict while other devices still wait for the result.
    together = hlo.OptimizationBarrierOp(emitted.results).results
    # The target for partitioned callbacks may have side effects, which a replicated operation may not. So XLA keeps the
    # operation even if the result is unused. The result passes through it, so all users of the result run after it.
    # Each result has its own operation, since the compiler aborts on the sharding of several results.
    verdict, *values = together
    judged: list[Any] = []
    groups = [([value], [aval]) for value, aval in zip(values, equation.crossing.result_avals, strict=True)]
    for group, avals in groups or [([], [])]:
        judged += custom_call(
            equation.context,
            target_everywhere,
            judge,
            [verdict, *group],
            [verdict_aval, *avals],
            avals,
            _compat.whole_sharding([aval.ndim for aval in avals], manual=False),
            side_effect=not kind.pure,
        )
    return Emitted(emitted.token, judged)


def send_and_receive(
    equation: Equation, locate: Callable[[Sequence[Any]], Any], position: Any, sharding: Any
) -> Emitted:
    """On TPU and platforms that JAX treats like it: JAX's own emitter. hostcb checks results before JAX does."""
    exchange = _exchange(equation)
    extra, extra_avals = _position_operand(position)
    first = len(extra)

    def handler(*operands: Any) -> Sequence[Any]:
        return exchange(locate(operands[:first]), operands[first:])

    avals_in = [*extra_avals, *equation.crossing.operand_avals]
    try:
        results, token, _ = mlir.emit_python_callback(
            equation.context.replace(avals_in=avals_in, avals_out=list(equation.crossing.result_avals)),
            handler,
            equation.token,
            [*extra, *equation.operands],
            avals_in,
            equation.crossing.result_avals,
            has_side_effect=not equation.crossing.host.callback.kind.pure,
            returns_token=equation.token is not None,
            sharding=sharding,
        )
    except ValueError as error:
        # JAX has a closed list of platforms. Those of other vendors need an emitter that knows them.
        if "not supported" not in str(error):
            raise
        (platform,) = equation.context.module_context.platforms
        raise ValueError(
            f"{equation.crossing.host.callback}: host callbacks are not supported on {platform}: JAX has no "
            f"`emit_python_callback` for it ({error}) The platform's plugin must bring one to JAX; without it, run "
            "this program on another platform."
        ) from error
    return Emitted(token, results)
