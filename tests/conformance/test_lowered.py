"""The checks of lowered programs: a good module has no anomaly, and each planted defect has its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostcb
from conformance.implementations import load
from conformance.oracle.history import Recorder
from conformance.oracle.lowered_checks import SITE_END, SITE_MARK, Wanted, compiled_sites, judge_lowered, lost_sites
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.planning.cells import parse_cell
from conformance.spec.platform_targets import TARGETS
from conformance.worker.aot import take_cell
from conformance.worker.private_jax import StandIn, lowering_for
from conformance.worker.stablehlo import read_module

pytestmark = pytest.mark.contract("C30")

DEVICES = jax.devices()[:4]
MESH = Mesh(np.array(DEVICES), ("x",))
SITES = ("first", "second", "third")


def at(site: str) -> Any:
    return jax.named_scope(f"{SITE_MARK}{site}{SITE_END}")


def tap(site: str, x: Any) -> Any:
    with at(site):
        return hostcb.id_tap(lambda value, transforms: None, x)


def call(site: str, x: Any) -> Any:
    with at(site):
        return hostcb.call(lambda value: value, x, result_shape=x)


def in_a_row(x: Any) -> Any:
    return tap("third", tap("second", tap("first", x) * 2) + 1)


def in_control_flow(x: Any) -> Any:
    x = jax.lax.fori_loop(0, x[0].astype(int), lambda _, y: tap("first", y) + 1, x)
    return tap("third", jax.lax.cond(x[0] > 3, lambda y: tap("second", y) + 1, lambda y: y, x))


def in_place(x: Any) -> Any:
    with at("first"):
        return hostcb.buffer_callback(lambda context, out, value: None, x, input_output_aliases={0: 0})(x)


def pure(x: Any) -> Any:
    with at("first"):
        return hostcb.pure_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def lowered(platform: str, function: Callable[[Any], Any], spread: bool = False) -> tuple[str, StandIn]:
    sharding = NamedSharding(MESH, P("x")) if spread else None
    operand = jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding)
    with lowering_for(platform) as client:
        text = jax.jit(function).trace(operand).lower(lowering_platforms=(platform,)).as_text(debug_info=True)
    return text, client


def wanted(platform: str, sites: tuple[str, ...] = SITES, devices: int = 1, **more: Any) -> Wanted:
    options = {"ordered": True, **more}
    return Wanted(TARGETS[platform], devices, needed=frozenset(sites), **options)


def kinds(text: str, expected: Wanted, client: StandIn | None = None) -> list[str]:
    """The kinds of the anomalies in a module, without repetitions."""
    with mlir.make_ir_context():
        module = read_module(mlir.ir.Module.parse(text), client.callbacks if client else None)
        return [*dict.fromkeys(anomaly.kind for anomaly in judge_lowered(module, expected))]


def changed(text: str, pattern: str, replacement: Any, count: int = 1) -> str:
    result, made = re.subn(pattern, replacement, text, count=count)
    assert made, f"nothing in the module is like {pattern}"
    return result


@pytest.mark.parametrize("function", [in_a_row, in_control_flow])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm", "tpu", "oneapi"])
def test_what_hostcb_makes_is_good(platform: str, function: Any) -> None:
    text, client = lowered(platform, function)
    assert kinds(text, wanted(platform), client if platform == "tpu" else None) == []


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_callback_that_takes_an_older_token_breaks_the_order(platform: str) -> None:
    text, _ = lowered(platform, in_a_row)
    if platform == "tpu":
        bad = changed(text, r'("stablehlo.send"\(%\d+, )%1#1\)', r"\1%arg0)")
    else:
        bad = changed(text, r"(@xla_ffi_python_gpu_callback\()%0,", r"\1%arg0,")
    assert kinds(bad, wanted(platform)) == ["order"]


def test_a_fresh_token_between_two_callbacks_breaks_the_order() -> None:
    text, _ = lowered("cuda", in_a_row)
    line = r"( +%\d+ = stablehlo.custom_call @xla_ffi_python_gpu_callback\()%0,"
    bad = changed(text, line, r"%fresh = stablehlo.create_token : !stablehlo.token\n\1%fresh,")
    assert kinds(bad, wanted("cuda")) == ["order"]


def test_a_loop_or_branch_that_returns_its_first_token_breaks_the_order() -> None:
    text, _ = lowered("cuda", in_control_flow)
    returns = [*re.finditer(r"stablehlo.return (%\w+)(?:#0)?(, .*: !stablehlo.token)", text)]
    assert len(returns) == 3
    for found in (returns[0], returns[2] if "custom_call" in text[: returns[2].start()] else returns[1]):
        arguments = re.findall(r"%iterArg(?:_\d+)?(?= = )|%arg0", text[: found.start()])
        other = next(name for name in ("%iterArg", "%arg0") if name in arguments and name != found[1])
        bad = text[: found.start(1)] + other + text[found.end(1) :]
        if kinds(bad, wanted("cuda")) == ["order"]:
            return
    raise AssertionError("no change of a returned token was found")


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    ("what", "pattern", "replacement"),
    [
        ("dropped", r", sdy.sharding = #sdy.sharding_per_value<\[<@maximal[^>]*>[^}]*\]>", ""),
        ("another device", r"device_ids=\[0\]", "device_ids=[1]"),
    ],
)
def test_on_a_mesh_each_callback_is_on_the_first_device(
    platform: str, what: str, pattern: str, replacement: str
) -> None:
    del what
    text, _ = lowered(platform, in_a_row, spread=True)
    expected = wanted(platform, devices=4)
    assert kinds(text, expected) == []
    assert kinds(changed(text, pattern, replacement), expected) == ["sharding"]


def test_without_shardy_each_transfer_in_a_shard_map_is_manual() -> None:
    mapped = jax.shard_map(in_a_row, mesh=MESH, in_specs=P("x"), out_specs=P("x"))
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        text, _ = lowered("tpu", mapped, spread=True)
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert kinds(text, wanted("tpu", devices=4)) == []
    send = r'("stablehlo.send".*?), mhlo.sharding = "\{manual\}"'
    assert kinds(changed(text, send, r"\1"), wanted("tpu", devices=4)) == ["sharding"]


def shown(x: Any) -> Any:
    with at("first"):
        hostcb.debug.callback(lambda value: None, x)
    return x


@pytest.mark.parametrize("replacement", ["#sdy.sharding_per_value<[]>", None], ids=["of no result", "none"])
def test_a_callback_without_results_in_a_shard_map_has_a_sharding_all_the_same(replacement: str | None) -> None:
    """XLA's partitioner refuses it otherwise; Shardy makes only results manual."""
    text, _ = lowered("cuda", jax.shard_map(shown, mesh=MESH, in_specs=P("x"), out_specs=P("x")), spread=True)
    expected = wanted("cuda", ("first",), devices=4, ordered=False)
    assert kinds(text, expected) == []
    sharding = r"sdy.sharding = #sdy.sharding_per_value<\[<@empty_mesh, \[\]>\]>"
    bad = changed(text, f", {sharding}", f", sdy.sharding = {replacement}" if replacement else "")
    assert kinds(bad, expected) == ["sharding"]


def test_another_target_is_found() -> None:
    text, _ = lowered("cuda", in_a_row)
    found = kinds(changed(text, "xla_ffi_python_gpu_callback", "xla_ffi_python_cpu_callback"), wanted("cuda"))
    assert found[:2] == ["target", "lost"]
    assert kinds(text, wanted("tpu"))[0] == "target"


def test_an_alias_that_is_missing_is_found() -> None:
    text, _ = lowered("cuda", in_place)
    expected = wanted("cuda", ("first",), ordered=False, effectful=False, in_place=True, aliased=True)
    assert kinds(text, expected) == []
    assert kinds(changed(text, r"output_operand_aliases = \[[^]]*\[\][^]]*\[\][^]]*\], ", ""), expected) == ["alias"]


def test_side_effects_and_layouts_are_checked() -> None:
    text, _ = lowered("cuda", in_a_row)
    dropped = changed(text, "has_side_effect = true", "has_side_effect = false")
    assert kinds(dropped, wanted("cuda")) == ["side effect"]
    matrix = jax.ShapeDtypeStruct((2, 3), np.float32)
    with lowering_for("cuda"):
        text = jax.jit(in_a_row).trace(matrix).lower(lowering_platforms=("cuda",)).as_text(debug_info=True)
    assert kinds(text, wanted("cuda")) == []
    assert kinds(changed(text, r"dense<\[1, 0\]>", "dense<[0, 1]>"), wanted("cuda")) == ["layout"]


def test_channels_that_are_swapped_are_found() -> None:
    text, client = lowered("tpu", lambda x: call("second", call("first", x)))
    expected = wanted("tpu", ("first", "second"))
    assert kinds(text, expected, client) == []
    numbers = [callback.sends[0] for callback in client.callbacks]
    swapped = {str(numbers[0]): str(numbers[1]), str(numbers[1]): str(numbers[0])}
    pattern = rf'(handle = |rendezvous = ")({"|".join(swapped)})\b'
    both = changed(text, pattern, lambda found: found[1] + swapped[found[2]], count=0)
    assert kinds(both, expected, client) == ["channel"]
    # The runtime meets a transfer by its rendezvous.
    assert kinds(changed(text, r'rendezvous = "\d+"', 'rendezvous = "77"'), expected, client) == ["channel"]


def test_a_callback_that_is_lost_or_kept_for_nothing_is_found() -> None:
    text, _ = lowered("cuda", in_a_row)
    assert kinds(text, wanted("cuda", (*SITES, "fourth"))) == ["lost"]
    text, _ = lowered("tpu", pure)
    expected = wanted("tpu", (), ordered=False, effectful=False, unneeded=frozenset({"first"}))
    assert kinds(text, expected) == ["kept"]


def test_the_number_of_devices_is_checked() -> None:
    text, _ = lowered("cuda", in_a_row)
    assert kinds(text, wanted("cuda", devices=4)) == ["devices"]


def test_sites_are_found_in_compiled_programs() -> None:
    name = f"jit(f)/jvp({SITE_MARK}forward_end{SITE_END})/call"
    named = f'metadata={{op_name="{name}"}}'
    text = f"""
  %a = (f32[4], u32[], token[]) send(%b), channel_id=1, is_host_transfer=true, {named}
  %c = f32[] add(%d), {named}
  %e = (f32[4], u32[], token[]) recv(%a), channel_id=1, is_host_transfer=true
  %g = f32[] custom-call(%h), custom_call_target="xla_ffi_python_gpu_callback", {named}
  %i = f32[] custom-call(%h), custom_call_target="Sharding", {named}
"""
    assert compiled_sites(text, TARGETS["tpu"]) == ["forward_end", None]
    assert compiled_sites(text, TARGETS["cuda"]) == ["forward_end"]


def test_a_callback_without_a_name_may_be_any_that_is_missing() -> None:
    assert lost_sites(frozenset(SITES), ["first", "second"]) == ["third"]
    assert lost_sites(frozenset(SITES), ["first", "second", None]) == []
    assert lost_sites(frozenset(SITES), ["first", None]) == ["second", "third"]


def taken(cell_id: str) -> Outcome:
    cell = parse_cell(cell_id)
    recorder = Recorder({device.id: index for index, device in enumerate(DEVICES)})
    return take_cell(cell, load(cell.implementation), recorder, DEVICES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell_id", "shown"),
    [
        ("hostcb/call/pjit.scan/tpu-4dev@lower", "lowered"),
        ("hostcb/id_tap/pmap/cuda-4dev@lower", "lowered"),
        ("hostcb/call/vmap/rocm-4dev@lower", "refused"),
        ("hostcb/buffer_callback/jit/tpu-4dev@lower", "refused"),
        ("hostcb/debug_callback_partitioned/pjit/tpu-4dev@lower", "refused"),
        ("jax/io_callback/table.vmap/cuda-4dev@lower", "lowered"),
        ("hostcb/id_tap/jit/cpu-1dev@compile", "compiled"),
    ],
)
def test_a_cell_is_lowered_compiled_or_refused(cell_id: str, shown: str) -> None:
    outcome = taken(cell_id)
    assert (outcome.verdict, outcome.shown) == (Verdict.PASS, shown), outcome.reason


def test_a_defect_of_an_implementation_fails_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.clear_caches()
    monkeypatch.setattr(hostcb._compat, "annotate", lambda *others: None)
    outcome = taken("hostcb/id_tap/pjit/cuda-4dev@lower")
    assert (outcome.verdict, outcome.anomaly) == (Verdict.FAIL, "sharding"), outcome.reason
