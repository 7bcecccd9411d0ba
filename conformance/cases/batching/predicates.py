"""Loops and branches under vmap: which callbacks run, and how often, depends on their predicate.

With a predicate that differs between batch elements, JAX runs a loop until its last one is done, and all branches. A
callback that must run exactly once is refused there, and only there. A tap sees a finished batch element as it was
at its end. The predicate may differ by way of a constant alone; what is the same for all of them stays so in the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.registry import EVERY_EFFECT

ELEMENTS = np.array([9.0, 5.0, 7.0], np.float32)
LIMIT = np.float32(12)
TRIPS = 4
BRANCHES = 3
ONE = jax.ShapeDtypeStruct((), np.float32)

Carry = tuple[Any, ...]
Call = Callable[[Any], Any]
"""Calls back with a value, and returns it."""

WITHOUT_PREDICATE = "id_tap debug_callback debug_callback_ordered"
"""Of those that may be under a predicate of a batch, one of each kind of effect."""
ONCE = "io_callback io_callback_ordered buffer_callback_side_effect dlpack_callback_side_effect"
REFUSED_UNDER_PREDICATES = f"{ONCE} call"


def calling(case: Case, seen: list[float]) -> Call:
    def host(operand: Any) -> Any:
        seen.extend(np.asarray(operand).ravel().tolist())
        return np.asarray(operand)

    def call(x: Any) -> Any:
        case.apply(host, x, jax.ShapeDtypeStruct(jnp.shape(x), np.float32))
        return x

    return call


def _moved(carry: Carry) -> Carry:
    """Each value comes from the one before it: what differs between elements reaches the last one after two steps."""
    first, second, third = carry
    return first + 1, first, second + 0 * third


def _loop(call: Call, x: Any, in_condition: bool) -> Any:
    def condition(carry: Carry) -> Any:
        return (call(carry[2]) if in_condition else carry[2]) < LIMIT

    def body(carry: Carry) -> Carry:
        return _moved(carry if in_condition else (*carry[:2], call(carry[2])))

    return jax.lax.while_loop(condition, body, (x, jnp.float32(0), jnp.float32(0)))


def _run_of_elements() -> tuple[Carry, list[float]]:
    """The carry at the end, and what the condition sees: all batch elements in each round."""
    carry: Carry = (ELEMENTS, np.zeros_like(ELEMENTS), np.zeros_like(ELEMENTS))
    going = carry[2] < LIMIT
    seen = [*carry[2].tolist()]
    while going.any():
        carry = tuple(np.where(going, new, old) for new, old in zip(_moved(carry), carry, strict=True))
        going = carry[2] < LIMIT
        seen += carry[2].tolist()
    return carry, seen


@case("jit", f"{WITHOUT_PREDICATE} {REFUSED_UNDER_PREDICATES}", "H4 H7 H8 X3 X4 B4")
def predicate_through_carries(case: Case) -> None:
    """A tap under a predicate that differs sees each round of the batch; what must run once is refused there.

    The predicate differs only after two rounds, since one value of the carry is made of another.
    """
    wanted, seen_by_condition = _run_of_elements()
    for label, in_condition in (("in the condition", True), ("in the body", False)):
        seen: list[float] = []
        call = calling(case, seen)

        def batch(x: Any, call: Call = call, in_condition: bool = in_condition) -> Any:
            return jax.vmap(lambda each: _loop(call, each, in_condition))(x)

        if case.callback.refusals.batched_predicate or case.callback.refusals.vmap:
            check_refused_batch(case, label, batch, ELEMENTS, seen)
            continue
        case.gives(wanted, jax.jit(batch), ELEMENTS, what=label)
        case.barrier()
        if in_condition and case.callback.ordered:
            case.same("wrong operand", Stage.CALLBACK, seen, seen_by_condition, label)


COLUMNS = np.array([[0.0, 4.0, 9.0], [1.0, 2.0, 3.0]], np.float32)
"""A batch element is a column, and no batch element needs as many rounds as another one."""


@case("jit", WITHOUT_PREDICATE, "H4 H7 X4")
def predicate_of_columns(case: Case) -> None:
    """A callback in a loop's condition sees each round of a batch that is not the first axis of its value."""
    seen: list[float] = []
    call = calling(case, seen)

    def loop(column: Any) -> Any:
        return jax.lax.while_loop(lambda each: call(each.sum()) < LIMIT, lambda each: each + 1, column)

    wanted, sums = COLUMNS.copy(), [*COLUMNS.sum(axis=0).tolist()]
    while (going := wanted.sum(axis=0) < LIMIT).any():
        wanted += going
        sums += wanted.sum(axis=0).tolist()
    for axis in (0, 1):
        seen.clear()
        given = COLUMNS if axis else COLUMNS.T
        program = jax.jit(jax.vmap(loop, in_axes=axis, out_axes=axis))
        case.gives(wanted if axis else wanted.T, program, given, what=f"batch elements on axis {axis}")
        case.barrier()
        if case.callback.ordered:
            case.same("wrong operand", Stage.CALLBACK, seen, sums, f"batch elements on axis {axis}")


@case("jit", f"{WITHOUT_PREDICATE} {REFUSED_UNDER_PREDICATES}", "H4 H7 H8 X3 X4 B4")
def one_of_the_branches(case: Case) -> None:
    """A tap in one branch of a switch whose index differs runs for all batch elements; what must run once is refused.

    Each branch has it in turn.
    """
    index = np.arange(BRANCHES)[::-1].copy()
    for place in range(BRANCHES):
        seen: list[float] = []
        call = calling(case, seen)

        def branch(number: int, call: Call = call, place: int = place) -> Callable[[Any], Any]:
            return lambda x: (call(x) if number == place else x) * np.float32(number + 2)

        def batch(x: Any, branch: Any = branch) -> Any:
            branches = [branch(number) for number in range(BRANCHES)]
            return jax.vmap(lambda i, each: jax.lax.switch(i, branches, each))(index, x)

        label = f"in branch {place}"
        if case.callback.refusals.batched_predicate or case.callback.refusals.vmap:
            check_refused_batch(case, label, batch, ELEMENTS, seen)
            continue
        wanted = ELEMENTS * (index + 2).astype(np.float32)
        case.gives(wanted, jax.jit(batch), ELEMENTS, what=label)
        case.barrier()
        # All batch elements run all branches.
        case.same("wrong operand", Stage.CALLBACK, sorted(seen), sorted(ELEMENTS.tolist()), label)


@case("jit", EVERY_EFFECT, "H4 H7 H8 X3 X4 B4")
def predicate_of_all_elements(case: Case) -> None:
    """Loops and a switch under vmap with one predicate for all elements: callbacks of it run as without vmap."""
    seen: list[float] = []
    call = calling(case, seen)

    def loop(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            step, value = carry
            return call(step) + 1, value * 2

        return jax.lax.while_loop(lambda carry: carry[0] < n, body, (jnp.float32(0), x))[1]

    def conditioned(x: Any, n: Any) -> Any:
        body = lambda carry: (carry[0] + 1, carry[1] * 2)
        return jax.lax.while_loop(lambda carry: call(carry[0]) < n, body, (jnp.float32(0), x))[1]

    def switch(x: Any, n: Any) -> Any:
        return jax.lax.switch(n.astype(int), [lambda x, n: x, lambda x, n: x + 0 * call(n)] * TRIPS, x, n)

    trips, rounds = np.float32(TRIPS), [*map(float, range(TRIPS))]
    in_body, in_condition, in_branch = (
        jax.jit(jax.vmap(function, in_axes=(0, None))) for function in (loop, conditioned, switch)
    )
    for label, program, operand, expected, factor in (
        ("in the body of a while_loop", in_body, trips, rounds, 2**TRIPS),
        ("in the condition of a while_loop", in_condition, trips, [*rounds, float(TRIPS)], 2**TRIPS),
        ("in a branch", in_branch, np.float32(3), [3.0], 1),
        ("in a branch that is not taken", in_branch, np.float32(2), [], 1),
    ):
        seen.clear()
        case.gives(ELEMENTS * np.float32(factor), program, ELEMENTS, operand, what=label)
        case.barrier()
        case.same("wrong count", Stage.CALLBACK, seen if case.callback.ordered else sorted(seen), expected, label)


@case("jit", ONCE, "X3 B4")
def refused_where_repeated(case: Case) -> None:
    """A callback that nothing batches or differentiates, where JAX runs the code around it too often: refused."""
    seen: list[float] = []
    call = calling(case, seen)

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda carry: carry < x, lambda carry: carry + call(jnp.float32(1)), jnp.float32(0))

    def branch(first: bool) -> Call:
        branches = [lambda: call(jnp.float32(1)), lambda: jnp.float32(2)]
        return lambda x: jax.lax.cond(x > ELEMENTS[1], *(branches if first else branches[::-1]))

    for label, function in (
        ("in the body of a while_loop", loop),
        ("in the first branch", branch(True)),
        ("in the second branch", branch(False)),
    ):
        check_refused_batch(case, label, jax.vmap(function), ELEMENTS, seen)
        seen.clear()
        case.drain()

    def checkpointed(x: Any, n: Any) -> Any:
        # The sine after it needs the checkpoint's result, so that the backward pass runs it again.
        return jnp.sin(jax.checkpoint(lambda y: jnp.sin(y) * call(n))(x))

    refusal = case.callback.refusals.checkpoint
    assert refusal is not None
    program = jax.jit(jax.grad(checkpointed))
    case.raises(lambda: program(LIMIT, LIMIT), of=refusal.errors, kind="not refused", stage=Stage.TRACE)
    case.drain()
    case.same("not refused", Stage.TRACE, seen, [], "what a refused callback saw")


@case("jit", "debug_callback", "X4")
def condition_of_elements_that_differ(case: Case) -> None:
    """A debug callback in the condition of a while_loop whose elements end at different steps: it runs, and all end."""
    host = case.host()

    def one(count: Any) -> Any:
        def condition(carry: Any) -> Any:
            case.apply(host, carry[0])
            return carry[0] < count

        return jax.lax.while_loop(condition, lambda carry: (carry[0] + 1, carry[1] * 2), (0, np.float32(1)))

    counts = np.array([1, 3], np.int32)
    case.gives((counts, np.array([2, 8], np.float32)), jax.jit(jax.vmap(one)), counts)
    case.barrier()
    steps = {int(event.leaves[0]) for event in case.events}
    case.check(steps >= {*range(4)}, "lost", Stage.CALLBACK, f"the condition of steps 0 to 3 called back for {steps}")


def check_refused_batch(case: Case, label: str, program: Callable[[Any], Any], operand: Any, seen: list[float]) -> None:
    # Some are refused under any vmap, and may be refused for the one reason or for the other.
    refused = case.callback.refusals
    refusals = [each for each in (refused.batched_predicate, refused.vmap) if each is not None]
    errors = tuple(error for refusal in refusals for error in refusal.errors)
    words = [word for refusal in refusals for word in refusal.words]
    try:
        jax.block_until_ready(jax.jit(program)(operand))
    except Exception as error:
        said = str(error).lower()
        right = isinstance(error, errors) and any(word.lower() in said for word in words) and not seen
        witness = f"{label}: expected a refusal with one of {words}, got {summary(error)}; it saw {seen}"
        case.check(right, "wrong refusal", stage_of(error), witness)
    else:
        case.wrong("not refused", Stage.TRACE, f"{label}: the program ran, and showed {seen}")


AXIS = "batch"
VECTORS = np.stack([ELEMENTS, ELEMENTS + 1], axis=1)
MARK = np.float32(7)
"""A constant of the body."""

OF_ELEMENTS, OF_ALL = np.array([2.0, 5.0, 9.0], np.float32), np.float32(3)


def _run(limits: Any, steps: Any) -> tuple[Any, list[float], int]:
    """The vectors at the end, what the condition sees of them, and how often the body runs."""
    numbers, vectors, rounds = np.zeros_like(ELEMENTS), VECTORS, 0
    seen = [*vectors.ravel().tolist()]
    while (going := numbers < limits).any():
        numbers = np.where(going, numbers + steps, numbers)
        vectors = np.where(going[:, None], vectors * 2, vectors)
        seen += vectors.ravel().tolist()
        rounds += 1
    return vectors, seen, rounds


@case("jit", f"{WITHOUT_PREDICATE} {REFUSED_UNDER_PREDICATES}", "H4 H7 H8 X3 X4 B4")
def predicate_through_constants(case: Case) -> None:
    """A tap under a predicate that differs sees each round; a value of all elements comes once a round.

    It differs by a constant of the condition, or of the body, or by the element's number alone. What must run once is
    refused.
    """
    for label, limit, step, numbered in (
        ("a limit of each batch element", ELEMENTS, OF_ALL, False),
        ("a step of each batch element", MARK, OF_ELEMENTS, False),
        ("steps by the number of the batch element", MARK, OF_ALL, True),
    ):
        seen: list[float] = []
        marks: list[float] = []
        look, note = calling(case, seen), calling(case, marks)

        def one(vector: Any, limit: Any, step: Any, mark: Any, numbered: bool = numbered) -> Any:
            def condition(carry: Any) -> Any:
                number, vector = carry
                look(vector)  # noqa: B023 - the loop is traced in this round
                return number < limit

            def body(carry: Any) -> Any:
                number, vector = carry
                note(mark)  # noqa: B023
                return number + step + (jax.lax.axis_index(AXIS) if numbered else 0), vector * 2

            return jax.lax.while_loop(condition, body, (jnp.float32(0), vector))[1]

        axes = (0, *(0 if np.ndim(each) else None for each in (limit, step)), None)

        def batch(vectors: Any, one: Any = one, axes: Any = axes, limit: Any = limit, step: Any = step) -> Any:
            return jax.vmap(one, in_axes=axes, axis_name=AXIS)(vectors, limit, step, jnp.float32(MARK))

        if case.callback.refusals.batched_predicate or case.callback.refusals.vmap:
            check_refused_batch(case, label, batch, VECTORS, [])
            continue
        wanted, seen_by_condition, rounds = _run(limit, step + (np.arange(len(ELEMENTS)) if numbered else 0))
        case.gives(wanted, jax.jit(batch), VECTORS, what=label)
        case.barrier()
        if case.callback.ordered:
            case.same("wrong operand", Stage.CALLBACK, seen, seen_by_condition, f"{label}: the condition saw")
        case.same("wrong operand", Stage.CALLBACK, marks, [float(MARK)] * rounds, f"{label}: the body saw")
