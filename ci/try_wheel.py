"""Checks the wheel and the sdist in a folder, as a user gets them: `python ci/try_wheel.py DIST REQUIREMENT...`.

The wheel is installed in an empty environment, with these requirements beside it, and tried outside of the checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

PROGRAM = """\
import jax, numpy as np
import hostcb

seen = []
assert jax.jit(lambda x: hostcb.id_tap(lambda value, transforms: seen.append(value.item()), x) + 1)(2.0) == 3.0
hostcb.barrier_wait()
assert seen == [2.0], seen
assert hostcb.call(lambda x: np.asarray(x) * 2, 4.0, result_shape=jax.ShapeDtypeStruct((), np.float32)) == 8.0
"""

CELLS = (
    "hostcb/id_tap/jit/cpu-1dev",
    "jax/pure_callback/vmap/cpu-1dev",
    # Its program has a process of its own, which must find the package by its name.
    "hostcb/pure_callback/fault.os_exit.pmap/cpu-1dev",
)
MUTANT = "hostcb_conformance.mutants:dropped/id_tap/jit/cpu-1dev"


class WrongWheelError(Exception):
    """The wheel, the sdist or the installation is wrong."""


def expect(right: bool, message: str) -> None:
    if not right:
        raise WrongWheelError(message)


def the_only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    expect(len(found) == 1, f"{folder} must hold one {pattern}, and holds {[path.name for path in found]}")
    return found[0]


def check_wheel(path: Path) -> None:
    names = zipfile.ZipFile(path).namelist()
    information = f"{'-'.join(path.name.split('-')[:2])}.dist-info"
    top = {name.partition("/")[0] for name in names}
    expect(top == {"hostcb", "hostcb_conformance", information}, f"at the top of the wheel are {sorted(top)}")
    sources = {str(file.relative_to(CHECKOUT / "conformance")) for file in (CHECKOUT / "conformance").rglob("*.py")}
    missing = {f"hostcb_conformance/{name}" for name in sources} - {*names}
    expect(not missing, f"the wheel lacks {sorted(missing)}")
    for name in ("hostcb/py.typed", "hostcb_conformance/expectations/platforms/cpu.toml", f"{information}/METADATA"):
        expect(name in names, f"the wheel lacks {name}")


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml", "conformance/__main__.py", "ci/expectations/cpu.toml"):
        expect(name in names, f"the sdist lacks {name}")


class Environment:
    """An empty environment, in a folder outside of the checkout."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "environment", symlinks=os.name != "nt")
        self.programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        self.work = folder / "work"
        self.work.mkdir()

    def install(self, *requirements: str) -> None:
        """Install with the pip of this process, and without compiling bytecode, which saves half of the time."""
        pip = (sys.executable, "-m", "pip", "--python", str(self.programs / "python"))
        command = [*pip, "install", "--no-compile", *requirements]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        expect(ended.returncode == 0, f"the wheel cannot be installed:\n{ended.stdout}{ended.stderr}")

    def run(self, program: str, *arguments: str) -> str:
        ended = self._run(program, arguments)
        expect(ended.returncode == 0, f"{program} {' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def fails(self, program: str, *arguments: str) -> str:
        ended = self._run(program, arguments)
        expect(ended.returncode != 0, f"{program} {' '.join(arguments)} must fail, and gave:\n{ended.stdout}")
        return ended.stdout + ended.stderr

    def _run(self, program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        variables["JAX_PLATFORMS"] = "cpu"
        command = [str(self.programs / program), *arguments]
        return subprocess.run(command, cwd=self.work, env=variables, capture_output=True, text=True, check=False)


def try_out(environment: Environment) -> None:
    environment.run("python", "-c", PROGRAM)
    expect("No module named 'conformance'" in environment.fails("python", "-c", "import conformance"), "another error")

    suite = "hostcb-conformance"
    expect(environment.run(suite, "--help").startswith(f"usage: {suite} "), "the help names another command")
    listed = environment.run(suite, "list", "--smoke").splitlines()
    expect(len(listed) > 100, f"only {len(listed)} cells are listed")

    chosen = [word for cell in (*CELLS, MUTANT) for word in ("--cell", cell)]
    found = environment.fails(suite, "run", "-n", "2", *chosen)
    expect(f"{len(CELLS)} of {len(CELLS) + 1} cells passed" in found, f"more than the mutant failed:\n{found}")
    expect(f"{suite} run --cell {MUTANT}" in found, f"no command that runs the mutant's cell again:\n{found}")
    expect("there is no" not in found, f"the known failures are not found:\n{found}")
    environment.run(suite, "report", "results", "--html", "matrix.html", "--junit", "cells.xml")

    program = environment.run(suite, "repro", CELLS[0])
    expect(program.startswith(f"# {suite} run --cell {CELLS[0]}\n"), f"another command:\n{program[:200]}")
    expect(f"{CELLS[0]}: pass" in environment.run("python", "-c", program), "the program of a cell does not pass")


def main() -> None:
    dist, *requirements = sys.argv[1:]
    built = the_only(Path(dist), "*.whl")
    check_wheel(built)
    check_sdist(the_only(Path(dist), "*.tar.gz"))
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        wheel = f"hostcb[conformance] @ {built.resolve().as_uri()}"
        environment.install(wheel, *requirements)
        try_out(environment)
    print(f"{built.name} works where it is installed")


if __name__ == "__main__":
    main()
