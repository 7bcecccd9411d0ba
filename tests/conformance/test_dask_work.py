"""A piece of work on a Dask cluster comes back whole, or with a sentence: whatever is lost, nobody waits for ever."""

from __future__ import annotations

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import needs
import pytest

from conformance.engine.cell_runner import StoppedError
from conformance.engine.dask_pieces import JAX, PieceError
from conformance.engine.dask_work import MOST_AGAIN, MOST_LOST, Work
from conformance.engine.requirements import DaskClusterError
from conformance.spec.sources import versions

pytestmark = [pytest.mark.contract("C44"), needs.DASK]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def killed() -> Exception:
    from distributed import KilledWorker

    return KilledWorker("piece", None, 0)


class Future:
    def __init__(self, key: str, error: Exception | None, lines: list[str], is_cancelled: bool = False) -> None:
        self.key, self._error, self._lines, self._is_cancelled = key, error, lines, is_cancelled

    def cancelled(self) -> bool:
        return self._is_cancelled

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[str]:
        return self._lines

    def add_done_callback(self, done: Callable[[Future], None]) -> None:
        done(self)


class Client:
    """A cluster in which each attempt at a piece goes as the test says: its workers and their lines, and its end."""

    def __init__(self, *attempts: tuple[list[list[int]], Exception | str | None]) -> None:
        self.attempts = iter(attempts)
        self.submitted = 0
        self.tell: Any = None

    def submit(self, run: Any, order: Any, piece: str, *rest: Any, **options: Any) -> Future:
        self.submitted += 1
        workers, end = next(self.attempts)
        for lines in workers:
            self.tell((0.0, {"event": "begin", "piece": piece}))
            for number in lines:
                self.tell((0.0, {"event": "line", "piece": piece, "number": number, "line": json.dumps(number)}))
        last = [json.dumps(number) for number in range(4)]
        return Future(piece, end if isinstance(end, Exception) else None, last, end == "cancelled")


def work(client: Client) -> Work:
    made = Work("tcp://nowhere:1", ["jax"], "the releases")
    made._client = client
    client.tell = made._note
    return made


def test_workers_with_other_versions_are_refused() -> None:
    here = versions(["jax"])

    def check(found: Any, ignored: tuple[str, ...] = JAX) -> None:
        made = Work("tcp://nowhere:1", ["jax"], "the cells", ignored)
        kept = found if isinstance(found, Exception) else {k: found[k] for k in found if k not in ignored}
        made._client = SimpleNamespace(run=lambda *_, **__: {"tcp://a": kept})
        made._check_workers()

    check(here, ())
    check(here | {"jax": "0.4.31"})
    with pytest.raises(DaskClusterError, match=f"other versions: jax is 0.4.31 there and {here['jax']} here"):
        check(here | {"jax": "0.4.31"}, ())
    with pytest.raises(DaskClusterError, match="cannot run cells: ModuleNotFoundError"):
        check(ModuleNotFoundError("No module named 'conformance'"))


def asked(client: Client) -> list[int]:
    return list(work(client).ask(str))


def test_each_line_comes_once_although_its_worker_is_lost() -> None:
    client = Client(([[0, 1], [0, 1, 2]], killed()), ([[0]], None))
    assert asked(client) == [0, 1, 2, 3]
    assert client.submitted == 2


def test_a_line_of_which_nothing_was_told_is_in_the_result() -> None:
    assert asked(Client(([], None))) == [0, 1, 2, 3]


def test_what_workers_are_lost_with_again_and_again_is_an_error() -> None:
    client = Client(*[([[0]], killed())] * MOST_AGAIN)
    with pytest.raises(PieceError, match=f"^{MOST_LOST} Dask workers were lost while they ran it$"):
        asked(client)
    assert client.submitted == MOST_LOST
    # Others may have ended the workers for which it has waited.
    client = Client(*[([], killed())] * MOST_AGAIN)
    with pytest.raises(PieceError, match=r"^too many Dask workers were lost before it could run$"):
        asked(client)
    assert client.submitted == MOST_AGAIN


@pytest.mark.parametrize(
    ("end", "error", "words"),
    [
        (PieceError("the process ended with 1: planted"), PieceError, "^the process ended with 1: planted$"),
        (ValueError("planted"), PieceError, "failed on the Dask cluster: ValueError"),
        ("cancelled", DaskClusterError, "^the Dask scheduler at tcp://nowhere:1 is gone$"),
    ],
)
def test_another_end_is_told_at_once(end: Exception | str, error: type[Exception], words: str) -> None:
    client = Client(([[0]], end))
    with pytest.raises(error, match=words):
        asked(client)
    assert client.submitted == 1


def test_a_stop_ends_those_who_wait() -> None:
    made = work(Client())
    made._submit = lambda inbox, *_: made._inboxes.setdefault("piece", inbox)  # type: ignore[method-assign]
    ended: queue.Queue[object] = queue.Queue()

    def wait() -> None:
        try:
            list(made.ask(str))
        except StoppedError as error:
            ended.put(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while "piece" not in made._inboxes:
        waiting.join(0.001)
    made.stop()
    assert isinstance(ended.get(timeout=60), StoppedError)


# The process of a piece -----------------------------------------------------------------------------


def numbers(count: int) -> Iterator[Any]:
    print("this is no result")
    yield from ({"number": number, "text": "\udcff"} for number in range(count))


def test_a_process_writes_a_line_for_each_result() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "conformance.engine.dask_piece"],
        input=pickle.dumps((numbers, (2,))),
        # The process imports this module, and what it imports.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", HERE)))},
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (
        0,
        b'{"number": 0, "text": "\\udcff"}\n{"number": 1, "text": "\\udcff"}\n',
    ), ended.stderr
    assert b"this is no result" in ended.stderr
