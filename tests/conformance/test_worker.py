"""How a worker runs a cell: broken callbacks, wrong data, and a history that is complete."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from suite_runs import DEADLINE, ran

from conformance.cases.failures.misbehaving import Misbehaving
from conformance.cases.harness.hosts import Host, add_one
from conformance.implementations import load
from conformance.implementations.external import _OfBuffers
from conformance.implementations.jax import NAMESPACE, Jax
from conformance.implementations.payloads import DataPayload, Payload, ProgramFunction
from conformance.oracle.history import Recorder
from conformance.oracle.verdicts import Verdict
from conformance.planning.cells import TableCell, parse_cell
from conformance.spec.callbacks import HOST_CALLBACKS
from conformance.spec.data import DataKind, flatten
from conformance.worker.cells import run_cell
from conformance.worker.execution import _parts
from conformance.worker.private_jax import several_times
from conformance.worker.transport import last_words

pytestmark = pytest.mark.contract("C5", "C6")


# Broken versions of JAX's own callbacks: those that no mutant of hostcb stands for.


def pure_for_io(function: Any, wanted: Any, *args: Any, ordered: bool = False) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="sequential")


def expanding(function: Any, wanted: Any, *args: Any, vmap_method: Any = None) -> Any:
    return NAMESPACE.pure_callback(function, wanted, *args, vmap_method="expand_dims")


def gathered(function: Any, *args: Any, ordered: bool = False, partitioned: bool) -> None:
    jax.debug.callback(function, *args, ordered=ordered)


GATHERED = SimpleNamespace(callback=gathered, print=jax.debug.print)


def taking_anything(function: Any, wanted: Any, **options: Any) -> Any:
    def host(context: Any, out: Any, operand: Any) -> None:
        np.asarray(out)[...] = function(context, out, operand)

    return NAMESPACE.buffer_callback(host, wanted, **options)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "io_callback/jit": ({"io_callback": pure_for_io}, "lost: cpu:0 never ran #2 (unused"),
    "pure_callback_broadcast_all/vmap": ({"pure_callback": expanding}, "wrong operand"),
    "debug_callback_partitioned/pjit": (
        {"debug": GATHERED},
        "wrong operand",
    ),
    "buffer_callback/case.returns_a_value.jit": ({"buffer_callback": taking_anything}, "nothing was raised"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_callback_is_caught(name: str, devices: list[jax.Device]) -> None:
    names, witness = BROKEN[name]
    implementation = Jax(SimpleNamespace(**{**vars(NAMESPACE), **names}))
    cell: Any = parse_cell(f"jax/{name}/cpu-8dev")
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    outcome = run_cell(cell, implementation, recorder, devices)
    assert outcome.verdict is Verdict.FAIL
    assert witness in outcome.reason


@pytest.mark.parametrize("name", ["pure_callback/table.grad", "debug_callback/table.returns"])
def test_a_wrong_entry_of_the_table_is_found(name: str, devices: list[jax.Device]) -> None:
    cell = parse_cell(f"jax/{name}/cpu-8dev")
    assert isinstance(cell, TableCell)
    wrong = replace(cell, entry=replace(cell.entry, supported=not cell.entry.supported))
    for tried, verdict in ((cell, Verdict.PASS), (wrong, Verdict.FAIL)):
        assert run_cell(tried, load("jax"), Recorder(), devices).verdict is verdict


# Data.

CALL = next(callback for callback in HOST_CALLBACKS if callback.name == "call")
VALUE = jnp.float32(7)


def test_one_wrong_element_of_a_result_and_data_of_another_type_or_tree_show() -> None:
    for element in ("bool", "int8", "float8_e4m3fn", "typed_key"):
        payload = DataPayload(CALL, DataKind(element, "vector", "nested"))
        leaves = flatten(payload.new(VALUE))
        assert payload.received(VALUE, payload.new(VALUE)) == 8
        other = ~leaves[-1][1] if element == "bool" else leaves[-1][0]
        wrong = [*leaves[:-1], leaves[-1].at[1].set(other)]
        assert payload.received(VALUE, payload.data.result_tree(wrong)) != 8
    payload = DataPayload(CALL, DataKind("int8", "vector", "pair"))
    first, second = payload.new(VALUE)
    with pytest.raises(AssertionError, match="a result is int16"):
        payload.received(VALUE, (first, second.astype(jnp.int16)))
    with pytest.raises(AssertionError, match="a tree like"):
        payload.received(VALUE, [first, second])
    recorder = Recorder()
    payload = DataPayload(CALL, DataKind("int8", "scalar", "pair"))
    ProgramFunction("first", recorder, payload)([np.float32(7), np.int8(1)])
    assert [event.site for event in recorder.history().events] == ["first with a tree like [*, *] for one like (*, *)"]


# Programs.


def test_a_message_has_the_site_of_a_callback_and_no_class_of_the_suite() -> None:
    for callback in (ProgramFunction("first", Recorder(), Payload(CALL)), Host("first", Recorder())):
        assert (repr(callback), repr(_OfBuffers(callback, CALL))) == ("callback 'first'",) * 2
    assert repr(_OfBuffers(add_one, CALL)) == "add_one"
    assert repr(Misbehaving()) == "callback 'misbehaving'"


def test_a_history_ends_when_all_devices_have_the_result(devices: list[jax.Device]) -> None:
    returned, ran = threading.Event(), []

    def slow(number: np.ndarray) -> np.ndarray:
        # It ends with the deadline, unless the result was read before.
        if number == 1:
            returned.wait(0.3)
        ran.append(int(number))
        return np.float32(7)

    def on_each(_: jax.Array) -> jax.Array:
        return jax.pure_callback(slow, jax.ShapeDtypeStruct((), np.float32), jax.lax.axis_index("d"))

    mesh = jax.sharding.Mesh(np.array(devices[:2]), "d")
    shards = {"mesh": mesh, "in_specs": PartitionSpec("d"), "out_specs": PartitionSpec(), "check_vma": False}
    program = jax.jit(jax.shard_map(on_each, **shards))
    # JAX dispatches a program anew in C++ from its second run on.
    jax.block_until_ready(program(np.zeros(2, np.float32)))
    ran.clear()
    (whole,) = _parts(program(np.zeros(2, np.float32)))
    returned.set()
    assert whole == 7 and sorted(ran) == [0, 1]


@pytest.mark.parametrize(
    ("source", "error"), [("def (", "SyntaxError: "), ("a = 1\nraise ValueError('it')", "ValueError: it")]
)
def test_the_words_of_an_end_have_the_place_of_its_error(tmp_path: Path, source: str, error: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    words = last_words(ran(tmp_path, sys.executable, "-c", "import broken").stderr)
    assert f'broken.py", line {len(source.splitlines())}' in words and error in words


@pytest.mark.contract("C69")
def test_a_thread_lowers_several_programs_in_one_context_of_its_own() -> None:
    made = several_times(object, 10)
    seen: list[object] = []
    barrier = threading.Barrier(2)

    def make() -> None:
        mine = [made() for _ in range(3)]
        barrier.wait(DEADLINE)
        # After the other thread has made its own.
        seen.extend({*mine, made()})

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(seen) == 2
    assert seen[0] is not seen[1]
