"""What a trace writes of values that are still queued when it ends, and of threads that ask for one file."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import jax
import pytest
from support import helpers

import hostcb as hcb
from hostcb._runtime.observing import recording

pytestmark = pytest.mark.contract("H22")


def test_a_value_that_is_queued_at_the_end_has_no_half_of_an_arrow(tmp_path: Path) -> None:
    """Another thread may tap while a trace ends."""
    gate = threading.Event()
    program = jax.jit(lambda x: hcb.id_tap(lambda *_: gate.wait(helpers.DEADLINE), x))
    recorder = recording.begin(str(tmp_path / "trace.json"), False)
    jax.block_until_ready(program(1.0))
    recording.end(recorder)
    gate.set()
    hcb.barrier_wait()
    events = json.loads((tmp_path / "trace.json").read_text())
    slices = [(event["cat"], event["args"]["sequence"]) for event in events if event["ph"] == "X"]
    assert slices == [("queue", 0)], "the first slice of a trace has the number 0"
    assert [event for event in events if event["ph"] in "sf"] == []


def test_of_threads_that_ask_for_one_file_one_gets_it(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.json")
    together = threading.Barrier(8)
    begun: list[recording.Recorder] = []
    refused: list[str] = []

    def ask() -> None:
        together.wait(helpers.DEADLINE)
        try:
            begun.append(recording.begin(path, False))
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(helpers.DEADLINE)
    for recorder in begun:
        recording.end(recorder)
    assert (len(begun), len(refused)) == (1, 7)
    assert "Give each trace its own file" in refused[0]
    # The file is free again.
    recording.end(recording.begin(path, False))
