"""Cases of checkpoints with policies: a callback runs as often as its part of the forward pass does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ...oracle.verdicts import Stage
from ..harness.case import Case, case

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
    """Alone and in a scan, of one value, of two, one of which is not differentiated, and of the argument."""
    seen: list[None] = []

    def host(operand: Any) -> Any:
        seen.append(None)
        return np.asarray(jax.tree.leaves(operand)[0])

    def alone(value: Any, n: Any) -> Any:
        if case.callback.differentiable:
            case.apply(host, value)
            return n
        # Of a call the result is saved, and its operand must not be differentiated.
        return case.apply(host, n)

    def of_two(value: Any, n: Any) -> Any:
        case.apply(host, {"a": value, "b": n})
        return n

    def through(value: Any, n: Any) -> Any:
        return jnp.sin(case.apply(host, value)) * n

    places = {"of one value": alone}
    if case.callback.function == "id_tap":
        places[OF_ITS_RESULT] = through
    if case.callback.differentiable:
        places |= {"of two values": of_two, OF_ARGUMENT: alone}
    for policy, (saves, passes) in POLICIES.items():
        for place, call in places.items():

            def function(x: Any, n: Any, call: Callable[[Any, Any], Any] = call, place: str = place) -> Any:
                value = checkpoint_name(jnp.sin(x), "sine")
                if place == OF_ITS_RESULT:
                    # Nothing else of the backward pass has the saved value.
                    return call(value, n)
                return jnp.sin(value) * call(x if place == OF_ARGUMENT else value, n)

            body = jax.checkpoint(function, policy=saves)
            # The backward pass has the argument whatever is saved. A debug callback of it shows both passes.
            of_both = place == OF_ARGUMENT and case.callback.function == "debug.callback"
            runs = (2 if of_both else passes) if case.callback.recomputed else 1
            for way, program, steps in (("alone", body, 1), ("in a scan", _scanned(body), STEPS)):
                _check_count(case, program, seen, steps * runs, f"{policy}, {place}, {way}", FACTOR)


@case("jit", "debug_callback debug_callback_ordered", "X4")
def policies_of_callbacks(case: Case) -> None:
    """X4: a debug callback has no result, so that a policy which saves callbacks runs it as often as any other one."""
    seen: list[None] = []

    def function(x: Any) -> Any:
        value = jnp.sin(x)
        case.apply(lambda operand: seen.append(None), value)
        return jnp.sin(value)

    body = jax.checkpoint(function, policy=lambda primitive, *_, **__: "callback" in primitive.name)
    for way, program, steps in (("alone", body, 1), ("in a scan", _scanned(body), STEPS)):
        _check_count(case, program, seen, 2 * steps, way)


@case("jit", "debug_callback debug_callback_ordered", "X4")
def without_operands_in_checkpoints(case: Case) -> None:
    """A debug callback without operands runs in both passes of a checkpoint, whatever its policy saves.

    In a scan it runs at each step, also where the body has another loop after it.
    """
    seen: list[None] = []

    def call() -> None:
        case.library.debug.callback(lambda: seen.append(None), ordered=case.callback.ordered)

    def alone(x: Any) -> Any:
        call()
        return jnp.sin(x)

    def step(carry: Any, factor: Any) -> Any:
        call()
        return _scanned(jnp.sin)(carry) * factor, None

    def scanned(x: Any) -> Any:
        return jax.lax.scan(step, x, jnp.ones(STEPS))[0]

    for policy, (saves, _) in POLICIES.items():
        for way, function, steps in (("alone", alone, 1), ("in a scan around a scan", scanned, STEPS)):
            _check_count(case, jax.checkpoint(function, policy=saves), seen, 2 * steps, f"{policy}, {way}")


def _scanned(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *n: jax.lax.scan(lambda carry, _: (body(carry, *n), None), x, None, length=STEPS)[0]


def _check_count(
    case: Case, program: Callable[..., Any], seen: list[None], expected: int, what: str, *operands: Any
) -> None:
    """The derivative of this program calls so often."""
    seen.clear()
    jax.block_until_ready(jax.jit(jax.grad(program))(POINT, *operands))
    case.barrier()
    case.same("wrong count", Stage.CALLBACK, len(seen), expected, what)
