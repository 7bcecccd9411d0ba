"""What somebody else has written is data: reports show it, bundles are read, and nothing of it is executed."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import results_fakes as fakes
from suite_runs import Capture, Patch, report_in

from conformance.bundles import archive
from conformance.bundles.archive import BadBundleError, Bundle, bundle_of, unpack
from conformance.cli import commands
from conformance.engine import preparation
from conformance.expectations.entries import read_entries
from conformance.reports.diff import comparison, sides
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import load_results
from conformance.reports.visible import visible

pytestmark = pytest.mark.contract("C71")

WORDS = {
    "markup": "</script></style></pre><img src=x onerror=alert(1)> ' onclick='alert(1)<!-- --> <![CDATA[ <?php ?>",
    "Markdown": "[x](javascript:alert(1)) ![x](https://example.org/x.png) @everyone ``` ````` `x` a | b \\| # > * _x_",
    "a terminal's commands": "\x1b[31m\x1b]0;title\x07\x9b2J\x08\r\x7f \u202egnp.exe\u202c \u2066x \x00\udfff\ufffe",
    "more lines": "one\n0 fixed, 0 broken, 0 changed, 0 new, 0 gone\nPROBLEM: two\r\n| 3 |\x0b\x85\u2028# four\n```",
    "a template's places": "{{ results }} {{ policy }} {{ {0} }} %s ${x} __proto__ constructor",
}


def hostile(word: str) -> dict[str, Any]:
    """A run with a failure, a known failure and a refusal, and this word wherever there is a text."""
    part = word.replace("/", "\N{DIVISION SLASH}")[:50]
    name = f"{part}/{part}/{part}.scan/{part}"
    history = [fakes.event(0, None, site=word, value=[word, {word: None}], transforms=word)]
    own = dict.fromkeys(("verdict", "stage", "anomaly", "expected", "reproduce"), word)
    bad = fakes.LOST | own | {"id": name, "promises": [word], "witness": f"{word}\n{word}", "history": history}
    way = {"verdict": word, "stage": word, "anomaly": word, "count": 3, "witness": word}
    bad |= {"evidence": [[0, 2]], "repeated": {"outcomes": [way]}}
    known = {"status": "known_failure", "known": {"reason": word, "link": word, "intermittent": False}}
    cells = [bad, bad | {"id": f"{name}-2dev"} | known, bad | {"id": f"{name}-4dev", "cause": word}]
    of_run = {"run_info": {word: {word: word}}, "problems": [word], "ineligible": [{"id": name, "reason": word}]}
    claims = [{"name": word, "cells": 1, "failed": [name]}]
    suite = dict.fromkeys(("version", "commit", "changed"), word)
    made = {"suite": suite, "begin": word, "command": word, "packages": {word: word}, "plugins": {word: word}}
    made["plan"] = {"count": 7}
    return fakes.results(*cells, **of_run, stale_expectations=[word], claims=claims, run=made)


def written(folder: Path, word: str, **fields: Any) -> Path:
    folder.mkdir()
    (folder / "conformance-cpu.json").write_text(json.dumps(hostile(word) | fields))
    return folder


def is_printable(text: str) -> bool:
    return all(line.isprintable() for line in text.replace("\t", " ").split("\n"))


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_words_of_others_stay_words(word: str, tmp_path: Path, capsys: Capture) -> None:
    """On pages, in Markdown, in the terminal, and as entries of known failures."""
    folder, other = written(tmp_path / "hostile", word), written(tmp_path / "harmless", "word")
    runs, harmless = load_results(folder), load_results(other)
    table = comparison(sides({word: runs, "b": harmless}))

    page, expected = fakes.Page(html(runs)), fakes.Page(html(harmless))
    assert (page.tags, page.script) == (expected.tags, expected.script)
    assert page.data["runs"][0]["cells"][0]["witness"] == visible(f"{word}\n{word}")
    own, script = (hash_of(text) for text in (page.style, page.script))
    allowed = f"style-src {own}; script-src {script}"
    assert page.policy == f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    check_markdown(markdown(runs))
    assert is_printable(str(table)) and len(str(table).splitlines()) == len(
        str(comparison(sides({"a": runs, "b": harmless}))).splitlines()
    )

    for arguments in (["report"], ["diff", str(other)], ["expect"]):
        commands.main([*arguments, str(folder)])
        printed = capsys.readouterr()
        assert printed.out
        assert is_printable(printed.out + printed.err), arguments
        assert arguments != ["diff", str(other)] or printed.out.count("\n0 fixed") <= 1
    assert {path.name for path in tmp_path.iterdir()} == {"hostile", "harmless"}
    real = hostile(word)["cells"][0] | {"id": fakes.LOST["id"], "verdict": "fail", "stage": "callback"}
    commands.main(["expect", str(written(tmp_path / "real", word, cells=[real]))])
    (entry,) = read_entries(capsys.readouterr().out, "printed")
    assert (entry.cells, entry.verdict, entry.reason) == ((fakes.LOST["id"],), "fail", "")


def check_markdown(text: str) -> None:
    assert is_printable(text)
    without = re.sub(r"^(`{3,})\n(?:.*?\n)?\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search("^`{3,}$", without, re.MULTILINE), "a fence has no end"
    before = ""
    # Each code span and each escape is a dot.
    for line in re.sub(r"\\.|(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", ".", without).split("\n"):
        # `<https://...>` is a link that an entry of the known failures may have.
        assert not re.search(r"<(?!https://example\.org>)|\]\(|!\[|(?<!\w)@", line), line[:200]
        # A row has the columns of the line above it, and nothing but rows has any.
        assert "|" not in line or line.startswith("| "), line[:200]
        if before.startswith("|") and "|" in line:
            assert line.count("|") == before.count("|"), line[:200]
        before = line


TEXT = json.dumps(fakes.results(fakes.LOST))
FILES = {
    "": "is no result of a run: JSONDecodeError",
    "[" * 200_000: "is no result of a run: RecursionError",
    TEXT.replace('"attempts": 2', f'"attempts": {"9" * 5000}'): "is no result of a run: ValueError",
    TEXT.replace('"platform": "cpu"', '"platform": "../../evil"'): "no name of a platform",
    TEXT.replace(fakes.LOST["id"], "a/b"): "'a/b' is no cell id",
    TEXT.replace('"schema": 1', '"schema": 2'): "has schema 2, and this reader knows 1",
}


@pytest.mark.contract("C47")
def test_files_that_are_no_results_are_one_error(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "a" / "results"
    folder.mkdir(parents=True)
    for content, words in FILES.items():
        (folder / "conformance-cpu.json").write_text(content)
        for options in (["report"], ["merge", "--results", str(tmp_path / "a" / "b")]):
            assert commands.main([*options, str(folder)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("ERROR: ") and words in line
    assert [*tmp_path.rglob("*evil*")] == []


def zipped(members: dict[str, bytes]) -> bytes:
    """The archive that any zip program writes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def test_archives_that_are_no_bundles_are_one_error(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Nothing is extracted, and what is no bundle takes little memory."""
    members = {**bundle_of(fakes.write_run(tmp_path / "results")).members}
    bomb = zipped({"conformance-cpu.json": bytes(100_000_000)})
    place = bomb.index(b"PK\1\2") + 24
    archives = {
        b"not a zip file": "no whole zip archive",
        zipped({**members, "../evil.py": b"x"}): "has a name that no bundle has",
        zipped({**members, "a\nERROR": b"x"}): "has a name that no bundle has",
        # The first member claims ten bytes.
        bomb[:place] + (10).to_bytes(4, "little") + bomb[place + 4 :]: "no whole zip archive",
        Bundle({**members, "conformance-cpu.json": b"[" * 200_000}).packed(): "conformance-cpu.json",
    }
    file = tmp_path / "bundle.zip"
    file.touch()
    before = sorted(tmp_path.rglob("*"))
    tracemalloc.start()
    for content, words in archives.items():
        file.write_bytes(content)
        tracemalloc.reset_peak()
        assert commands.main(["verify", str(file)]) == 2
        assert tracemalloc.get_traced_memory()[1] < 20_000_000, words
        assert sorted(tmp_path.rglob("*")) == before
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert printed.out == "" and words in line
    tracemalloc.stop()
    monkeypatch.setattr(archive, "LARGEST", 1000)
    with pytest.raises(BadBundleError, match="no file of at most 1000 bytes"):
        unpack(Path("/dev/zero"))


def test_a_bundle_chooses_neither_lines_nor_imports(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    folder = fakes.write_run(tmp_path / "results")
    made = report_in(folder)["run"]
    made["command"] = "run\ncpu       core           hostcb  run    earned\x1b[2J"
    made["options"]["implementations"].append("chosen_by_others")
    (tmp_path / "chosen_by_others.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle_of(fakes.change(folder, run=made)).packed())
    assert commands.main(["verify", str(file)]) == 0
    assert "  run\\ncpu " in capsys.readouterr().out
    planned: list[Any] = []
    monkeypatch.setattr(preparation, "planned_again", lambda options: planned.append(options) or [*again])
    again = fakes.CELLS
    assert commands.main(["verify", str(file), "--replan"]) == 2
    assert "had the implementation 'chosen_by_others', which --replan would import" in capsys.readouterr().err
    assert planned == []
    trusted = ["verify", str(file), "--replan", "--implementation", "chosen_by_others"]
    assert commands.main(trusted) == 0
    # The plan of this suite must be the bundle's.
    again = fakes.CELLS[:-1]
    assert commands.main(trusted) == 2
    assert f"1 cells, like {fakes.OF_JAX}" in capsys.readouterr().err
