"""Checks the wheels and the sdists in a folder, as a user gets them: `python ci/try_wheel.py DIST REQUIREMENT...`.

The wheel of hostcb is installed in an empty environment, with these requirements beside it, and tried outside of the
checkout; so are its types. Then the wheel of the conformance suite is installed, and runs cells.
Last, pip installs the sdist of hostcb: with a C compiler, without one, and where the native extension is not wanted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import check_types
from check_wheels import (
    CHECKOUT,
    LIBRARY_SDIST,
    LIBRARY_WHEEL,
    SUITE_WHEEL,
    check_sdists,
    check_suite,
    check_wheel,
    expect,
    native,
    platform_of,
    the_only,
)

with (CHECKOUT / "pyproject.toml").open("rb") as file:
    BUILD_TOOLS: list[str] = tomllib.load(file)["build-system"]["requires"]

PROGRAM = """\
import jax, numpy as np
import hostcb

seen = []
assert jax.jit(lambda x: hostcb.id_tap(lambda value, transforms: seen.append(value.item()), x) + 1)(2.0) == 3.0
hostcb.barrier_wait()
assert seen == [2.0], seen
assert hostcb.call(lambda x: np.asarray(x) * 2, 4.0, result_shape=jax.ShapeDtypeStruct((), np.float32)) == 8.0
"""

# The same with the tag of the wheel that was installed, and what `python -m hostcb` prints.
SAYING = f"""\
{PROGRAM}
from importlib.metadata import distribution
print(distribution("hostcb").read_text("WHEEL"), hostcb.doctor())
"""

# A program of before 2024: it does not name hostcb.
OLD_PROGRAM = """\
from jax.experimental import host_callback as hcb
import jax

jax.config.update("jax_host_callback_inline", True)
hcb.id_print(jax.jit(lambda x: hcb.call(lambda x: 2 * x, x, result_shape=x))(21.0), what="twice")
"""

CELLS = (
    "hostcb/id_tap/jit/cpu-1dev",
    "jax/pure_callback/vmap/cpu-1dev",
    # Its program has a process of its own, which must find the package by its name.
    "hostcb/pure_callback/case.os_exit.pmap/cpu-1dev",
)
MUTANT = "hostcb_conformance.mutants:dropped/id_tap/jit/cpu-1dev"

IN_C = "the native extension: in use; taps are queued in C"
IN_PYTHON = "wait for the interpreter lock: it was not built"


class Environment:
    """An empty environment, in a folder outside of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "environment"
        venv.create(self.folder, symlinks=os.name != "nt")
        self.programs = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.work = folder / "work"
        self.work.mkdir()

    def install(self, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """Install with the pip of this process, and without compiling bytecode, which saves half of the time."""
        pip = (sys.executable, "-m", "pip", "--python", str(self.folder))
        command = [*pip, "install", "--no-compile", *arguments]
        env = os.environ | (variables or {})
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        expect(ended.returncode == 0, f"{' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}")
        return ended.stdout + ended.stderr

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        ended = self._run(program, arguments, variables)
        expect(ended.returncode == 0, f"{program} {' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def fails(self, program: str, *arguments: str) -> str:
        ended = self._run(program, arguments)
        expect(ended.returncode != 0, f"{program} {' '.join(arguments)} must fail, and gave:\n{ended.stdout}")
        return ended.stdout + ended.stderr

    def _run(
        self, program: str, arguments: Sequence[str], chosen: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "HOSTCB_"))
        }
        variables |= {"JAX_PLATFORMS": "cpu", **(chosen or {})}
        command = [str(self.programs / program), *arguments]
        return subprocess.run(command, cwd=self.work, env=variables, capture_output=True, text=True, check=False)


def try_without_suite(environment: Environment) -> None:
    """Check that hostcb alone brings neither the conformance suite nor what that needs."""
    for name in ("conformance", "hostcb_conformance", "pytest"):
        said = environment.fails("python", "-c", f"import {name}")
        expect(f"No module named '{name}'" in said, f"`import {name}` fails in another way:\n{said}")


def try_suite(environment: Environment) -> None:
    suite = "hostcb-conformance"
    expect(environment.run(suite, "--help").startswith(f"usage: {suite} "), "the help names another command")
    listed = environment.run(suite, "list", "--smoke").splitlines()
    expect(len(listed) > 100, f"only {len(listed)} cells are listed")

    chosen = [word for cell in (*CELLS, MUTANT) for word in ("--cell", cell)]
    found = environment.fails(suite, "run", "-n", "2", *chosen)
    expect(f"{len(CELLS)} of {len(CELLS) + 1} cells passed" in found, f"more than the mutant failed:\n{found}")
    expect(f"{suite} run --cell {MUTANT}" in found, f"no command that runs the mutant's cell again:\n{found}")
    expect("there is no" not in found, f"the known failures are not found:\n{found}")
    environment.run(suite, "report", "results/selection", "--html", "matrix.html")

    program = environment.run(suite, "repro", CELLS[0])
    expect(program.startswith(f"# {suite} run --cell {CELLS[0]}\n"), f"another command:\n{program[:200]}")
    expect(f"{CELLS[0]}: pass" in environment.run("python", "-c", program), "the program of a cell does not pass")


def try_hand_over(environment: Environment, in_c: bool) -> None:
    """Check the tag of the wheel that was installed, that taps work, and whether in C."""
    said = environment.run("python", "-c", SAYING)
    expect(("Tag: py3-none-any\n" not in said) == in_c, f"the installed wheel has another tag:\n{said}")
    expect((IN_C if in_c else IN_PYTHON) in said, f"hostcb should say whether taps are queued in C, and says:\n{said}")


def try_old_program(environment: Environment) -> None:
    """Run a program of host_callback unchanged, and see that without the variable nothing of this happens."""
    said = environment.run("python", "-c", OLD_PROGRAM, HOSTCB_INSTALL="1")
    expect(said == "what: twice\n42.\n", f"the old program says:\n{said}")
    environment.fails("python", "-c", OLD_PROGRAM)
    startup = "import sys; print([name for name in sys.modules if 'hostcb' in name or name == 'jax'])"
    expect(environment.run("python", "-c", startup) == "[]\n", "Python imports a part of hostcb when it starts")


def try_source(environment: Environment, source: Path, why_not: str | None, *options: str, **variables: str) -> None:
    """Let pip build and install the unpacked sdist, with the native extension or with a warning that says why not.

    From the archive itself pip would keep the wheel, and install it the next time as well. The library of an earlier
    build is in the folder, and must not get into a wheel without one.
    """
    said = environment.install("-v", "--no-deps", "--force-reinstall", *options, str(source), variables=variables)
    if why_not is not None:
        warning = f"hostcb is built without its native extension: {why_not}. It works without it."
        expect(warning in said, f"pip should pass on {warning!r}, and says:\n{said}")
    try_hand_over(environment, in_c=why_not is None)
    print(f"{source.name} is installed by pip {f'without the native extension: {why_not}' if why_not else 'with it'}")


def unpacked(sdist: Path, folder: str) -> Path:
    """Unpack an sdist that was built here, and return its root."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            # Python before 3.11.4.
            archive.extractall(folder)
    return Path(folder, sdist.name.removesuffix(".tar.gz"))


def main() -> None:
    dist, requirements = Path(sys.argv[1]), sys.argv[2:]
    built, suite, sdist = (the_only(dist, pattern) for pattern in (LIBRARY_WHEEL, SUITE_WHEEL, LIBRARY_SDIST))
    why_not = native.lacks()
    print(f"{built.name}: {check_wheel(built)}")
    print(f"{suite.name}: {check_suite(suite)}")
    print(*check_sdists(dist), sep="\n")
    expect((platform_of(built) == "any") == (why_not is not None), f"{built.name} was built, but: {why_not}")
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        environment.install(str(built), *requirements)
        try_without_suite(environment)
        try_old_program(environment)
        try_hand_over(environment, in_c=why_not is None)
        state = environment.run("python", "-m", "hostcb")
        expect((IN_C if why_not is None else IN_PYTHON) in state, f"`python -m hostcb` says:\n{state}")
        check_types.check(environment.programs / "python", environment.work)
        environment.install(str(suite), *BUILD_TOOLS)
        try_suite(environment)
        print(f"{built.name} and {suite.name} work where they are installed")
        source = unpacked(sdist, folder)
        if why_not is None:
            try_source(environment, source, None)
            # Nothing else is on this path. The tools of an isolated build need not be installed again.
            reason, path = "there is no C compiler (set CC to name one)", str(environment.programs)
            try_source(environment, source, reason, "--no-build-isolation", PATH=path, CC="")
        else:
            print(f"left out: the native extension, since {why_not}")
        reason = "HOSTCB_BUILD_NATIVE=0 asks for that"
        try_source(environment, source, reason, "--no-build-isolation", HOSTCB_BUILD_NATIVE="0")


if __name__ == "__main__":
    main()
