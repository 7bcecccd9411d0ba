"""H16: with `jax_host_callback_ad_transforms` a tap sees derivatives, and all transformations on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb

pytestmark = [pytest.mark.contract("H16"), pytest.mark.filterwarnings("ignore:.*ad_transforms")]

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
    "grad of what nobody uses": (
        lambda tap: jax.grad(lambda x: (tap(x * x), x**3)[1])(POINT),
        [(SQUARE, ()), (0.0, BACK)],
    ),
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


@pytest.fixture(autouse=True)
def _ad_transforms() -> Iterator[None]:
    jax.config.update("jax_host_callback_ad_transforms", True)
    yield
    jax.config.update("jax_host_callback_ad_transforms", None)


@STAGES
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tap_gets_its_part_and_its_way(name: str, stage: Any) -> None:
    program, expected = PROGRAMS[name]
    seen: list[tuple[Any, Way]] = []

    def note(value: Any, transforms: Any) -> None:
        way = tuple(dict(entry)["batch_dims"] if kind == "batch" else kind for kind, entry in transforms)
        seen.append((jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), value), way))

    derivative = stage(lambda: program(lambda x: hcb.id_tap(note, x)))()
    untapped = stage(lambda: program(lambda x: x))()
    hcb.barrier_wait()
    jax.tree.map(np.testing.assert_array_equal, derivative, untapped)
    assert seen == expected
