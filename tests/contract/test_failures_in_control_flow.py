"""H15: a call that fails in a loop or a branch ends it there, and the program runs again afterwards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.subprocesses import run_program

import hostcb as hcb

X = np.arange(8, dtype=np.float32)


def last_failure() -> hcb.CallbackException:
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    return caught.value


def expect_failure(action: Any) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(action())
    return str(caught.value)


@pytest.mark.contract("H15")
@pytest.mark.parametrize("construct", ["while_body", "while_cond", "scan", "cond", "fori_unused"])
@pytest.mark.parametrize("layout", [helpers.JIT, helpers.PMAP], ids=helpers.named)
def test_failing_call_in_control_flow(layout: helpers.Layout, construct: str) -> None:
    helpers_control_flow(layout, construct)


@pytest.mark.contract("H15")
def test_failing_call_in_control_flow_over_a_mesh() -> None:
    """In a process of its own: where devices do not refuse together, the runtime aborts it."""
    source = """
import test_failures_in_control_flow; from support import helpers
for construct in ("while_body", "while_cond", "scan", "cond", "fori_unused"):
    test_failures_in_control_flow.helpers_control_flow(helpers.MESH, construct)
    test_failures_in_control_flow.helpers_control_flow(helpers.SHARD_MAP, construct)
    print(construct)
"""
    ended = run_program(source).check()
    assert ended.lines == ["while_body", "while_cond", "scan", "cond", "fori_unused"], str(ended)


def helpers_control_flow(layout: helpers.Layout, construct: str) -> None:
    """Fail at the third of five rounds; then everything works again, and no later round had run."""
    rounds: list[int] = []
    failing = [True]

    def function(i: Any) -> Any:
        rounds.append(int(i))
        if failing[0] and i == 2:
            raise ValueError("third round")
        return np.int32(i)

    def step(i):
        return hcb.call(function, i, result_shape=jax.ShapeDtypeStruct((), np.int32))

    def program(x):
        if construct == "while_body":
            return jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (step(s[0]) + 1, s[1] + 1), (0, x))[1]
        if construct == "while_cond":
            return jax.lax.while_loop(lambda s: step(s[0]) < 5, lambda s: (s[0] + 1, s[1] + 1), (0, x))[1]
        if construct == "scan":
            return jax.lax.scan(lambda c, i: (c + step(i) - i + 1, None), x, jnp.arange(5))[0]
        if construct == "cond":
            return jax.lax.fori_loop(
                0, 5, lambda i, c: jax.lax.cond(i == 2, lambda: c + step(i) - 1, lambda: c + 1), x)  # fmt: skip
        return jax.lax.fori_loop(0, 5, lambda i, c: (step(i), c + 1)[1], x)

    compiled = layout.compile(program)
    text = expect_failure(lambda: compiled(layout.same(X)))
    assert "third round" in text, f"the reason should be in the message: {text}"
    assert len(last_failure().failures) >= 1
    if len(layout.callers) == 1 and layout is not helpers.MESH:
        expected = [2] if construct == "cond" else [0, 1, 2]
        assert rounds == expected, f"{construct}: rounds {rounds}, but should end at the failure"
    failing[0] = False
    for out in layout.split(jax.block_until_ready(compiled(layout.same(X)))):
        helpers.equal(out, X + 5, f"result of {construct} after a failure")
    hcb.barrier_wait()
