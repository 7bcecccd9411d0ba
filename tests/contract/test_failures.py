"""H13 to H15: what happens when a callback fails, to its own computation and to everything after it."""

from __future__ import annotations

import functools
import json
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from support import helpers
from support.helpers import Record
from support.subprocesses import Ended, run_program

import hostcb as hcb
from hostcb._errors import repeats

X = np.arange(8, dtype=np.float32)


@functools.cache
def failing_calls(layout: str, results: str) -> Ended:
    return run_program("failing_calls.py", layout, results, timeout=100)


VARIANTS = ["eager-pair", "jit-pair", "pmap-pair", "mesh-pair", "mesh-one", "shard_map-nothing"]
FURTHER = ["jit_device_5-pair", "mesh_2d-one", "jit-nothing", "shard_map_subset-pair", "mesh-nothing"]


@pytest.fixture(
    scope="module", params=[*VARIANTS, *(pytest.param(name, marks=pytest.mark.thorough) for name in FURTHER)]
)
def reports(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    layout, results = request.param.split("-")
    ended = failing_calls(layout, results)
    found = [json.loads(line) for line in ended.lines if line.startswith("{")]
    assert found, f"no failing call at all came to its end: {ended}"
    for report in found:
        report["results"] = results
        report["callers"] = len(next(one for one in helpers.LAYOUTS if one.name == layout).callers)
    yield found
    ended.check()
    for noise in ("Exception ignored", "Fatal", "Check failed"):
        assert noise not in ended.stderr, f"the process should end quietly, but wrote: {ended.stderr[-3000:]}"


# What the user returned, as the error should show it; for the others the text of what was raised.
CAME = {
    "wrong_shape": "float32[3]",
    "same_size": "float32[8,1]",
    "broadcastable": "float32[]",
    "zero_size": "float32[0]",
    "wrong_dtype": "int32[8]",
    "half": "float16[8]",
    "bool": "bool[2]",
    "object_array": "object",
    "error_mark_in_tree": "int8[12345]",
}


def came(report: dict[str, Any]) -> str:
    name = report["failure"]
    if name in CAME:
        return CAME[name]
    raised = ("raises", "raises_os_error", "keyboard_interrupt", "system_exit")
    if name in raised:
        return "the reason"
    return "int8[12345]" if name == "error_mark" and report["results"] == "one" else ""


def problems_of_text(text: str, report: dict[str, Any]) -> list[str]:
    expected = {"pair": ["float32[8]", "int32[2]"], "one": ["float32[8]"], "nothing": []}[report["results"]]
    parts = ["switchable_callback", came(report), *expected]
    return [f"{report['failure']}: {part!r} missing in {text}" for part in parts if part not in text]


@pytest.mark.contract("H15")
@pytest.mark.parametrize("when", ["raised", "raised_on_one"])
def test_failed_call_is_an_ordinary_exception_that_reports_all(reports: list[Any], when: str) -> None:
    problems = []
    for report in reports:
        name, raised = report["failure"], report[when]
        if raised is None:
            problems.append(f"{name}: the computation ended as if nothing had been wrong")
        elif "Exception" not in raised[1]:
            problems.append(f"{name}: {raised[0]} is no Exception")
        else:
            problems += problems_of_text(raised[2], report)
    assert not problems, "\n".join(problems)


@pytest.mark.contract("H15")
@pytest.mark.parametrize("later", ["same", "other", "same_in_thread", "dispatched_before", "same_after_one",
                                   "other_at_last"])  # fmt: skip
def test_later_computations_go_on(reports: list[Any], later: str) -> None:
    problems = [f"{report['failure']}: {report[later]}" for report in reports if report[later] != "right"]
    assert not problems, f"computation {later!r} after a failed call:\n" + "\n".join(problems)


@pytest.mark.contract("H13", "H15")
def test_barrier_reports_failed_calls_and_forgets_them(reports: list[Any]) -> None:
    problems = []
    for report in reports:
        name, told, one = report["failure"], report["barrier"], report["barrier_after_one"]
        if told is None or one is None:
            problems.append(f"{name}: the barrier did not report it")
            continue
        if told["count"] != report["callers"]:
            problems.append(f"{name}: {told['count']} failures, but {report['callers']} device(s) called")
        if one["count"] != 1:
            problems.append(f"{name}: {one['count']} failures, but one device failed")
        if came(report) not in told["text"] or told["cause"] == "None":
            problems.append(f"{name}: {told['text']} with cause {told['cause']}")
        if report["barrier_again"] is not None:
            problems.append(f"{name}: not forgotten: {report['barrier_again']['text']}")
        if report["effects_barrier"] is not None:
            problems.append(f"{name}: jax.effects_barrier raises {report['effects_barrier']}")
    assert not problems, "\n".join(problems)


def failing(arg: Any, transforms: Any = None) -> None:
    del transforms
    raise ValueError(f"the reason {np.asarray(arg).tolist()}")


def last_failure() -> hcb.CallbackException:
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    return caught.value


@pytest.mark.contract("H14")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_failing_tap_does_not_disturb(
    layout: helpers.Layout, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "SECONDS_BETWEEN_COUNTS", math.inf)
    record = Record()

    def program(x):
        hcb.id_tap(record.labelled("before"), x)
        y = hcb.id_tap(failing, x) * 2
        hcb.id_tap(record.labelled("after"), y)
        return hcb.call(record.caller("call"), y, result_shape=y)

    with caplog.at_level(logging.ERROR, logger="hostcb"):
        outs = layout.run(program, layout.same(X))
        exception = last_failure()
    for out in outs:
        helpers.equal(out, X * 2, "result of a computation with a failing tap")
    count = len(layout.callers)
    assert sorted(record.labels) == sorted(["before", "after", "call"] * count), f"later callbacks: {record.labels}"
    assert len(exception.failures) == count, f"{len(exception.failures)} failures of {count} taps"
    logged = [one for one in caplog.records if one.levelno >= logging.ERROR and "the reason" in one.getMessage()]
    assert len(logged) == 1, "devices that fail together have one line"


@pytest.mark.contract("H13")
def test_exception_text_traceback_cause_and_order() -> None:
    @jax.jit
    def program(x):
        for n in range(3):
            hcb.id_tap(failing, x + n)
        return x

    program(1.0)
    exception = last_failure()
    assert isinstance(exception.__cause__, ValueError), f"the cause is {exception.__cause__!r}"
    assert str(exception.__cause__) == "the reason 3.0", "the cause should be the last failure"
    last = "There were exceptions during callback processing. Last one was: ValueError: the reason 3.0"
    assert last in str(exception).splitlines()
    assert "Traceback" not in str(exception), "Python shows that of the cause"
    reasons = [str(failure.exception) for failure in exception.failures]
    assert reasons == [f"the reason {n}.0" for n in (1, 2, 3)], f"failures: {reasons}"
    assert all("in failing" in failure.text for failure in exception.failures), "each failure has its traceback"
    hcb.barrier_wait()


@pytest.mark.contract("H13")
def test_failures_of_several_threads_and_kinds_in_one_exception() -> None:
    def work(n: int) -> None:
        hcb.id_tap(failing, n)
        with pytest.raises(Exception, match="the reason"):
            jax.jit(lambda x: hcb.call(failing, x))(n + 10)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    reasons = {str(failure.exception) for failure in last_failure().failures}
    assert reasons == {f"the reason {n}" for n in (0, 1, 2, 3, 10, 11, 12, 13)}, f"failures: {reasons}"
    hcb.barrier_wait()


def expect_failure(action: Any) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(action())
    return str(caught.value)


@pytest.mark.contract("H15")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
@pytest.mark.parametrize("shape", [(12345,), (), (3,)], ids=str)
def test_honest_int8_results_are_not_the_error_mark(layout: helpers.Layout, shape: tuple[int, ...]) -> None:
    wanted = np.resize(np.arange(12345, dtype=np.int8), shape)
    for value in (wanted, np.zeros(shape, np.int8), np.arange(12345, dtype=np.int8)):
        if value.shape != shape:
            continue
        program = lambda x, value=value: hcb.call(lambda _: value, x, result_shape=value)
        for out in layout.run(program, layout.same(X)):
            helpers.equal(out, value, "an honest int8 result")
    hcb.barrier_wait()


@pytest.mark.contract("H14", "H15")
@pytest.mark.parametrize("looped", [True, False], ids=["in a loop", "one by one"])
def test_taps_before_a_failed_call_have_run_and_those_of_its_results_do_not_run(looped: bool) -> None:
    fails, record = False, Record()

    def add(arg: Any) -> Any:
        if fails and arg == 2:
            raise ValueError("third round")
        return arg + np.float32(1)

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(record.tap, hcb.call(add, x, result_shape=x))

    def steps(x: Any) -> Any:
        if looped:
            return jax.lax.fori_loop(0, 4, step, x)
        for number in range(4):
            x = step(number, x)
        return x

    program = jax.jit(steps)
    # From the second dispatch on it may go another way; and a failure may come in any of them.
    for fails in (False, False, True, True, False, True, False):
        record.all.clear()
        if fails:
            assert "third round" in expect_failure(lambda: program(np.float32(0)))
            last_failure()
        else:
            assert float(program(np.float32(0))) == 4
            hcb.barrier_wait()
        assert record.values == ([1, 2] if fails else [1, 2, 3, 4])


@pytest.mark.contract("H15")
@pytest.mark.parametrize("layout", [helpers.PMAP, helpers.SHARD_MAP], ids=helpers.named)
def test_failure_whose_result_nobody_wants(layout: helpers.Layout) -> None:
    compiled = layout.compile(lambda x: hcb.call(failing, x, result_shape=x))
    good = layout.compile(lambda x: hcb.call(lambda a: a + 1, x, result_shape=x))
    for n in range(3):
        compiled(layout.same(X))
        for out in layout.split(good(layout.same(X))):
            helpers.equal(out, X + 1, f"the computation after {n + 1} failed and dropped ones")
    assert len(last_failure().failures) == 3 * len(layout.callers)
    hcb.barrier_wait()
    jax.effects_barrier()


@pytest.mark.contract("H15")
@pytest.mark.parametrize("layout", helpers.COMPILED, ids=helpers.named)
def test_failures_of_a_call_without_a_result(layout: helpers.Layout) -> None:
    """Nothing comes back that could be refused, and still the computation must not pass for a success."""
    expect_failure(lambda: layout.compile(lambda x: (hcb.call(failing, x), x + 1)[1])(layout.same(X)))
    assert len(last_failure().failures) == len(layout.callers)


@pytest.mark.contract("H15")
def test_tap_and_call_failures_in_one_program() -> None:
    record = Record()

    @jax.jit
    def program(x):
        hcb.id_tap(failing, x)
        y = hcb.call(failing, x + 1, result_shape=x)
        hcb.id_tap(record.tap, x)
        return y

    expect_failure(lambda: program(1.0))
    reasons = [str(failure.exception) for failure in last_failure().failures]
    assert reasons == ["the reason 1.0", "the reason 2.0"], f"failures in the order in which they happened: {reasons}"
