"""H13, H15, H32: which exception is the cause of which error, at each run, in each thread, and with which frames."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.first_lines import barrier, files_of
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._errors.failures import failure_log

pytestmark = pytest.mark.contract("H15", "H32")

KINDS = {
    "call": lambda function, x: hcb.call(function, x, result_shape=x),
    "pure_callback": lambda function, x: hcb.pure_callback(function, x, x),
    "io_callback": lambda function, x: hcb.io_callback(function, x, x),
}
ONE = np.float32(1)


def fails(*_: Any) -> Any:
    raise ValueError("planted")


def cause_of(program: Any, x: Any) -> BaseException | None:
    try:
        jax.block_until_ready(program(x))
    except jax.errors.JaxRuntimeError as error:
        return error.__cause__
    return None


class Empty(ValueError):
    """It is false, as an empty container is."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_run_has_its_own_cause_also_after_runs_without_a_failure(kind: str) -> None:
    runs = iter(range(1, 7))

    def host(value: Any) -> Any:
        number = next(runs)
        if number > 2:
            raise Empty(number)
        return value

    program = jax.jit(lambda x: KINDS[kind](host, x))
    causes = [cause_of(program, ONE) for _ in range(6)]
    barrier()
    assert [None if cause is None else cause.args for cause in causes] == [None, None, (3,), (4,), (5,), (6,)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_two_threads_has_its_own_cause(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, both = threading.Barrier(2), threading.Barrier(2)

    def host(value: Any) -> Any:
        begin.wait(DEADLINE)
        raise ValueError(float(value))

    record = failure_log.record

    def recorded_together(*arguments: Any, **keywords: Any) -> None:
        """Both failures are known before any is raised."""
        record(*arguments, **keywords)
        both.wait(DEADLINE)

    program = jax.jit(lambda x: KINDS[kind](host, x)).lower(ONE).compile()
    causes: dict[float, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: causes.update({n: cause_of(program, np.float32(n))})) for n in (1.0, 2.0)
    ]
    monkeypatch.setattr(failure_log, "record", recorded_together)
    [thread.start() for thread in threads]
    [thread.join(DEADLINE) for thread in threads]
    barrier()
    assert {number: cause.args for number, cause in causes.items()} == {1.0: (1.0,), 2.0: (2.0,)}


@pytest.mark.contract("H13")
@pytest.mark.parametrize("order", ["c", "t", "tc", "ct", "ctc"])
def test_a_barrier_says_of_the_last_failure_whether_a_computation_has_ended(order: str) -> None:
    program = jax.jit(lambda x: hcb.call(fails, x, result_shape=x))
    for each in order:
        if each == "c":
            assert cause_of(program, ONE) is not None
        else:
            hcb.id_tap(fails, ONE)
            # It waits, and reports no failure.
            jax.effects_barrier()
    reported = barrier()
    assert [failure.ended for failure in reported.failures] == [each == "c" for each in order]
    assert ("has ended with this failure" in str(reported)) is order.endswith("c")


def fails_in_jax(value: Any) -> Any:
    return jax.numpy.reshape(value, (7,))


@pytest.mark.parametrize("function", [fails, fails_in_jax])
@pytest.mark.parametrize("way", ["off", "remove_frames", "tracebackhide"])
@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_hostcb_and_jax_are_in_a_traceback_only_if_jax_filters_none(
    kind: str, way: str, function: Any
) -> None:
    before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_filtering", way)
    try:
        assert cause_of(jax.jit(lambda x: KINDS[kind](function, x)), ONE) is not None
        files = files_of(barrier().__cause__)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    packages = [Path(hcb.__file__).parent, *([Path(jax.__file__).parent] if function is fails_in_jax else [])]
    for package in packages:
        assert any(file.startswith(str(package)) for file in files) is (way == "off"), package
    assert way == "off" or {*files} == {__file__}


@pytest.mark.parametrize("kind", ["call", "io_callback"])
def test_a_failure_of_jaxs_own_callback_has_not_the_cause_of_an_earlier_run(kind: str) -> None:
    failing = ""

    def mine(value: Any) -> Any:
        if failing == "mine":
            raise KeyError("mine")
        return value

    def of_jax(value: Any) -> Any:
        if failing == "of jax":
            raise OSError("another origin")
        return np.asarray(value)

    shape = jax.ShapeDtypeStruct((), np.float32)
    program = jax.jit(lambda x: jax.pure_callback(of_jax, shape, KINDS[kind](mine, x)))
    for failing in ("mine", "of jax", "mine", "of jax"):
        text = "mine" if failing == "mine" else "another origin"
        with pytest.raises(jax.errors.JaxRuntimeError, match=text) as caught:
            jax.block_until_ready(program(ONE))
        assert isinstance(caught.value.__cause__, KeyError) is (failing == "mine")
    failing = ""
    barrier()
    assert float(program(ONE)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_asyncio_receive_the_failures_of_their_own_calls(kind: str) -> None:
    def host(value: Any) -> Any:
        if value % 2:
            raise ValueError(float(value))
        return value

    program = jax.jit(lambda x: KINDS[kind](host, x))

    async def steps() -> list[Any]:
        causes = []
        for number in range(4):
            causes.append(cause_of(program, np.float32(number)))
            await asyncio.sleep(0)
        return [cause and cause.args for cause in causes]

    async def both() -> list[list[Any]]:
        return await asyncio.gather(steps(), steps())

    assert asyncio.run(both()) == [[None, (1.0,), None, (3.0,)]] * 2
    assert len(barrier().failures) == 4


@pytest.mark.parametrize("staged", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["a device", "a mesh"])
def test_neither_the_cause_nor_the_context_is_an_error_of_hostcb(on: str, kind: str, staged: Any) -> None:
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    operand = jax.device_put(ONE, everywhere if on == "a mesh" else None)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(staged(lambda x: KINDS[kind](fails, x))(operand))
    barrier()
    error = caught.value
    # Threads of the runtime run the program of a mesh.
    assert isinstance(error.__cause__, ValueError | None if on == "a mesh" else ValueError)
    assert not type(error.__context__).__module__.startswith("hostcb")
