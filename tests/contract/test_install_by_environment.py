"""H28: `HOSTCB_INSTALL=1`, in programs that do not name hostcb. The file of a wheel does it when Python starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.subprocesses import ROOT, Ended, run_program

from hostcb._spec import flags

STARTUP = ROOT / "ci" / "startup"
OLD_PROGRAM = "old_program.py"
FAILED = "HOSTCB_INSTALL has no effect, and JAX's own callbacks stay in use"

pytestmark = pytest.mark.contract("H28")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on Python's path which lets Python read the `.pth` file, as it reads those of its site-packages."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(STARTUP)!r})\n")
    return folder


def run(
    program: str, *arguments: str, site: Path, before: Path | None = None, install: str | None = "1", **env: str
) -> Ended:
    """Run a program that has only what Python has given it."""
    path = [*([str(before)] if before else []), str(site), str(ROOT)]
    variables = {"PYTHONPATH": os.pathsep.join(path), **env}
    if install is not None:
        variables["HOSTCB_INSTALL"] = install
    return run_program(program, *arguments, devices=1, env=variables, prelude="", warnings="error", fresh=True)


def expected(steps: int, inline: bool) -> list[str]:
    losses, loss = [], 5.0
    for _ in range(steps):
        losses.append(f"loss {round(loss, 3)} [] True")
        loss /= 4
    solution = [(1 - 0.5**steps) / 2, 1 - 0.5**steps]
    return [
        *losses,
        "what: solution",
        f"[{solution[0]} {solution[1]} ]".replace(" ]", "]"),
        "transforms: [('batch', {'batch_dims': (0,)})] what: batched",
        "[0. 1.]",
        f"inline: {inline} {inline}",
        "failed: ZeroDivisionError",
    ]


@pytest.mark.parametrize(
    ("arguments", "variables", "inline"),
    [
        ((), {}, False),
        pytest.param(("--jax_host_callback_inline",), {}, True, marks=pytest.mark.thorough),
        (("--jax_host_callback_max_queue_byte_size=1000",), {"JAX_HOST_CALLBACK_INLINE": "true"}, True),
        (("--nojax_host_callback_inline",), {"JAX_HOST_CALLBACK_INLINE": "1"}, False),
    ],
    ids=str,
)
def test_an_old_program_runs_unchanged(
    arguments: tuple[str, ...], variables: dict[str, str], inline: bool, site: Path
) -> None:
    """It has absl's `app.run`, the old flags on its command line, and the old module in all of its functions."""
    ended = run(OLD_PROGRAM, "--steps=2", *arguments, site=site, **variables).check()
    assert [line.replace(" ]", "]") for line in ended.lines] == expected(2, inline), str(ended)


def test_without_the_variable_it_finds_no_module(site: Path) -> None:
    ended = run(OLD_PROGRAM, site=site, install=None)
    assert "No module named 'jax.experimental.host_callback'" in ended.stderr or "cannot import name" in ended.stderr
    assert ended.returncode == 1


CONFIG = """
import jax
jax.config.update("jax_host_callback_inline", True)
jax.config.update("jax_host_callback_ad_transforms", False)
from jax.experimental import host_callback
seen = []
host_callback.id_tap(lambda x, transforms: seen.append(float(x)), 2.0)
print(seen)
"""


def test_the_old_flags_exist_from_the_import_of_jax_on(site: Path) -> None:
    assert run(CONFIG, site=site).check().lines == ["[2.0]"]


@pytest.mark.parametrize(
    "first",
    [
        "import jax.numpy",
        "import importlib.util; assert importlib.util.find_spec('jax'); import jax",
        "import importlib; importlib.import_module('jax.experimental')",
        "import hostcb",
        "import threading; thread = threading.Thread(target=lambda: __import__('jax')); thread.start(); thread.join()",
    ],
)
def test_it_follows_each_import_of_jax(first: str, site: Path) -> None:
    program = f"""
import sys
assert not [name for name in sys.modules if name.partition(".")[0] in ("jax", "hostcb", "numpy")]
{first}
import jax
assert jax.__loader__.exec_module.__name__ == "exec_module" and "exec_module" not in vars(jax.__loader__)
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "_hostcb_startup"]
print("host_callback" in str(jax.make_jaxpr(lambda x: jax.pure_callback(abs, x, x))(1.0)))
"""
    assert run(program, site=site).check().lines == ["True"]


def test_import_of_hostcb_does_it_where_there_is_no_such_file() -> None:
    """As with a checkout on the path."""
    program = "import hostcb, jax.experimental.host_callback as hcb; print(hcb.id_tap is hostcb.id_tap)"
    ended = run_program(program, devices=1, env={"HOSTCB_INSTALL": "1"}, prelude="", fresh=True)
    assert ended.check().lines == ["True"]


@pytest.mark.parametrize("install", [None, *(pytest.param(word, marks=pytest.mark.thorough) for word in ("", " off "))])
def test_nothing_is_imported_where_it_is_not_asked_for(install: str | None, site: Path) -> None:
    program = """
import json, sys
startup = [name for name in ("jax", "hostcb", "numpy") if name in sys.modules]
import jax
print(json.dumps([startup, "hostcb" in sys.modules, [type(finder).__name__ for finder in sys.meta_path]]))
"""
    startup, hostcb, finders = run(program, site=site, install=install).json()
    assert (startup, hostcb) == ([], False) and "AfterJax" not in finders


def test_the_file_reads_the_variable_as_hostcb_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STARTUP))
    monkeypatch.delenv("HOSTCB_INSTALL", raising=False)
    import _hostcb_startup

    try:
        assert _hostcb_startup.FALSE == flags._FALSE
    finally:
        del sys.modules["_hostcb_startup"]


def test_processes_of_the_program_have_it_too(site: Path) -> None:
    program = """
import subprocess, sys
inner = "import jax; from jax.experimental import host_callback; print(host_callback.__name__)"
print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True, check=True).stdout, end="")
"""
    assert run(program, site=site).check().lines == ["jax.experimental.host_callback"]


USING = "import jax; print(jax.__version__, 'hostcb' in __import__('sys').modules)"


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("old", "hostcb needs JAX 0.10.2 or newer, and JAX 0.6.2 is installed"),
        ("word", "HOSTCB_INSTALL must be a truth value such as 1, 0, true or false, got 'maybe'"),
        ("lacking", "No module named 'jax.numpy'"),
        ("loader", "'Loader' object attribute 'exec_module' is read-only"),
    ],
)
def test_what_goes_wrong_is_one_line_and_the_program_runs(
    trouble: str, reason: str, site: Path, tmp_path: Path
) -> None:
    program = USING
    if trouble in ("old", "lacking"):
        version, numbers = ("0.6.2", (0, 6, 2)) if trouble == "old" else ("9.9.9", (9, 9, 9))
        (tmp_path / "jax").mkdir()
        (tmp_path / "jax" / "__init__.py").write_text(f"__version__, __version_info__ = {version!r}, {numbers}")
    if trouble == "loader":
        program = f"""
import sys
from importlib.machinery import ModuleSpec
class Loader:
    __slots__ = ()
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.__version__ = "of another finder"
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, Loader()) if name == "jax" else None
sys.meta_path.insert(1, Finder())
{USING}
"""
    ended = run(program, site=site, before=tmp_path, install="maybe" if trouble == "word" else "1").check()
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"hostcb: {FAILED}: ") and reason in line, str(ended)
    assert ended.lines[-1].endswith(" False")


def test_a_jax_that_fails_fails_as_without_it(site: Path, tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise RuntimeError('broken')")
    program = """
for attempt in range(2):
    try:
        import jax
    except RuntimeError as error:
        print(error)
"""
    ended = run(program, site=site, before=tmp_path).check()
    assert (ended.lines, ended.stderr) == (["broken", "broken"], "")


def test_without_jax_there_is_nothing_to_do(site: Path) -> None:
    """And the file imports little."""
    program = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    with_it = {*run(program, site=site).json()} - {*run(program, site=site, install=None).json()}
    assert [name for name in with_it if name.partition(".")[0] not in sys.stdlib_module_names] == ["_hostcb_startup"]


def test_the_doctor_says_so(site: Path) -> None:
    program = "import runpy; runpy.run_module('hostcb', run_name='__main__')"
    assert "JAX's callbacks: they go through hostcb, which is installed" in run(program, site=site).check().stdout


def test_the_file_is_one_line_that_python_runs() -> None:
    (line,) = (STARTUP / "hostcb_startup.pth").read_text().splitlines()
    assert line.startswith("import "), "Python takes other lines for folders"
    assert json.dumps(line).isascii()
