"""Cases of programs with a token and no other value, which JAX 0.12.0.1 compiles wrongly, and of equal callbacks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.external_callbacks import callback_named
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.programs import row, rows

TRIPS = 4
EQUAL = 3


@case("pmap shard_map", "io_callback_ordered", minimum_devices=2, isolated=True)
def loop_without_operands(case: Case) -> None:
    """Devices run a loop that starts from constants: each callback of the loop runs once on each device."""
    host = case.host()

    def step(index: Any, carry: Any) -> Any:
        return carry + jnp.sum(case.apply(host, row(index)))

    program = case.compile(lambda x: jnp.zeros_like(x) + jax.lax.fori_loop(0, TRIPS, step, jnp.float32(0)))
    jax.block_until_ready(program(case.operand))
    case.saw(host, rows(*range(TRIPS)))


@case("jit", "id_tap io_callback_ordered debug_callback_ordered", "H4 X3 X4", isolated=True)
def equal_functions_without_operands(case: Case) -> None:
    """An ordered callback of a constant runs at both calls of a jitted function that has no operands."""
    host = case.host()

    @jax.jit
    def call() -> None:
        case.apply(host, row(7))

    def program(x: Any) -> Any:
        call()
        call()
        return x

    jax.block_until_ready(case.compile(program)(case.operand))
    case.saw(host, rows(7, 7))


@case("jit", "id_tap call debug_callback_ordered", "H4 X4", isolated=True)
def constant_in_a_checkpoint(case: Case) -> None:
    """A callback of a constant in a checkpoint runs once, or once more with the second forward pass.

    JAX makes a function without operands of that part of the checkpoint.
    """
    host = case.host(add_one)

    @jax.jit
    def function(x: Any) -> Any:
        case.apply(host, np.float32(1))
        return x * x * x

    program = jax.jit(jax.grad(jax.checkpoint(lambda x: function(x))))
    case.gives(np.float32(12), program, np.float32(2))
    # A checkpoint taps again when the forward pass runs again.
    case.barrier()
    case.check(host.count in (1, 2), "wrong count", Stage.CALLBACK, f"{host.count} runs in a forward pass and its copy")


@case("jit", "id_tap io_callback_ordered", "H4 X3", isolated=True)
def cond_without_results(case: Case) -> None:
    """A callback in a branch without results runs once, and those of a function without operands after it as often.

    The branch has operands or none, and the function is called once, or in a loop.
    """
    host = case.host()

    def calling(number: Any) -> None:
        case.apply(host, row(number))

    def by_cond(x: Any) -> None:
        jax.lax.cond(x[1] > 0, lambda: calling(1.0), lambda: None)

    def by_cond_of_operand(x: Any) -> None:
        jax.lax.cond(x[1] > 0, lambda y: calling(y[1]), lambda y: None, x)

    def by_cond_of_operands(x: Any) -> None:
        jax.lax.cond(x[1] > 0, lambda y, z: calling(y[1] + z), lambda y, z: None, x, x[0])

    def by_switch(x: Any) -> None:
        jax.lax.switch(jnp.int32(x[1]), [lambda y: None, lambda y: calling(y[1]), lambda y: calling(9.0)], x)

    def without_operands() -> None:
        jax.jit(lambda: calling(3.0))()

    def again(_: Any, carry: Any) -> Any:
        without_operands()
        return carry

    def in_loop() -> None:
        jax.lax.fori_loop(0, 2, again, 0)

    for branch in (by_cond, by_cond_of_operand, by_cond_of_operands, by_switch):
        # The function is called once: twice is `equal_functions_without_operands`.
        for then, times in ((without_operands, 1), (in_loop, 2)):

            def program(x: Any, branch: Any = branch, then: Any = then) -> Any:
                branch(x)
                then()
                return x

            with case.part(f"{branch.__name__} and {then.__name__}"):
                case.forget()
                jax.block_until_ready(case.compile(program)(case.operand))
                case.saw(host, rows(1, *[3] * times))


@case("jit", "id_tap call", "H4")
@case("jit", "io_callback io_callback_ordered debug_callback")
@case("jit", "buffer_callback_side_effect", "B4")
def equal_operands(case: Case) -> None:
    """Equal callbacks run as often as the program has them: the compiler must not merge them or reuse a result."""
    host = case.host()
    for _ in case.runs(lambda x: sum(case.apply(host, x) for _ in range(EQUAL)), case.operand):
        case.saw(host, [case.operand] * EQUAL)


@case("jit", "io_callback", "X3")
def unused_after_a_pure_one(case: Case) -> None:
    """X3: an io_callback whose result nothing uses runs, though a pure callback of the same shapes comes before it."""
    host = case.host()

    def body(carry: Any, _: Any) -> tuple[Any, None]:
        result = case.apply(add_one, carry, by=callback_named("pure_callback"))
        case.apply(host, result)
        return result, None

    program = jax.jit(lambda x: jax.lax.scan(body, x, None, length=2)[0])
    case.gives(np.float32(3), program, np.float32(1), what="a scan of both")
    case.saw(host, [np.float32(2), np.float32(3)])


@case("jit", "pure_callback io_callback debug_callback buffer_callback", needs="lax.composite")
def in_a_composite(case: Case) -> None:
    """A compiler that has no operation of a composite's name compiles its function, and with it the callback."""
    host = case.host(add_one)
    held = jax.lax.composite(lambda x: case.apply(host, x) * 2, "conformance.held")
    for results in case.runs(lambda x: held(x) + 1, case.operand):
        case.gave(results, case.expected * 2 + 1)
        case.saw(host, [case.operand])


@case("jit shard_map", "io_callback debug_callback")
def reduces_its_result(case: Case) -> None:
    """A callback gets the number that a library's reduction makes of a large result, and the result is right."""
    host, operand = case.host(), np.ones((64 * case.copies, 64), np.float32)

    def layer(x: Any) -> Any:
        y = x @ jnp.ones((64, 64), np.float32)
        case.apply(host, jnp.max(y))
        return y

    case.gives(operand * 64, case.compile(layer), operand, what="the layer")
    case.saw(host, [np.float32(64)])
