"""H5, H9, H10, H13, H15: two processes of two CPU devices each, where devices are numbered across processes."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.subprocesses import run_program

KINDS = ["id_tap", "call", "pure", "io", "ordered io", "debug", "ordered debug", "buffer", "dlpack"]
# These receive their device.
TOLD = ["id_tap", "call"]
WHOLE, SUM = [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    """What each process saw: by name, what a program returned or failed with, its calls, and the barrier's failures."""
    with socket.socket() as held, ThreadPoolExecutor(2) as threads:
        # The port stays bound, so that no other program gets it; gRPC may bind it as well.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("localhost", 0))
        port = str(held.getsockname()[1])

        def run(number: int) -> Any:
            return run_program("two_processes.py", str(number), port, devices=2, timeout=200).json()

        return list(threads.map(run, range(2)))


def device(kind: str, index: int) -> int | None:
    return index if kind in TOLD else None


@pytest.mark.contract("H9", "H23")
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_every_process_calls_back_on_its_own_devices(kind: str, number: int, outcomes: list[dict[str, Any]]) -> None:
    own = [2 * number, 2 * number + 1]
    on_one = [[[number + 1.0]], [[[number], device(kind, own[1])]], []]
    on_each = [[[each + 1.0] for each in own], [[[each], device(kind, each)] for each in own], []]
    found = {name: found for name, found in outcomes[number].items() if name.endswith(f" {kind}")}
    assert found.pop(f"jit {kind}") == on_one
    assert found.pop(f"shard_map {kind}") == on_each
    assert found.pop(f"eager {kind}", on_one) == on_one
    assert found.pop(f"pmap {kind}", on_each) == on_each


@pytest.mark.contract("D1")
@pytest.mark.parametrize("number", range(2))
def test_jax_takes_what_is_lent_in_every_process(number: int, outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[number]["jnp.from_dlpack"] == [[[number + 1.0]], [[[number], None]], []]


@pytest.mark.contract("H10", "H23")
@pytest.mark.parametrize("number", range(2))
def test_one_process_calls_back_for_all_of_a_mesh(number: int, outcomes: list[dict[str, Any]]) -> None:
    mine, own = outcomes[number], [2 * number, 2 * number + 1]
    parts = [[each + 1.0] for each in own]
    first = [[WHOLE, 0]] if number == 0 else []
    assert mine["mesh id_tap"] == [parts, first, []]
    assert mine["mesh call"] == [[SUM, SUM], first, []]
    assert mine["mesh ordered io"] == [[SUM, SUM], [[WHOLE, None]] if number == 0 else [], []]
    assert mine["global tap"] == [[[each] for each in own], first, []]
    assert mine["global call"] == mine["after a failure"] == mine["mesh call"]
    for index in range(1, 4):
        assert mine[f"call at {index}"] == [[SUM, SUM], [[WHOLE, index]] if index in own else [], []]


@pytest.mark.contract("H15", "H23")
@pytest.mark.parametrize("number", range(2))
def test_a_failure_under_a_mesh_ends_the_program_in_all_processes(number: int, outcomes: list[dict[str, Any]]) -> None:
    mine, own = outcomes[number], f"failed in process {number}"
    assert mine["failing jit"] == [own, [], [own]]
    assert mine["failing pmap"] == [own, [], [own, own]]
    for index, process in ((0, 0), (3, 1)):
        words, failures = (own, [own]) if number == process else ("failed in another process", [])
        assert mine[f"failing at {index}"] == [words, [], failures]
