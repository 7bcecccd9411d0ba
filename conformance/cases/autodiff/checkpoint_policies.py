"""Checkpoints, with policies and without: a callback runs as often as its part of the forward pass does.

A program has the checkpoints of all policies, since each program and each loop of it costs the compiler's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.composing import Composition, ran

POINT, FACTOR = np.float32(0.25), np.float32(2)
STEPS = 3
OF_ARGUMENT = "of the checkpoint's argument"
OF_ITS_RESULT = "of one value, whose result is differentiated"

Passes = int
"""How often a checkpoint with a policy runs the part of its function that the operand depends on."""

POLICIES: dict[str, tuple[Any, Passes]] = {
    "no policy": (None, 2),
    "everything saveable": (jax.checkpoint_policies.everything_saveable, 1),
    "the named saveable": (jax.checkpoint_policies.save_only_these_names("sine"), 2),
    "the named saved or offloaded": (
        jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["sine"],
            names_which_can_be_offloaded=[],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        2,
    ),
}


@case("jit", "id_tap call debug_callback debug_callback_ordered", "H6 X4")
def policies_of_checkpoints(case: Case) -> None:
    """A derivative runs a callback once, and once more if the policy makes the backward pass compute its operand again.

    Alone and in a scan, of one value, of two, one of which is not differentiated, and of the argument.
    """
    seen: list[str] = []

    def host_of(label: str) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            seen.append(label)
            return np.asarray(jax.tree.leaves(operand)[0])

        return host

    def alone(host: Any, value: Any, n: Any) -> Any:
        if case.callback.differentiable:
            case.apply(host, value)
            return n
        # Of a call the result is saved, and its operand must not be differentiated.
        return case.apply(host, n)

    def of_two(host: Any, value: Any, n: Any) -> Any:
        case.apply(host, {"a": value, "b": n})
        return n

    def through(host: Any, value: Any, n: Any) -> Any:
        return jnp.sin(case.apply(host, value)) * n

    places: dict[str, Callable[..., Any]] = {"of one value": alone}
    if case.callback.function == "id_tap":
        places[OF_ITS_RESULT] = through
    if case.callback.differentiable:
        places |= {"of two values": of_two, OF_ARGUMENT: alone}
    checkpoints: list[Callable[..., Any]] = []
    wanted: dict[str, int] = {}
    for policy, (saves, passes) in POLICIES.items():
        for place, call in places.items():
            label = f"{policy}, {place}"
            call = functools.partial(call, host_of(label))

            def function(x: Any, n: Any, call: Callable[[Any, Any], Any] = call, place: str = place) -> Any:
                value = checkpoint_name(jnp.sin(x), "sine")
                if place == OF_ITS_RESULT:
                    # Nothing else of the backward pass has the saved value.
                    return call(value, n)
                return jnp.sin(value) * call(x if place == OF_ARGUMENT else value, n)

            checkpoints.append(jax.checkpoint(function, policy=saves))
            # The backward pass has the argument whatever is saved. A debug callback of it shows both passes.
            of_both = place == OF_ARGUMENT and case.callback.function == "debug.callback"
            wanted[label] = (2 if of_both else passes) if case.callback.recomputed else 1
    _check_counts(case, _sum_of(checkpoints), seen, wanted, FACTOR)


@case("jit", "debug_callback debug_callback_ordered", "X4")
def policies_of_callbacks(case: Case) -> None:
    """X4: a debug callback has no result to save: with a policy that saves callbacks it runs in both passes."""
    seen: list[str] = []

    def function(x: Any) -> Any:
        value = jnp.sin(x)
        case.apply(lambda operand: seen.append("a callback"), value)
        return jnp.sin(value)

    body = jax.checkpoint(function, policy=lambda primitive, *_, **__: "callback" in primitive.name)
    _check_counts(case, body, seen, {"a callback": 2})


@case("jit", "debug_callback debug_callback_ordered", "X4")
def without_operands_in_checkpoints(case: Case) -> None:
    """A debug callback without operands runs in both passes of a checkpoint, whatever its policy saves.

    In a scan it runs at each step, also where the body has another loop after it.
    """
    seen: list[str] = []

    def calling(label: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            case.library.debug.callback(lambda: seen.append(label), ordered=case.callback.ordered)
            return function(x)

        return call

    def scanned(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.lax.scan(lambda carry, factor: (step(carry) * factor, None), x, jnp.ones(STEPS))[0]

    for way, around, function, steps in (
        ("alone", lambda call: call, jnp.sin, 1),
        ("in a scan around a scan", scanned, _scanned(jnp.sin), STEPS),
    ):
        checkpoints = [
            jax.checkpoint(around(calling(policy, function)), policy=saves) for policy, (saves, _) in POLICIES.items()
        ]
        _check_count(case, _sum_of(checkpoints), seen, dict.fromkeys(POLICIES, 2 * steps), way)


def _scanned(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *n: jax.lax.scan(lambda carry, _: (body(carry, *n), None), x, None, length=STEPS)[0]


def _sum_of(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda *operands: sum(function(*operands) for function in functions)


def _check_counts(
    case: Case, body: Callable[..., Any], seen: list[str], wanted: Mapping[str, int], *operands: Any
) -> None:
    """The derivative calls so often in each pass, and in each step of a scan."""
    in_scan = {label: STEPS * count for label, count in wanted.items()}
    for way, program, counts in (("alone", body, wanted), ("in a scan", _scanned(body), in_scan)):
        _check_count(case, program, seen, counts, way, *operands)


def _check_count(
    case: Case, program: Callable[..., Any], seen: list[str], wanted: Mapping[str, int], way: str, *operands: Any
) -> None:
    seen.clear()
    jax.block_until_ready(jax.jit(jax.grad(program))(POINT, *operands))
    case.barrier()
    for label, count in wanted.items():
        case.same("wrong count", Stage.CALLBACK, seen.count(label), count, f"{label}, {way}")


@case("jit", "call", "H4 H5 H6")
def fuzz_grad_checkpoint_call(case: Case) -> None:
    """In the derivative of a checkpoint in a scan a call runs once a step, since its result is kept; taps run again."""
    run = Composition(case)

    def program(x: Any) -> Any:
        integer = x.astype(jnp.int32)

        @jax.checkpoint
        def product(y: Any) -> Any:
            factor = run("call", "factor", jax.lax.stop_gradient(y), integer)
            return run("debug_callback_ordered", "product", run("id_tap", "tap", y) * factor)

        return jax.value_and_grad(lambda y: jax.lax.scan(lambda z, _: (product(z), None), y, None, length=2)[0])(x)

    first = [ran("tap", 2.0), ran("product", 6.0)]
    second = [ran("tap", 6.0), ran("product", 42.0)]
    expected = [ran("factor", 2.0, 2), *first, ran("factor", 6.0, 2), *second, *second, *first]
    run.check(jax.jit(program), 2.0, [42.0, 21.0], expected)
