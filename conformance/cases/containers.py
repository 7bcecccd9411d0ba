"""Fault cells of a user's containers, which read their leaves where they are made and where they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library


class _Positive:
    """It checks its leaf, apart from `object()` and `None`, which JAX asks every container to take."""

    def __init__(self, leaf: Any) -> None:
        if type(leaf) is not object and leaf is not None:
            shape = leaf.shape
            if isinstance(leaf, np.ndarray) and not np.all(leaf > 0):
                raise ArithmeticError(f"an array of shape {shape} is not positive")
        self.leaf = leaf

    def __repr__(self) -> str:
        return f"_Positive(shape={self.leaf.shape})"


class _Secret:
    """Static data that cannot be shown."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Secret)

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise LookupError("a secret is not shown")


class _Hidden(_Positive):
    """The same, with static data that cannot be shown."""


class _OfArrays:
    """It takes arrays and shapes alone, and `None`."""

    def __init__(self, leaf: Any) -> None:
        if leaf is not None and not hasattr(leaf, "shape"):
            raise TypeError(f"{leaf!r} is no array")
        self.leaf = leaf


jax.tree_util.register_pytree_node(_OfArrays, lambda one: ((one.leaf,), None), lambda _, leaves: _OfArrays(*leaves))
jax.tree_util.register_pytree_node(_Positive, lambda one: ((one.leaf,), None), lambda _, leaves: _Positive(*leaves))
jax.tree_util.register_pytree_node(_Hidden, lambda one: ((one.leaf,), _Secret()), lambda _, leaves: _Hidden(*leaves))


@planted("pjit", "call pure_callback io_callback", "H3 H15 X2 X3", functions="barrier_wait", isolated=True)
@planted("jit", "call pure_callback io_callback io_callback_ordered", "H3 H15 X2 X3")
def containers_that_read_leaves(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A failure is told, whatever the container of the result reads of its leaf, and the process lives."""
    anomalies = []
    for container in (_Positive, _Hidden):

        def right(operand: Any, of: Any = container) -> Any:
            return of(operand + np.float32(1))

        def fails(operand: Any) -> Any:
            raise ValueError(PLANTED)

        def longer(operand: Any, of: Any = container) -> Any:
            return of(np.ones(12, np.float32))

        def refused(operand: Any, of: Any = container) -> Any:
            return of(-np.ones(1, np.float32))

        now: list[Any] = [right]

        def compute(x: Any, of: Any = container, now: Any = now) -> Any:
            like = of(jax.ShapeDtypeStruct(x.shape, x.dtype))
            return bench.apply(callback, lambda operand: now[0](operand), x, like).leaf

        program = bench.compile(compute)
        for what, now[0], text in (
            ("a function that raises", fails, PLANTED),
            ("a result of another shape", longer, "12"),
            ("a result that its container refuses", refused, "not positive"),
        ):
            error = error_of(lambda program=program: program(bench.operand))  # type: ignore[misc]
            barrier = error_of(bench.implementation.barrier)
            told = str(error or barrier)
            if text not in told or "AttributeError" in told:
                # The error of a container that was to show a leaf without a shape is none of the user's.
                witness = f"the error of {what}, in {container.__name__}, should tell of {text!r} alone: {told}"
                anomalies.append(Anomaly("wrong report", Stage.DISPATCH, witness))
        now[0] = right
        anomalies += check_value(
            f"a right result in {container.__name__}",
            lambda program=program: program(bench.operand),  # type: ignore[misc]
            np.asarray(bench.operand + np.float32(1)),
        )
    return anomalies + check_quiet_barrier(bench, "after containers")


@planted("jit", "pure_callback io_callback io_callback_ordered", "H27 X2 X3")
def other_containers_around(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As in JAX, a list is accepted for a tuple, also around a container that checks its leaf."""
    anomalies = []
    for container in (_Positive, _Hidden):

        def compute(x: Any, container: Any = container) -> Any:
            like = (container(jax.ShapeDtypeStruct(x.shape, x.dtype)), jax.ShapeDtypeStruct((), np.int32))

            def host(operand: Any) -> Any:
                return [container(operand + np.float32(1)), np.int32(7)]

            found = bench.apply(callback, host, x, like)
            return found[0].leaf + found[1].astype(np.float32)

        program = bench.compile(compute)
        wanted = np.asarray(bench.operand + np.float32(8))
        anomalies += check_value(
            f"a list around {container.__name__}",
            lambda program=program: program(bench.operand),  # type: ignore[misc]
            wanted,
        )
    return anomalies + check_quiet_barrier(bench, "after lists for tuples")


@planted("jit", "pure_callback io_callback io_callback_ordered", "H27 X2 X3")
def other_containers_in_place_of_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As in JAX, a list or a tuple of one is accepted for a container that takes arrays alone."""
    anomalies = []
    for name in ("in a tuple", "in a list", "in two tuples"):

        def compute(x: Any, around: Callable[[Any], Any] = AROUND_ONE[name]) -> Any:
            like = _OfArrays(jax.ShapeDtypeStruct(x.shape, x.dtype))
            return bench.apply(callback, lambda operand: around(np.asarray(operand) + np.float32(1)), x, like).leaf

        program = bench.compile(compute)
        wanted = np.asarray(bench.operand + np.float32(1))
        anomalies += check_value(f"a result {name}", lambda program=program: program(bench.operand), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after other containers")


def _in_a_tuple(each: Any) -> Any:
    return (each,)


def _in_a_list(each: Any) -> Any:
    return [each]


def _in_a_dict(each: Any) -> Any:
    return {"a": each}


def _in_two_tuples(each: Any) -> Any:
    return ((each,),)


AROUND_ONE: dict[str, Callable[[Any], Any]] = {
    "alone": lambda each: each,
    "in a tuple": _in_a_tuple,
    "in a list": _in_a_list,
    "in a dict": _in_a_dict,
    "in two tuples": _in_two_tuples,
}


@planted("jit", "call buffer_callback dlpack_callback", "H3 B1 D1", functions="barrier_wait")
def containers_of_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result alone and a container of one are two things, for what a call returns and for `out`."""
    hostcb = library(bench)
    like = jax.ShapeDtypeStruct(bench.operand.shape, np.float32)
    wanted = bench.operand + np.float32(1)
    anomalies: list[Anomaly] = []
    for asked, around in AROUND_ONE.items():
        outs: list[Any] = []

        def fill(out: Any, operand: Any, outs: list[Any] = outs) -> None:
            outs.append(jax.tree.structure(out))
            for each in jax.tree.leaves(out):
                np.asarray(each)[...] = np.asarray(operand) + np.float32(1)

        def program(x: Any, given: Callable[[Any], Any], around: Any = around, fill: Any = fill) -> Any:
            if callback.function == "call":
                return hostcb.call(lambda operand: given(operand + np.float32(1)), x, result_shape=around(like))
            if callback.function == "buffer_callback":
                return hostcb.buffer_callback(lambda context, out, operand: fill(out, operand), around(like))(x)
            return hostcb.dlpack_callback(fill, around(like), in_place=True)(x)

        # A call must return what was asked for, and neither more nor less around it.
        other = "in a tuple" if asked == "alone" else "alone"
        for returned in (asked, other) if callback.function == "call" else (asked,):
            given = AROUND_ONE[returned]
            label = f"{asked}, returned {returned}"
            for way, run in (("outside jit", program), ("in jit", jax.jit(program, static_argnums=1))):
                results: list[Any] = []
                ready = lambda run=run, given=given: jax.block_until_ready(run(bench.operand, given))
                error = error_of(lambda ready=ready, to=results: to.append(ready()))  # type: ignore[misc]
                reported = error_of(bench.implementation.barrier)
                if returned != asked:
                    if error is None:
                        anomalies.append(Anomaly("swallowed error", Stage.RESULT, f"{way} a result {label}: accepted"))
                    continue
                error = error or reported
                if error is not None:
                    anomalies.append(Anomaly("error", Stage.RESULT, f"{way} a result {label}: {summary(error)}"))
                    continue
                tree = jax.tree.structure(around(0))
                found = jax.tree.structure(results[0])
                if [found, *outs] != [tree] * (1 + len(outs)) or not np.array_equal(
                    jax.tree.leaves(results[0])[0], wanted
                ):
                    witness = f"{way} a result {label}: it gave {results[0]}, and the function got {outs}"
                    anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies + check_quiet_barrier(bench, "after containers of one")
