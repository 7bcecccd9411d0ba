"""Checks of lowered programs: hostcb's pass for every platform, and what is tampered with fails."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from suite_runs import Patch

import hostcb
from conformance.implementations import load
from conformance.oracle.history import Recorder
from conformance.oracle.lowered_checks import SITE_END, SITE_MARK, Wanted, compiled_sites, judge_lowered, lost_sites
from conformance.oracle.verdicts import Verdict
from conformance.planning.cells import parse_cell
from conformance.spec.platform_targets import TARGETS
from conformance.worker.cells import run_cell
from conformance.worker.private_jax import StandIn, lowering_for
from conformance.worker.stablehlo import read_module

pytestmark = pytest.mark.contract("C30")

DEVICES = jax.devices()[:4]
MESH = Mesh(np.array(DEVICES), ("x",))
SITES = ("first", "second", "third")


def at(site: str, call: Any, x: Any, *arguments: Any, **options: Any) -> Any:
    """A callback at a site, with its operand after the other arguments."""
    with jax.named_scope(f"{SITE_MARK}{site}{SITE_END}"):
        return call(*arguments, x, **options)


def tap(site: str, x: Any) -> Any:
    return at(site, hostcb.id_tap, x, lambda value, transforms: None)


def in_a_row(x: Any) -> Any:
    return tap("third", tap("second", tap("first", x) * 2) + 1)


def in_a_loop(x: Any) -> Any:
    return jax.lax.fori_loop(0, x[0].astype(int), lambda _, y: tap("second", tap("first", y)) + 1, x)


def in_a_branch(x: Any) -> Any:
    return jax.lax.cond(x[0] > 3, lambda y: tap("second", tap("first", y)) + 1, lambda y: y, x)


def in_place(x: Any) -> Any:
    return at("first", hostcb.buffer_callback(lambda *_: None, x, input_output_aliases={0: 0}), x)


def pure(x: Any) -> Any:
    return at("first", hostcb.pure_callback, x, lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype))


def shown(x: Any) -> Any:
    return at("first", hostcb.debug.callback, x, lambda value: None) or x


def two_calls(x: Any) -> Any:
    for site in SITES[:2]:
        x = at(site, hostcb.call, x, lambda value: value, result_shape=x)
    return x


def sharded(function: Any) -> Any:
    return jax.shard_map(function, mesh=MESH, in_specs=P("x"), out_specs=P("x"))


def lowered(platform: str, function: Any, shape: tuple[int, ...], spread: bool) -> tuple[str, StandIn]:
    operand = jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(MESH, P("x")) if spread else None)
    with lowering_for(platform) as client:
        # A program that JAX knows already would not be lowered again.
        again = jax.jit(lambda x: function(x))
        text = again.trace(operand).lower(lowering_platforms=(platform,)).as_text(debug_info=True)
    return text, client


def wanted(platform: str, sites: tuple[str, ...], **fields: Any) -> Wanted:
    own = {"device_count": 1, "ordered": True, "needed": frozenset(sites), "target": TARGETS[platform]}
    return Wanted(**own | fields)


def kinds(text: str, expected: Wanted, client: StandIn | None = None) -> list[str]:
    """The kinds of the anomalies in a module, without repetitions."""
    with mlir.make_ir_context():
        module = read_module(mlir.ir.Module.parse(text), client.callbacks if client else None)
        return [*dict.fromkeys(anomaly.kind for anomaly in judge_lowered(module, expected))]


CALL = r"( +%\d+ = stablehlo.custom_call @xla_ffi_python_gpu_callback\()%0,"
SHARDING = r", sdy.sharding = #sdy.sharding_per_value<\[<@maximal[^>]*>[^}]*\]>"
MANUAL = r"sdy.sharding = #sdy.sharding_per_value<\[<@empty_mesh, \[\]>\]>"
ALIASES = r"output_operand_aliases = \[[^]]*\[\][^]]*\[\][^]]*\], "
FRESH = r"%fresh = stablehlo.create_token : !stablehlo.token\n\1%fresh,"
OLDER = r'("stablehlo.send"\(%\d+, )%1#1\)'
OF_LOOP, LATE = r"stablehlo.return %\d+(, %\d+, %iterArg)", r"stablehlo.return %iterArg\1"
OF_BRANCH = r"stablehlo.return %\d+(, %\d+ : !)"
ON_FOUR: dict[str, Any] = {"device_count": 4}
ON_EACH = ON_FOUR | {"ordered": False}
IN_PLACE: dict[str, Any] = {"ordered": False, "effectful": False, "in_place": True, "aliased": True}

# The platform, a program that is good, what is wanted of it, a defect in its text, and what must be found.
TAMPERED: dict[str, tuple[str, Any, dict[str, Any], str, str, str]] = {
    "older token of a call": ("cuda", in_a_row, {}, r"(@xla_ffi_python_gpu_callback\()%0,", r"\1%arg0,", "order"),
    "older token of a send": ("tpu", in_a_row, {}, OLDER, r"\1%arg0)", "order"),
    "fresh token": ("cuda", in_a_row, {}, CALL, FRESH, "order"),
    "token of a loop": ("cuda", in_a_loop, {}, OF_LOOP, LATE, "order"),
    "token of a branch": ("cuda", in_a_branch, {}, OF_BRANCH, r"stablehlo.return %arg0\1", "order"),
    "no sharding of a call": ("cuda", in_a_row, ON_FOUR, SHARDING, "", "sharding"),
    "no sharding of a send": ("tpu", in_a_row, ON_FOUR, SHARDING, "", "sharding"),
    "call on another device": ("cuda", in_a_row, ON_FOUR, r"device_ids=\[0\]", "device_ids=[1]", "sharding"),
    "no manual sharding": ("cuda", sharded(shown), ON_EACH, f", {MANUAL}", "", "sharding"),
    "target": ("cuda", in_a_row, {}, "python_gpu_callback", "python_cpu_callback", "target"),
    "alias": ("cuda", in_place, IN_PLACE, ALIASES, "", "alias"),
    "side effect": ("cuda", in_a_row, {}, "has_side_effect = true", "has_side_effect = false", "side effect"),
    "layout": ("cuda", in_a_row, {}, r"dense<\[1, 0\]>", "dense<[0, 1]>", "layout"),
    "rendezvous": ("tpu", two_calls, {}, r'rendezvous = "\d+"', 'rendezvous = "77"', "channel"),
}
SITES_OF: dict[Any, tuple[str, ...]] = {in_a_row: SITES, in_place: SITES[:1]}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_defect_in_the_text_is_found(what: str) -> None:
    platform, program, fields, pattern, replacement, kind = TAMPERED[what]
    shape = (2, 3) if what == "layout" else (4,)
    text, client = lowered(platform, program, shape, "device_count" in fields)
    sites = SITES_OF.get(program, SITES[:1] if fields is ON_EACH else SITES[:2])
    expected = wanted(platform, sites, **fields)
    assert kinds(text, expected, client if platform == "tpu" else None) == []
    tampered, count = re.subn(pattern, replacement, text, count=1)
    assert count, f"nothing in the module is like {pattern}"
    assert kinds(tampered, expected)[0] == kind


def test_transfers_with_swapped_channels() -> None:
    text, client = lowered("tpu", two_calls, (4,), False)
    first, second = (str(callback.sends[0]) for callback in client.callbacks)
    pattern = rf'(handle = |rendezvous = ")({first}|{second})\b'
    swapped = re.sub(pattern, lambda found: found[1] + (second if found[2] == first else first), text)
    assert kinds(swapped, wanted("tpu", SITES[:2]), client) == ["channel"]


def test_another_program_than_is_wanted_is_found(monkeypatch: Patch) -> None:
    unneeded = {"ordered": False, "effectful": False, "unneeded": frozenset({"first"})}
    for platform, program, expected, kind in (
        ("cuda", in_a_row, wanted("cuda", (*SITES, "fourth")), "lost"),
        ("cuda", in_a_row, wanted("cuda", SITES, device_count=4), "devices"),
        ("cuda", in_a_row, wanted("tpu", SITES), "target"),
        ("tpu", pure, wanted("tpu", (), **unneeded), "kept"),
    ):
        assert kinds(lowered(platform, program, (4,), False)[0], expected)[0] == kind
    # A defect of an implementation fails its cell.
    jax.clear_caches()
    monkeypatch.setattr(hostcb._compat, "annotate", lambda *others: None)
    cell: Any = parse_cell("hostcb/id_tap/pjit/cuda-4dev@lower")
    recorder = Recorder({device.id: index for index, device in enumerate(DEVICES)})
    outcome = run_cell(cell, load("hostcb"), recorder, DEVICES)
    assert (outcome.verdict, outcome.anomaly) == (Verdict.FAIL, "sharding"), outcome.reason


def test_sites_are_found_in_compiled_programs() -> None:
    named = f'metadata={{op_name="jit(f)/jvp({SITE_MARK}forward_end{SITE_END})/call"}}'
    text = f"""
  %a = (f32[4], u32[], token[]) send(%b), channel_id=1, is_host_transfer=true, {named}
  %c = f32[] add(%d), {named}
  %e = (f32[4], u32[], token[]) recv(%a), channel_id=1, is_host_transfer=true
  %g = f32[] custom-call(%h), custom_call_target="xla_ffi_python_gpu_callback", {named}
  %i = f32[] custom-call(%h), custom_call_target="Sharding", {named}
"""
    assert compiled_sites(text, TARGETS["tpu"]) == ["forward_end", None]
    assert compiled_sites(text, TARGETS["cuda"]) == ["forward_end"]
    # A callback without a name may be any that is missing.
    for found, lost in ((SITES[:2], ["third"]), ((*SITES[:2], None), []), (("first", None), ["second", "third"])):
        assert lost_sites(frozenset(SITES), found) == lost
