"""Fault cells of taps of derivatives under further transformations: what each tap is given, and is told of its way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .places import flag

Tap = Callable[[Any], Any]
Way = tuple[Any, ...]
"""The transformations of a tap: their names, and of each vmap the dimensions."""

POINT, OTHER = 3.0, 5.0
SQUARE = POINT * POINT
JVP, BACK = ("jvp",), ("jvp", "transpose")


def _cubed(tap: Tap) -> Tap:
    return lambda x: tap(x * x) * x


def _of_two(tap: Tap) -> Callable[[Any, Any], Any]:
    def product(x: Any, y: Any) -> Any:
        square, twice = tap((x * x, y * 2))
        return square * twice

    return product


def _along(tap: Tap) -> Tap:
    """The derivative of the cube at POINT along each element of `t`, linear in `t`."""
    return lambda t: jax.vmap(lambda each: jax.jvp(_cubed(tap), (POINT,), (each,))[1])(t)


def _in_two_steps(x: Any, body: Callable[[Any], Any]) -> Any:
    return jax.lax.scan(lambda carry, _: (body(carry), None), x, None, length=2)[0]


PROGRAMS: dict[str, tuple[Callable[[Tap], Any], list[tuple[Any, Way]]]] = {
    "grad of a checkpoint": (
        lambda tap: jax.grad(jax.checkpoint(_cubed(tap)))(POINT),
        [(SQUARE, ()), (SQUARE, ()), (POINT, BACK)],
    ),
    "grad of a checkpoint that saves everything": (
        lambda tap: jax.grad(jax.checkpoint(_cubed(tap), policy=jax.checkpoint_policies.everything_saveable))(POINT),
        [(SQUARE, ()), (SQUARE, ()), (POINT, BACK)],
    ),
    "grad of a checkpoint of a tangent": (
        lambda tap: jax.grad(lambda x: jax.jvp(jax.checkpoint(_cubed(tap)), (x,), (1.0,))[1])(POINT),
        [((SQUARE, 6.0), JVP), ((SQUARE, 6.0), JVP), ((1.0, 3.0), ("jvp", "jvp", "transpose"))],
    ),
    "grad of one of two": (
        lambda tap: jax.grad(_of_two(tap))(POINT, OTHER),
        [((SQUARE, 10.0), ()), ((10.0, SQUARE), BACK)],
    ),
    "grad of a checkpoint of one of two": (
        lambda tap: jax.grad(jax.checkpoint(lambda x: _of_two(tap)(x, OTHER)))(POINT),
        [((SQUARE, 10.0), ()), ((SQUARE, 10.0), ()), ((10.0, SQUARE), BACK)],
    ),
    "jvp of one of two": (
        lambda tap: jax.jvp(_of_two(tap), (POINT, OTHER), (1.0, 0.0))[1],
        [(((SQUARE, 10.0), (6.0, 0.0)), JVP)],
    ),
    "linearize of one of two": (
        lambda tap: jax.linearize(lambda x: _of_two(tap)(x, OTHER), POINT)[1](1.0),
        [((SQUARE, 10.0), ()), (((SQUARE, 10.0), (6.0, 0.0)), JVP)],
    ),
    "grad of grad": (
        lambda tap: jax.grad(jax.grad(_cubed(tap)))(POINT),
        [(SQUARE, ()), (3.0, BACK), (6.0, (*BACK, *BACK)), (1.0, BACK)],
    ),
    "vmap of grad": (
        lambda tap: jax.vmap(jax.grad(_cubed(tap)))(jnp.array([3.0, 4.0])),
        [([9.0, 16.0], ((0,),)), ([3.0, 4.0], (*BACK, (0,)))],
    ),
    "the transpose of a vmap of jvp": (
        lambda tap: jax.linear_transpose(_along(tap), jnp.ones(2))(jnp.array([1.0, 2.0])),
        [(SQUARE, ()), ([3.0, 6.0], ("jvp", (0,), "transpose"))],
    ),
    "grad of a scan": (
        lambda tap: jax.grad(lambda x: _in_two_steps(x, _cubed(tap)))(1.5),
        [(2.25, ()), (11.390625, ()), (3.375, BACK), (51.2578125, BACK)],
    ),
    "grad of a scan of a checkpoint": (
        lambda tap: jax.grad(lambda x: _in_two_steps(x, jax.checkpoint(_cubed(tap))))(1.5),
        [(2.25, ()), (11.390625, ()), (11.390625, ()), (3.375, BACK), (2.25, ()), (51.2578125, BACK)],
    ),
}
"""Each program, and in order the values of its taps, with their transformations."""


@planted("jit", "id_tap", "H16")
def ways_of_derivatives(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H16: under checkpoint, vmap, scan and further derivatives a tap gets its part, and all of its transformations."""
    anomalies: list[Anomaly] = []
    with warnings.catch_warnings(), flag("jax_host_callback_ad_transforms"):
        warnings.simplefilter("ignore")
        for label, (program, wanted) in PROGRAMS.items():
            seen: list[tuple[Any, Way]] = []

            def note(value: Any, transforms: Any, seen: list[tuple[Any, Way]] = seen) -> None:
                way = tuple(dict(entry)["batch_dims"] if name == "batch" else name for name, entry in transforms)
                seen.append((jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), value), way))

            try:
                derivative = jax.jit(lambda p=program, n=note: p(lambda x: bench.implementation.tap(n, x)))()
                untapped = jax.jit(lambda p=program: p(lambda x: x))()
            except Exception as error:
                anomalies.append(Anomaly("wrong refusal", Stage.TRACE, f"{label} failed: {summary(error)}"))
                continue
            anomalies += check_quiet_barrier(bench, label)
            for found, due in zip(jax.tree.leaves(derivative), jax.tree.leaves(untapped), strict=True):
                if not np.array_equal(found, due):
                    anomalies.append(Anomaly("result", Stage.RESULT, f"{label} gave {found}, expected {due}"))
            if seen != wanted:
                anomalies.append(Anomaly("wrong callback", Stage.CALLBACK, f"{label} showed {seen}, expected {wanted}"))
    return anomalies
