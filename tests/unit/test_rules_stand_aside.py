"""Rules that stand before JAX's own leave programs without callbacks of hostcb alone, in every release."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.extend
import pytest
from support.subprocesses import run_program

from hostcb import _compat
from hostcb._compat import control_flow
from hostcb._primitive import held_functions
from hostcb._spec.effects import ordered
from hostcb._workarounds import branches, shard_maps

pytestmark = pytest.mark.contract("H4")


def plain(*arguments: Any, **params: Any) -> tuple[Any, ...]:
    return arguments, params


CONTEXT = SimpleNamespace(avals_out=[], module_context=SimpleNamespace(axis_context=SimpleNamespace(num_devices=8)))
RULES = {
    "shard_map": shard_maps._shard_map_rule(plain, ordered),
    "cond": branches._cond_rule(plain, ordered),
    "composite": held_functions._lower_composite(plain, ("jaxpr",)),
    "custom_partitioning": held_functions._lower_custom_partitioning(plain, ("call",)),
}


@pytest.mark.parametrize("rule", RULES)
def test_parameters_of_other_names_are_passed_on(rule: str) -> None:
    assert RULES[rule](CONTEXT, 1, 2, renamed=3) == ((CONTEXT, 1, 2), {"renamed": 3})


@pytest.mark.parametrize("params", [{"renamed": 1}, {"jaxpr": None}, {"jaxpr": plain}], ids=["name", "none", "type"])
def test_a_function_held_in_another_way_has_no_effects(params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    primitive = jax.extend.core.Primitive("holding")
    primitive.def_abstract_eval(lambda x, **_: x)
    monkeypatch.setattr(_compat, "holding_function", lambda name: (primitive, None))
    held_functions._mend("holding", ("jaxpr",))
    aval = jax.core.ShapedArray((), "float32")
    assert primitive.abstract_eval(aval, **params) == (aval, set())


def test_the_discharge_of_a_loop_without_callbacks_is_left_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: list[Any] = []
    monkeypatch.setattr(control_flow, "_DISCHARGE", SimpleNamespace(value=plain, put=rules.append))
    asked: list[Any] = []
    control_flow._watch_loops_with_refs(lambda condition: bool(asked.append(condition)), lambda: pytest.fail("refused"))
    assert rules[0](1, 2, cond_jaxpr=3) == ((1, 2), {"cond_jaxpr": 3})
    assert asked == [3]


def test_only_the_body_of_a_scan_with_callbacks_in_a_checkpoint_is_split_by_hostcb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JAX splits other jaxprs with the same function, before and after its rule for such a scan, and other scans."""
    put: dict[str, Any] = {}

    def part(name: str, value: Any) -> None:
        entry = SimpleNamespace(value=value, lost=False, put=lambda rule: put.update({name: rule}))
        monkeypatch.setattr(control_flow, name, entry)

    part("_HOISTING", plain)
    part("_SPLITTING", lambda jaxpr, unknowns: f"{jaxpr} by JAX")
    part("_SCAN_IN_CHECKPOINT", lambda jaxpr: put["_SPLITTING"](jaxpr, [False]))
    for name in ("_MOVE_BINDERS", "_DEBUG_INFO"):
        part(name, None)
    monkeypatch.setattr(control_flow, "_all_depends_on_the_loop", lambda jaxpr, unknowns: f"{jaxpr} by hostcb")
    control_flow.keep_in_scans(lambda jaxpr: jaxpr == "callbacks")

    def split() -> list[str]:
        return [put["_SPLITTING"](jaxpr, [False]) for jaxpr in ("callbacks", "none")]

    by_jax = ["callbacks by JAX", "none by JAX"]
    assert split() == by_jax
    assert [put["_SCAN_IN_CHECKPOINT"](jaxpr) for jaxpr in ("callbacks", "none")] == [
        "callbacks by hostcb",
        "none by JAX",
    ]
    assert split() == by_jax


def test_programs_without_callbacks_are_lowered_as_without_hostcb() -> None:
    with_hostcb, without = (run_program("without_callbacks.py", how, devices=2).check() for how in ("with", "without"))
    assert with_hostcb.stdout == without.stdout
    assert "shard_map without operand" in without.stdout, "a program is missing"
