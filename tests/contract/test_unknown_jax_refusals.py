"""H21: what is refused on a JAX that lacks one part, in the surroundings that decide about it."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H21")

LACKING = """
import importlib, warnings
import jax, jax.custom_derivatives, jax.numpy as jnp, numpy as np
from jax._src.interpreters import pxla
{before}
owner, name = {owner}, {name!r}
removed = getattr(owner, name)
delattr(owner, name)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import hostcb as hcb
# As if JAX had it under another name: its own functions find it.
setattr(owner, name, removed)
print(len(caught), name in str(caught[0].message))

def attempt(run):
    try:
        print(run())
    except hcb.UnknownJaxError as error:
        print("refused:", name in str(error))
"""


def said(program: str, owner: str, name: str, before: str = "") -> list[str]:
    lacking = LACKING.format(owner=owner, name=name, before=before)
    first, *others = run_program(program, prelude=lacking, devices=2).check().lines
    assert first == "1 True", "one warning, which names what is lost"
    return others


ORDERED_AND_PURE = """
for ordered in (True, False):
    def program(x):
        hcb.debug.callback(lambda _: None, x, ordered=ordered)
        return x
    attempt(lambda: float(jax.jit(program)(1.0)))
attempt(lambda: float(jax.jit(lambda x: hcb.pure_callback(lambda v: v, x, x))(2.0)))
"""


@pytest.mark.parametrize("started", [False, True], ids=["before", "after"])
def test_an_order_that_nothing_keeps_is_refused(started: bool) -> None:
    """Without executions to follow, CPU devices run programs as they are dispatched; those of before do not."""
    before = "jax.devices()" if started else ""
    lines = said(ORDERED_AND_PURE, "pxla.ExecuteReplicated", "_handle_token_bufs", before)
    assert lines == ["refused: True" if started else "1.0", "1.0", "2.0"]


def test_a_program_in_a_mesh_that_cannot_be_left_is_refused() -> None:
    program = """
mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
scalar = jax.ShapeDtypeStruct((), np.float32)
run = lambda: float(jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=scalar))(jnp.float32(3)))
attempt(run)
with jax.set_mesh(mesh):
    attempt(run)
"""
    assert said(program, "importlib.import_module('jax._src.mesh')", "get_concrete_mesh") == ["3.0", "refused: True"]


def test_a_callback_in_a_function_whose_holder_is_not_known_is_refused() -> None:
    program = """
seen = []
tap = lambda x: hcb.id_tap(lambda v, _: seen.append(v.item()), x)
held = lambda x: jax.custom_derivatives.linear_call(lambda _, x: tap(x), lambda _, x: x, (), x)
attempt(lambda: float(jax.jit(tap)(1.0)))
attempt(lambda: float(jax.jit(held)(2.0)))
hcb.barrier_wait()
print(seen)
"""
    lines = said(program, "importlib.import_module('jax._src.custom_derivatives')", "linear_call_p")
    assert lines == ["1.0", "refused: True", "[1.0]"]
