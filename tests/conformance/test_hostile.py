"""What somebody else has written is data: reports show it, bundles are read, and nothing of it is executed."""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import bundle_fakes as bundles
import hostile_fakes as hostile
import pytest

from conformance.bundles import archive
from conformance.bundles.archive import pack
from conformance.bundles.making import members_of
from conformance.cli import commands
from conformance.engine import preparation
from conformance.expectations.entries import read_entries
from conformance.reports.columns import sides
from conformance.reports.comparison import comparison
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import UnreadableResultsError, load_results
from conformance.reports.table_pages import html as table_page
from conformance.reports.table_pages import markdown as table_markdown
from conformance.reports.traces import file_name, trace
from conformance.reports.visible import in_a_line, visible

pytestmark = pytest.mark.contract("C71")

each_word = pytest.mark.parametrize("word", hostile.WORDS.values(), ids=hostile.WORDS)

LONGEST_NAME = 255
"""The bytes of a name that file systems take."""

MAY_NOT_BE_IMPORTED = {"pickle", "marshal", "shelve", "runpy", "code"}


def is_printable(text: str) -> bool:
    return all(line.isprintable() for line in text.replace("\t", " ").split("\n"))


def texts_in(data: Any) -> list[str]:
    """All texts of JSON, with the names in it."""
    if isinstance(data, dict):
        return [text for name, value in data.items() for text in (name, *texts_in(value))]
    if isinstance(data, list):
        return [text for value in data for text in texts_in(value)]
    return [data] if isinstance(data, str) else []


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def compared(folder: Path, word: str) -> Any:
    before = hostile.write(folder / "before", word)
    after = hostile.write(folder / "after", word, cells=[hostile.results(word)["cells"][0] | {"verdict": "pass"}])
    return comparison(sides({word: load_results(before), "after": load_results(after)}))


@each_word
def test_a_page_has_the_elements_of_a_harmless_one(word: str, tmp_path: Path) -> None:
    harmless = hostile.Page(html(load_results(hostile.write(tmp_path / "harmless", hostile.HARMLESS))))
    page = hostile.Page(html(load_results(hostile.write(tmp_path / "hostile", word))))
    assert page.elements == harmless.elements
    assert page.others == harmless.others
    data, script = page.texts["script"]
    assert script == harmless.texts["script"][1]
    assert page.texts["style"] == harmless.texts["style"]
    # All of it is there, with escapes for what would not be seen, or would turn the words around.
    assert json.loads(data)["runs"][0]["cells"][0]["witness"] == visible(f"{word}\n{word}")
    assert all(map(is_printable, texts_in(json.loads(data))))


def test_a_page_runs_no_script_but_its_own(tmp_path: Path) -> None:
    page = hostile.Page(html(load_results(hostile.write(tmp_path, hostile.HARMLESS))))
    assert page.policy == (
        f"default-src 'none'; style-src {hash_of(page.texts['style'][0])};"
        f" script-src {hash_of(page.texts['script'][1])}; base-uri 'none'; form-action 'none'"
    )
    # A style or a handler in an attribute would need `unsafe-inline`.
    names = {name for _, attributes in page.elements for name, _ in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]


@each_word
def test_a_page_of_a_comparison_has_the_elements_of_a_harmless_one(word: str, tmp_path: Path) -> None:
    harmless = hostile.Page(table_page(compared(tmp_path / "harmless", hostile.HARMLESS)))
    page = hostile.Page(table_page(compared(tmp_path / "hostile", word)))
    assert page.elements == harmless.elements
    assert page.others == harmless.others
    style = hash_of(page.texts["style"][0])
    assert page.policy == f"default-src 'none'; style-src {style}; base-uri 'none'; form-action 'none'"
    assert "script" not in page.texts
    assert is_printable(table_page(compared(tmp_path / "again", word)))
    references = [value for _, attributes in page.elements for name, value in attributes if name == "href"]
    assert references
    assert all(re.fullmatch(r"#w\d+", str(reference)) for reference in references)


def check_markdown(text: str, harmless: str) -> None:
    assert is_printable(text)
    lines = hostile.outside_of_code(text)
    for number, line in enumerate(lines):
        # `<https://...>` is a link that an entry of the known failures may have.
        bare = re.sub(r"\\.", "", line)
        assert not re.search(r"<(?!https://example\.org>)|\]\(|!\[|(?<!\w)@", bare), line[:200]
        columns = bare.count("|")
        # A row has the columns of the line above it, and nothing but rows has any.
        assert columns == 0 or bare.startswith("| "), line[:200]
        if number and lines[number - 1].startswith("|") and columns:
            assert columns == re.sub(r"\\.", "", lines[number - 1]).count("|"), line[:200]
    headings = [line for line in lines if line.startswith("#")]
    wanted = [line for line in hostile.outside_of_code(harmless) if line.startswith("#")]
    assert len(headings) in (len(wanted), len(wanted) - 1), "only the heading of capabilities may be missing"


@each_word
def test_markdown_keeps_its_form(word: str, tmp_path: Path) -> None:
    harmless = markdown(load_results(hostile.write(tmp_path / "harmless", hostile.HARMLESS)))
    check_markdown(markdown(load_results(hostile.write(tmp_path / "hostile", word))), harmless)


@each_word
def test_markdown_of_a_comparison_keeps_its_form(word: str, tmp_path: Path) -> None:
    harmless = table_markdown(compared(tmp_path / "harmless", hostile.HARMLESS))
    check_markdown(table_markdown(compared(tmp_path / "hostile", word)), harmless)


@each_word
def test_a_trace_is_json_and_its_file_is_in_the_folder(word: str, tmp_path: Path) -> None:
    folder = hostile.write(tmp_path / "results", word)
    assert all(json.loads(trace(cell)) for run in load_results(folder) for cell in run.cells)
    before = {path.name for path in tmp_path.iterdir()}
    code = commands.main(["report", str(folder), "--trace", str(tmp_path / "traces")])
    too_long = any(len(file_name(cell).encode()) > LONGEST_NAME for run in load_results(folder) for cell in run.cells)
    assert code == (2 if too_long else 0)
    assert {path.name for path in tmp_path.iterdir()} - before == {"traces"}


@each_word
def test_a_terminal_gets_no_control_characters(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(hostile.write(tmp_path / "hostile", word))
    harmless = str(hostile.write(tmp_path / "harmless", hostile.HARMLESS))
    for arguments in (
        ["report", folder],
        ["diff", harmless, folder],
        ["diff", folder, harmless, "--only-common"],
        ["diff", harmless, folder, f"b={folder}"],
        ["merge", folder, "--results", str(tmp_path / "merged")],
        ["report", folder, "--cell", word, "--trace", str(tmp_path / "trace")],
    ):
        commands.main(arguments)
        captured = capsys.readouterr()
        assert captured.out or captured.err
        assert is_printable(captured.out), arguments
        assert is_printable(captured.err), arguments


@each_word
def test_expect_of_hostile_results_prints_toml(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cell, *_) = hostile.results(word)["cells"]
    real = cell | {"id": "hostcb/id_tap/jit/cpu-1dev", "verdict": "fail", "stage": "callback"}
    info = {"cpu-1dev": {"jax": "0.12.0.1"}}
    assert commands.main(["expect", str(hostile.write(tmp_path, word, cells=[real], run_info=info, claims=[]))]) == 0
    printed = capsys.readouterr().out
    assert is_printable(printed)
    (entry,) = read_entries(printed, "printed")
    assert (entry.cells, entry.verdict, entry.reason) == (("hostcb/id_tap/jit/cpu-1dev",), "fail", "")


def test_no_word_of_results_begins_a_line_of_a_comparison_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = "x\n0 fixed, 0 broken, 0 changed, 0 new, 0 gone\nPROBLEM: none"
    before = hostile.write(tmp_path / "before", hostile.HARMLESS)
    assert commands.main(["diff", str(before), str(hostile.write(tmp_path / "after", word))]) == 1
    assert capsys.readouterr().out.count("\n0 fixed") == 1


@pytest.mark.parametrize(
    ("text", "lines", "line"),
    [
        ("plain é ✓", "plain é ✓", "plain é ✓"),
        ("a\tb\nc", "a\tb\nc", "a\\tb\\nc"),
        ("\x1b[31m\r\x07", "\\x1b[31m\\r\\x07", "\\x1b[31m\\r\\x07"),
        ("\u202e\u2028\ud800", "\\u202e\\u2028\\ud800", "\\u202e\\u2028\\ud800"),
    ],
)
def test_what_cannot_be_printed_is_shown_as_an_escape(text: str, lines: str, line: str) -> None:
    assert visible(text) == lines
    assert in_a_line(text) == line


@pytest.mark.parametrize("platform", ["../../evil", "/tmp/evil", "..", "", "a\\b", "a\x00b", 7, None])
@pytest.mark.parametrize("command", ["report", "merge", "expect"])
def test_a_platform_whose_name_is_a_path_is_refused(
    command: str, platform: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`merge` writes a file that has this name."""
    folder = hostile.write(tmp_path / "a" / "results", hostile.HARMLESS, platform=platform, shard={}, selection={})
    options = {"report": [str(folder)], "merge": [str(folder), "--results", str(tmp_path / "a" / "merged")]}
    options["expect"] = [str(folder)]
    assert commands.main([command, *options[command]]) == 2
    assert "is no name of a platform" in capsys.readouterr().err
    assert [*tmp_path.rglob("*evil*")] == []


@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000,
        '{"schema": 1, "platform": ' + "[" * 200_000,
        json.dumps(hostile.results("x") | {"seconds": float("nan")}),
        json.dumps(hostile.results("x") | {"seconds": 1e999}),
        json.dumps(hostile.results("x")).replace('"begin": 5', '"begin": Infinity'),
        json.dumps(hostile.results("x")).replace('"seconds": 0.5', '"seconds": Infinity'),
        json.dumps(hostile.results("x")).replace('"attempts": 2', f'"attempts": {"9" * 5000}'),
        json.dumps(hostile.results("x") | {"depth": "../run"}),
    ],
    ids=["nested", "nested inside", "no seconds", "endless", "endless event", "endless cell", "large", "depth"],
)
def test_results_of_another_shape_are_refused_in_words(content: str, tmp_path: Path) -> None:
    (tmp_path / "conformance-cpu.json").write_text(content)
    with pytest.raises(UnreadableResultsError, match=r"is no result of a run: \w+Error: "):
        load_results(tmp_path)


def test_readers_have_no_way_to_execute_what_they_read() -> None:
    """The modules of `report`, `diff`, `merge`, `expect`, `bundle` and `verify`."""
    program = (
        "import json, sys\n"
        "from conformance.cli import bundle, diff, expect, merge, report, verify\n"
        "found = {name: of.__file__ for name, of in sys.modules.items() if name.startswith('conformance')}\n"
        "print(json.dumps([found, sorted({'jax', 'pickle'} & {*sys.modules})]))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    files, forbidden = json.loads(ended.stdout)
    assert forbidden == []
    assert "conformance.bundles.judging" in files
    for name, file in files.items():
        for node in ast.walk(ast.parse(Path(file).read_text())):
            if isinstance(node, ast.Import):
                assert not MAY_NOT_BE_IMPORTED & {one.name.partition(".")[0] for one in node.names}, name
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert str(node.module).partition(".")[0] not in MAY_NOT_BE_IMPORTED, name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), name
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("extract", "extractall", "popen"), name


# Bundles.


@pytest.fixture
def members(tmp_path: Path) -> dict[str, bytes]:
    return members_of(bundles.write(tmp_path / "results"))


def zipped(infos: dict[str, bytes], **fields: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in infos.items():
            info = zipfile.ZipInfo(name)
            for field, value in fields.items():
                setattr(info, field, value)
            made.writestr(info, content)
    return file.getvalue()


def refused(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The words with which `verify` refuses this file; it leaves nothing behind."""
    folder = tmp_path / "verified"
    folder.mkdir()
    (folder / "bundle.zip").write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    assert commands.main(["verify", str(folder / "bundle.zip")]) == 2
    assert sorted(tmp_path.rglob("*")) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    assert is_printable(captured.err)
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py", "C:\\evil.py", "..", "a\nb", "\u202ex"])
def test_a_member_with_another_path_is_refused(
    name: str, members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(zipped({**members, name: b"x"}), tmp_path, capsys)
    assert "has a name that no bundle has" in said


def test_a_member_that_is_larger_than_it_claims_is_not_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(zipped({"conformance-cpu.json": bytes(200_000_000)}, compress_type=zipfile.ZIP_DEFLATED))
    place = data.index(b"PK\1\2")
    data[place + 24 : place + 28] = (10).to_bytes(4, "little")
    tracemalloc.start()
    try:
        said = refused(bytes(data), tmp_path, capsys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "it is no whole zip archive: " in said or "the archive has no member manifest.json" in said
    assert peak < 20_000_000


def test_a_file_that_is_larger_than_a_bundle_is_read_no_further(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST", 1000)
    assert len(archive.read(Path("/dev/zero"))) == 2**20
    assert "a bundle, which has at most 1000 bytes" in refused(bytes(5000), tmp_path, capsys)


def test_a_bundle_in_a_bundle_is_not_opened(
    members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(pack({**members, "inner.zip": pack(members)[0]})[0], tmp_path, capsys)
    assert "inner.zip belongs to no result in the bundle" in said


@pytest.mark.parametrize("name", ["conformance-cpu.json", "environment.json"])
def test_a_member_nested_without_end_is_refused(
    name: str, members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(pack({**members, name: b"[" * 200_000})[0], tmp_path, capsys)
    assert name in said


def test_no_word_of_a_bundle_begins_a_line_of_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundles.changed(
        bundles.write(tmp_path / "results", journal=False),
        lambda found: found["run"].update(command="run\ncpu       core           hostcb  run    earned\x1b[2J"),
    )
    (tmp_path / "bundle.zip").write_bytes(pack(members_of(folder))[0])
    assert commands.main(["verify", str(tmp_path / "bundle.zip")]) == 0
    said = capsys.readouterr().out
    assert is_printable(said)
    assert "  run\\ncpu " in said


def test_a_bundle_does_not_choose_what_is_imported(
    members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chosen_by_others.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = bundles.changed(
        tmp_path / "results", lambda found: found["run"]["options"]["implementations"].append("chosen_by_others")
    )
    file = tmp_path / "bundle.zip"
    file.write_bytes(pack(members_of(folder))[0])
    assert commands.main(["verify", str(file)]) == 0
    capsys.readouterr()
    planned: list[Any] = []
    monkeypatch.setattr(preparation, "planned_again", lambda options: planned.append(options) or [*bundles.CELLS])
    assert commands.main(["verify", str(file), "--replan"]) == 2
    said = capsys.readouterr().err
    assert "its run had the implementation 'chosen_by_others', which --replan would import" in said
    assert planned == []
    assert commands.main(["verify", str(file), "--replan", "--implementation", "chosen_by_others"]) == 0
    assert len(planned) == 1
