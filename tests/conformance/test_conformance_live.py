"""C70: in a terminal a run shows how far it is and what is slow, in place; elsewhere it prints lines."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.engine import live
from conformance.engine.live import LiveView, Picture, long, progress_of
from conformance.engine.progress import Progress, in_place

pytestmark = pytest.mark.contract("C70")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DEADLINE = 120.0

WORKS = """
from conformance_fakes import InPlace

IMPLEMENTATION = InPlace()
"""

HANGS = """
import threading
from conformance_fakes import InPlace

def waits(callback, site):
    if callback.name == "call":
        threading.Event().wait()
    return True

IMPLEMENTATION = InPlace(waits)
"""


class Terminal(io.StringIO):
    """A stream that is a terminal, as far as it says."""

    encoding = "ascii"

    def isatty(self) -> bool:
        return True


class Screen:
    """What a terminal shows of what was written: only the sequences that the view uses."""

    def __init__(self, width: int | None = None) -> None:
        self.lines, self.row, self.column, self.width = [""], 0, 0, width

    def write(self, text: str) -> Screen:
        for part in re.findall(r"\x1b\[(\d*)([A-Za-z])|([^\x1b])", text):
            number, sequence, character = part
            if sequence == "A":
                self.row -= int(number)
                assert self.row >= 0, "above the first line"
            elif sequence == "J":
                self.lines[self.row :] = [self.lines[self.row][: self.column]]
            elif sequence:
                assert sequence == "m", f"an unknown sequence: {part}"
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
                self.column += 1
                assert self.width is None or self.column < self.width, f"too long: {self.lines[self.row]!r}"
        return self

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_picture_has_the_number_the_rate_and_what_is_left() -> None:
    picture = Picture(1830, 0.0)
    assert picture.lines(0.0, 100, 24) == ["0/1,830 cells, 0 unexpected, 0 s"]
    for number in range(30):
        picture.began(f"cell{number}", float(number))
        picture.concluded(f"cell{number}", True, number + 1.0)
    assert picture.lines(30.0, 100, 24) == ["30/1,830 cells, 0 unexpected, about 30 min 0 s left, 1.0 a second, 30 s"]
    # Those of the last minute count.
    assert picture.lines(75.0, 100, 24) == [
        "30/1,830 cells, 0 unexpected, about 1 h 52 min left, 16.0 a minute, 1 min 15 s"
    ]
    assert picture.lines(200.0, 100, 24) == ["30/1,830 cells, 0 unexpected, 3 min 20 s"]


def test_a_picture_names_the_slowest_cells_that_run_and_the_last_that_were_unexpected() -> None:
    picture = Picture(100, 0.0)
    for number in range(7):
        picture.began(f"slow{number}", float(number))
    picture.began("fast", 96.0)
    picture.began("ended", 0.0)
    picture.ended("ended")
    assert picture.lines(100.0, 80, 24)[1:] == [
        "8 running, the slowest:",
        "  1 min 40 s  slow0",
        "  1 min 39 s  slow1",
        "  1 min 38 s  slow2",
        "  1 min 37 s  slow3",
    ]
    picture = Picture(100, 0.0)
    picture.concluded("bad", False, 1.0)
    assert picture.lines(1.0, 80, 24)[1:] == ["unexpected:", "  bad"]
    for number in range(5):
        picture.concluded(f"bad{number}", False, 1.0)
    picture.began("fast", 1.0)
    assert picture.lines(2.0, 80, 24)[1:] == ["1 running", "unexpected, the last:", "  bad2", "  bad3", "  bad4"]
    # As many lines as the terminal has, less the one of the cursor.
    assert len(picture.lines(2.0, 80, 4)) == 3 and len(picture.lines(2.0, 80, 1)) == 1


def test_a_cell_that_a_plugin_runs_again_counts_once_and_stays_unexpected() -> None:
    picture = Picture(2, 0.0)
    picture.concluded("cell", False, 1.0)
    picture.concluded("cell", True, 2.0)
    assert picture.lines(2.0, 80, 24)[0].startswith("1/2 cells, 1 unexpected")


@pytest.mark.parametrize("width", [1, 5, 20, 40, 60])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    picture = Picture(1000, 0.0)
    for number in range(20):
        picture.concluded(f"implementation/callback/transform.and.another/cpu-{number}dev", number % 2 > 0, 1.0)
    picture.began("implementation/a_very_long_callback/transform.and.another/cpu-8dev", 0.0)
    lines = picture.lines(60.0, width, 24)
    assert max(map(len, lines)) <= width
    # What matters most stays.
    assert "20/1,000 cells"[:width].rstrip(".")[: max(0, width - 3)] in lines[0]
    if width == 40:
        assert lines[0] == "20/1,000 cells, 10 unexpected" and lines[2].endswith("...")


def test_a_cell_whose_id_would_move_the_cursor_does_not() -> None:
    picture = Picture(1, 0.0)
    picture.concluded("evil\x1b[2J\r\nid", False, 1.0)
    assert picture.lines(1.0, 80, 24)[2] == "  evil?[2J??id"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.0, "59 min 59 s"), (7260.0, "2 h 1 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert long(seconds) == text


def view(tmp_path: Path, **environment: str) -> tuple[LiveView, Terminal, Clock, Callable[..., None]]:
    stream, clock, journal = Terminal(), Clock(), tmp_path / "journal.jsonl"
    journal.write_text(json.dumps({"event": "begin", "cell": "of an earlier process"}) + "\n")
    made = LiveView(10, stream, environment, clock)

    def write(*lines: Any) -> None:
        with journal.open("a") as file:
            file.write("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))

    return made, stream, clock, write


def test_cells_of_all_processes_are_followed_by_their_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REDRAWN", DEADLINE)
    made, stream, clock, write = view(tmp_path)
    made.follow(tmp_path / "journal.jsonl")
    write({"event": "begin", "cell": "one"}, {"event": "start", "topology": "cpu"}, "garbage\n", '{"event": "beg')
    made.draw()
    clock.now += 7
    write('in", "cell": "two"}\n', {"event": "begin", "cell": "three"}, {"event": "end", "cell": "three"}, "[1]\n")
    made.draw()
    assert Screen().write(stream.getvalue()).shown == [
        "0/10 cells, 0 unexpected, 7 s",
        "2 running, the slowest:",
        "  7 s  one",
    ]
    clock.now += 7
    made.advance("one", False)
    made.draw()
    assert Screen().write(stream.getvalue()).shown == [
        "1/10 cells, 1 unexpected, about 2 min 6 s left, 4.3 a minute, 14 s",
        "1 running, the slowest:",
        "  7 s  two",
        "unexpected:",
        "  one",
    ]
    made.finish()
    assert Screen().write(stream.getvalue()).shown == [
        "1/10 cells, 1 unexpected, about 2 min 6 s left, 4.3 a minute, 14 s"
    ]
    written = len(stream.getvalue())
    made.finish()
    made.draw(height=2)
    assert Screen().write(stream.getvalue()).shown[0].startswith("1/10") and len(stream.getvalue()) > written


def test_it_is_drawn_again_by_itself_until_it_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REDRAWN", 0.001)
    made, stream, _, _ = view(tmp_path)
    made.follow(tmp_path / "journal.jsonl")
    end = time.monotonic() + DEADLINE
    while stream.getvalue().count("\x1b[1A") < 3:
        assert time.monotonic() < end
    made.finish()
    assert not made._thread.is_alive()


def test_colours_obey_no_color(tmp_path: Path) -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
        made, stream, _, _ = view(tmp_path, **environment)
        made.advance("bad", False)
        made.draw()
        assert ("\x1b[31m" in stream.getvalue()) is coloured


def test_a_terminal_that_is_gone_ends_the_view_and_not_the_run(tmp_path: Path) -> None:
    made, stream, _, _ = view(tmp_path)
    stream.close()
    made.draw()
    made.advance("cell", True)
    made.finish()


def test_characters_that_the_terminal_does_not_know(tmp_path: Path) -> None:
    made, stream, _, _ = view(tmp_path)
    made.advance("é", False)
    made.draw()
    assert "  ?\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("environment", "can"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "CI": "true"}, False)],
)
def test_where_lines_can_be_drawn_again(environment: dict[str, str], can: bool) -> None:
    assert in_place(Terminal(), environment) is can
    assert not in_place(io.StringIO(), {"TERM": "xterm"})


def test_the_option_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    kinds = {
        (choice, terminal): type(progress_of(choice, 1, Terminal() if terminal else io.StringIO()))
        for choice in live.CHOICES
        for terminal in (True, False)
    }
    assert kinds == {
        ("auto", True): LiveView,
        ("auto", False): Progress,
        ("always", True): LiveView,
        ("always", False): LiveView,
        ("never", True): Progress,
        ("never", False): Progress,
    }
    stream = Terminal()
    progress = progress_of("never", 1, stream)
    progress.advance("cell", True)
    progress.finish()
    assert stream.getvalue() == "1/1 cells, 0 unexpected, 0 s\n"


class Running:
    """A run of the suite in a pseudo-terminal."""

    def __init__(self, folder: Path, implementation: str, *options: str, width: int, **variables: str) -> None:
        (folder / "fake.py").write_text(implementation)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
        names = ("CI", "NO_COLOR", "PYTEST_XDIST_WORKER", "FORCE_COLOR", "PY_COLORS")
        inherited = {name: value for name, value in os.environ.items() if name not in names}
        cells = [f"fake/{callback}/eager/cpu-1dev" for callback in ("id_tap", "call", "io_callback", "debug_callback")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "conformance", "run", *(word for cell in cells for word in ("--cell", cell)),
             "--expectations", os.devnull, *options],
            cwd=folder,
            env=inherited | {"TERM": "xterm", "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", **variables},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.written = ""

    def read_until(self, reached: Callable[[str], bool]) -> str:
        end = time.monotonic() + DEADLINE
        while not reached(self.written):
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"it has written only: {self.written}"
            try:
                new = os.read(self._master, 1 << 16)
            except OSError:
                # All ends of the terminal are closed.
                new = b""
            if not new:
                break
            self.written += new.decode(errors="replace").replace("\r\n", "\n")
        return self.written

    def end(self) -> tuple[int, list[str]]:
        self.read_until(lambda written: False)
        os.close(self._master)
        return self.process.wait(DEADLINE), Screen().write(self.written).shown


@pytest.mark.parametrize("width", [100, 30])
def test_a_run_in_a_terminal_leaves_one_line_and_its_summary(tmp_path: Path, width: int) -> None:
    running = Running(tmp_path, WORKS, "-n", "2", width=width)
    code, shown = running.end()
    assert code == 0, shown
    assert shown[0].startswith("4/4 cells, 0 unexpected") and len(shown[0]) < width
    assert not [line for line in shown[1:] if " unexpected, " in line or line.endswith(" running")]
    assert "\x1b[J" in running.written and "\x1b[31m" not in running.written


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_ctrl_c_ends_the_view_and_the_report_follows(tmp_path: Path) -> None:
    running = Running(tmp_path, HANGS, "-n", "2", width=100)
    running.read_until(lambda written: "3/4 cells" in written and Screen().write(written).shown[1:] == ["1 running"])
    # As the terminal does, to the whole group in the foreground.
    os.killpg(running.process.pid, signal.SIGINT)
    code, shown = running.end()
    assert code == 1
    assert shown[0].startswith("3/4 cells, 0 unexpected") and "1 running" not in shown
    assert any("the run was interrupted" in line for line in shown)


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true"}], ids=["dumb", "ci"])
def test_elsewhere_a_run_prints_lines(tmp_path: Path, variables: dict[str, str]) -> None:
    running = Running(tmp_path, WORKS, width=100, **variables)
    code, shown = running.end()
    assert code == 0 and "\x1b" not in running.written
    assert shown[0].startswith("4/4 cells, 0 unexpected, ")
