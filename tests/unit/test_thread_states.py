"""D3, H9: threads of the runtime keep their state from one callback to the next, and nothing comes of it at the end."""

from __future__ import annotations

import threading

import pytest
from support.subprocesses import run_program

from hostcb._threads import thread_states
from hostcb._threads.thread_states import ThreadStateKeeper

LOCALS = """
made, seen = [], []

class Local(threading.local):
    def __init__(self):
        made.append(threading.get_ident())

local = Local()
main = threading.get_ident()

def tap(value):
    local.count = getattr(local, "count", 0) + 1
    seen.append((threading.get_ident(), local.count))
    return value

program = jax.pmap(
    lambda x: jax.lax.fori_loop(0, 50, lambda i, c: hcb.call(tap, c, result_shape=c) + 1, x), devices=jax.devices()
)
for _ in range(3):
    assert np.asarray(program(jnp.zeros(4))).tolist() == [50.0] * 4
    hcb.barrier_wait()
threads = {ident for ident, _ in seen}
counts = {ident: max(n for each, n in seen if each == ident) for ident in threads}
print(json.dumps({"calls": sum(counts.values()), "made": len(made), "threads": len(threads)}))
"""


def test_what_is_local_to_a_thread_of_the_runtime_stays() -> None:
    found = run_program(LOCALS, devices=4).json()
    assert found["calls"] == 600, f"each call should find what the one before it left in its thread: {found}"
    # One more for the main thread.
    assert found["made"] <= found["threads"] + 1, f"{found}"


def test_threads_of_python_have_a_state_anyway() -> None:
    keeper, kept = ThreadStateKeeper(), []
    keeper.keep()

    def run() -> None:
        keeper.keep()
        kept.append(keeper.kept)

    thread = threading.Thread(target=run, name="one of Python's")
    thread.start()
    thread.join(10)
    assert kept == [0]


@pytest.mark.contract("H20")
def test_no_more_states_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    keeper = ThreadStateKeeper()
    monkeypatch.setattr(thread_states, "MOST_KEPT", 3)
    monkeypatch.setattr(thread_states, "is_pythons", lambda: False)
    monkeypatch.setattr(keeper, "_enter", lambda: entered.append(1))
    for _ in range(5):
        keeper.keep()
    assert len(entered) == keeper.kept == 3
    without = ThreadStateKeeper()
    monkeypatch.setattr(without, "_enter", None)
    without.keep()
    assert without.kept == 0


ENDING = """
def slow(value):
    time.sleep(0.001)
    return value

program = jax.pmap(lambda x: jax.lax.fori_loop(0, 20, lambda i, c: hcb.call(slow, c, result_shape=c), x))
threading.Thread(target=lambda: program(jnp.zeros(4)), daemon=True).start()
hcb.id_tap(lambda value, transforms: os.write(1, b"tapped\\n"), program(jnp.ones(4))[0])
os.write(1, b"ends\\n")
"""


@pytest.mark.contract("H20")
def test_a_process_ends_while_threads_of_the_runtime_have_states() -> None:
    ended = run_program(ENDING, devices=4).check()
    assert sorted(ended.lines) == ["ends", "tapped"]


def test_a_python_without_the_function_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_states.ctypes, "pythonapi", object())
    keeper = ThreadStateKeeper()
    thread = threading.Thread(target=keeper.keep)
    thread.start()
    thread.join()
    assert keeper.kept == 0
