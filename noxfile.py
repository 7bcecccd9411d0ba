#!/usr/bin/env python3
"""The nox sessions of hostcb; `nox -l` lists them. Arguments after `--` go to the tool that a session runs."""

# /// script
# dependencies = ["nox>=2025.5"]
# ///

from __future__ import annotations

import os
import pathlib
import platform
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import nox

nox.needs_version = ">=2025.5"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "uv|virtualenv"

PYPROJECT = nox.project.load_toml("pyproject.toml")
VERSION = runpy.run_path("hostcb/_version.py")["__version__"]

# The oldest supported JAX on the oldest Python, and the newest JAX on newer Pythons.
SUPPORTED = (("3.11", "jax-0.10.2"), ("3.12", "jax-newest"), ("3.13", "jax-newest"), ("3.14", "jax-newest"))
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
# The Python that runs nox always exists.
HERE_JAX = next((jax for python, jax in SUPPORTED if python == HERE), "jax-newest")
REQUIREMENTS = {"jax-0.10.2": ["jax==0.10.2", "jaxlib==0.10.2"], "jax-newest": ["jax", "jaxlib"]}

# With plugins, which go with one version of JAX. Newer ones need a newer Python.
ACCELERATED_JAX = "0.10.2" if HERE == "3.11" else "0.12.0.1"

# Which cells, tests and packages the sessions are of.
CHOSEN = nox.project.load_toml("ci/sessions.toml")
CELLS, TESTS, LIBRARIES = CHOSEN["cells"], CHOSEN["tests"], CHOSEN["libraries"]

# The platforms whose programs are lowered where there is none of them.
LOWERED = ("cuda", "rocm", "tpu", "oneapi")

# Sphinx reads the checkout by docs/conf.py, all of it anew, and takes warnings, also of unknown names, for errors.
SITE = ("-b", "html", "-c", "docs", "-E", "-W", "--keep-going", "-n", "-q")

ZIG = "ziglang==0.16.0"


def install(session: nox.Session, jax: str, *groups: str) -> None:
    """Install the project as a user would, with the given JAX."""
    dependencies = nox.project.dependency_groups(PYPROJECT, *groups) if groups else []
    install_beside(session, *REQUIREMENTS[jax], *dependencies)


def install_beside(session: nox.Session, *packages: str) -> None:
    """Install packages, and then the project. Its build finds the headers of their jaxlib, and downloads no other."""
    session.install(*packages)
    session.install("-e", ".")


def conformance(session: nox.Session, name: str, *arguments: str, **env: str) -> None:
    """Run the matrix on one platform."""
    # Some hundred processes import hostcb, which takes three times as long without the bytecode of its modules.
    with_bytecode = {"PYTHONDONTWRITEBYTECODE": None, **env}
    session.run(
        "python", "-m", "conformance", "run", "--platform", name, *arguments, *session.posargs, env=with_bytecode
    )


def accelerator(session: nox.Session, name: str, *packages: str) -> None:
    """Run the matrix of an accelerator to the deepest depth that this machine has; it says which, and why.

    One process runs cells, since an accelerator may allow one alone; `-- --depth compile -n 2` uses two cores.
    """
    install_beside(session, *nox.project.dependency_groups(PYPROJECT, "test"), *packages)
    # 3 and 4: all is as expected, and nothing ran, because there is nothing here to run on.
    asked = any(argument.startswith("--depth") for argument in session.posargs) and "auto" not in session.posargs
    program = ("python", "-m", "conformance", "run", "--platform", name)
    session.run(*program, *session.posargs, success_codes=[0] if asked else [0, 3, 4])


def tap_in_python(session: nox.Session) -> None:
    """Run the tests and cells of taps without the native extension."""
    session.env["HOSTCB_NATIVE"] = "0"
    session.run("pytest", "-n", "2", *(f"tests/contract/test_{name}.py" for name in TESTS["tapping"]))
    conformance(session, "cpu", "-n", "2", "--smoke", "--results", "results/in-python", "-k", CELLS["tapping"])


def define(name: str, entry: Mapping[str, Any]) -> None:
    """Make a session that installs the project and runs one program, as an entry of ci/sessions.toml says."""

    def session_of_program(session: nox.Session) -> None:
        install(session, entry.get("jax", HERE_JAX), *entry.get("groups", ()))
        session.run(*shlex.split(entry["run"]), *session.posargs, env=entry.get("env"))

    session_of_program.__doc__ = entry["help"]
    tags = entry.get("tags", ())
    nox.session(session_of_program, name=name, tags=tags, default="ci" in tags, python=entry.get("python", HERE))


@nox.session(tags=["ci", "all"], python=HERE)
def tests(session: nox.Session) -> None:
    """Run the tests of the library and of the suite, on the Python that runs nox."""
    install(session, HERE_JAX, "test")
    # Some tests wait for a deadline: three processes keep two cores busy.
    session.run("pytest", "-n", "3", *session.posargs)


# CI runs each JAX once: `tests` runs the other one.
@nox.session(name="tests-all", default=False)
@nox.parametrize(
    "python,jax",
    [
        nox.param(python, jax, id=f"{python}-{jax}", tags=tags)
        for python, jax, tags in (
            ("3.11", "jax-0.10.2", ["all"] if HERE_JAX == "jax-0.10.2" else ["all", "ci"]),
            ("3.12", "jax-newest", ["all", "ci"] if HERE_JAX == "jax-0.10.2" else ["all"]),
            ("3.13", "jax-newest", ["all"]),
            ("3.14", "jax-newest", ["all"]),
        )
        if python != HERE
    ],
)
def tests_all(session: nox.Session, jax: str) -> None:
    """Run the tests on each other supported pair of Python and JAX; `nox -t all` runs them on all.

    With `CI=true` the suite is tested with the oldest JAX alone. The newest runs the small matrix, and taps without
    the native extension.
    """
    install(session, jax, "test")
    if jax == "jax-newest" and os.environ.get("CI") == "true" and not session.posargs:
        session.run("pytest", "-n", "3", "tests/contract", "tests/unit")
        conformance(session, "cpu", "--smoke", "-n", "2")
        tap_in_python(session)
        return
    session.run("pytest", "-n", "3", *session.posargs)


@nox.session(name="in-python", default=False, python=HERE)
def in_python(session: nox.Session) -> None:
    """Run the tests and cells of taps without the native extension, as where hostcb was built without a C compiler."""
    session.env["HOSTCB_BUILD_NATIVE"] = "0"
    install(session, HERE_JAX, "test")
    tap_in_python(session)


@nox.session(default=False, python=HERE)
def sanitized(session: nox.Session) -> None:
    """Run the tests of the native extension, with a million taps, under gcc's sanitizers of memory and of threads."""
    if (platform.system(), shutil.which("gcc") is not None) != ("Linux", True):
        session.skip("this needs gcc and its sanitizers, on Linux")
    install(session, HERE_JAX, "test")
    build = ("python", "ci/packaging/native.py")
    standard = str(session.run("gcc", "-print-file-name=libstdc++.so.6", external=True, silent=True)).strip()
    try:
        for sanitizer, (library, options) in CHOSEN["sanitizers"].items():
            flags = ("-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
            session.run(*build, *flags, env={"CC": "gcc"})
            path = str(session.run("gcc", f"-print-file-name={library}", external=True, silent=True)).strip()
            # The sanitizer of addresses wants to find the C++ library when it starts.
            env = {"LD_PRELOAD": f"{path} {standard}", "HOSTCB_TESTS": "thorough", **options}
            session.run("pytest", *(session.posargs or TESTS["handover"]), env=env)
    finally:
        session.run(*build)


@nox.session(tags=["daily"], default=False, python=HERE)
def recipes(session: nox.Session) -> None:
    """Run the tests of the recipes with all packages that they use, such as tqdm and Numba; torch is not among them."""
    install(session, HERE_JAX, "test", "recipes")
    tests = session.posargs or sorted(str(path) for path in pathlib.Path("tests/contract").glob("test_recipes*.py"))
    # Without the variable a package that is not there skips its tests.
    session.run("pytest", "-n", "2", "-m", "", *tests, env={"HOSTCB_RECIPES": "all"})


@nox.session(default=False, python=HERE)
@nox.parametrize("jax", ["jax-newest", "jax-0.10.2"], ids=["jax-newest", "jax-0.10.2"])
def libraries(session: nox.Session, jax: str) -> None:
    """Run libraries with JAX's own callbacks and under hostcb, and print the tables of docs/libraries.md.

    Programs of this project, then the libraries' own tests, then old releases that import host_callback. An argument
    names one of these three: `-- compare`, `-- own_tests` or `-- old_releases`. What follows chooses libraries.
    JAX 0.10.2 runs the own tests of libraries that do not work with the newest.
    """
    programs = session.posargs[:1] or ["compare", "own_tests", "old_releases"]
    if jax == "jax-0.10.2":
        if "own_tests" not in programs:
            session.skip("the newest JAX runs these programs")
        install_beside(session, *REQUIREMENTS[jax], *LIBRARIES["of_older_jax"], "pytest")
        session.run("python", "examples/libraries/own_tests.py", "pennylane")
        return
    # Each part downloads by pip.
    install_beside(session, *REQUIREMENTS["jax-newest"], *LIBRARIES["compared"], *LIBRARIES["tested"], "pytest", "pip")
    session.install("--no-deps", *LIBRARIES["that_ask_for_older_jax"])
    for name in programs:
        session.run("python", f"examples/libraries/{name}.py", *session.posargs[1:])


@nox.session(name="conformance-cpu", tags=["ci", "conformance"], python=HERE)
def conformance_cpu(session: nox.Session) -> None:
    """Run the conformance matrix on as many CPU devices as it asks for."""
    install(session, HERE_JAX, "cells")
    conformance(session, "cpu", "-n", "3")


@nox.session(name="conformance-lower", tags=["ci", "conformance"], python=HERE)
def conformance_lower(session: nox.Session) -> None:
    """Lower a few cells for each platform, and check the StableHLO; needs no hardware. `-- all` lowers all cells."""
    install(session, HERE_JAX, "cells")
    arguments = [] if session.posargs == ["all"] else session.posargs or ["--smoke"]
    for name in ("cpu", *LOWERED):
        program = ("python", "-m", "conformance", "run", "--platform", name, "--depth", "lower", "-n", "2")
        session.run(*program, *arguments)


@nox.session(name="conformance-report", default=False, python=HERE)
def conformance_report(session: nox.Session) -> None:
    """Join the results of shards in results/, and make their page and summary: `-- shards/*`; needs no JAX.

    A CI job of GitHub has its summary in the file that GITHUB_STEP_SUMMARY names.
    """
    summary = os.environ.get("GITHUB_STEP_SUMMARY", "results/summary.md")
    made = ("--html", "results/page.html", "--markdown", summary)
    try:
        session.run("python", "-m", "conformance", "merge", *session.posargs, "--results", "results")
    finally:
        # Bad results above all need their report.
        session.run("python", "-m", "conformance", "report", "results", *made)


@nox.session(name="conformance-cuda", tags=["conformance"], default=False, python=HERE)
def conformance_cuda(session: nox.Session) -> None:
    """Run the conformance matrix on this machine's CUDA devices; without one, compile it for an H100, or lower it."""
    # Without CUDA's libraries where there is no GPU: the compiler needs none of them.
    extra = "cuda13" if shutil.which("nvidia-smi") else "cuda13-local"
    accelerator(session, "cuda", f"jax[{extra}]=={ACCELERATED_JAX}")


@nox.session(name="conformance-rocm", tags=["conformance"], default=False, python=HERE)
def conformance_rocm(session: nox.Session) -> None:
    """Run the conformance matrix on this machine's ROCm devices; without one, lower it."""
    # JAX's extra for ROCm wants a plugin of its own version, which is not published; this one works with it.
    version = ACCELERATED_JAX.removesuffix(".1")
    plugin = (f"jax-rocm7-plugin=={version}", f"jax-rocm7-pjrt=={version}") if shutil.which("rocminfo") else ()
    accelerator(session, "rocm", f"jax=={ACCELERATED_JAX}", *plugin)


@nox.session(name="conformance-tpu", tags=["conformance"], default=False, python=HERE)
def conformance_tpu(session: nox.Session) -> None:
    """Run the conformance matrix on this machine's TPU devices; without one, compile it with libtpu."""
    accelerator(session, "tpu", f"jax[tpu]=={ACCELERATED_JAX}")


@nox.session(tags=["daily", "conformance"], default=False, python=HERE)
def compiled(session: nox.Session) -> None:
    """Compile a selection of cells for TPU and CUDA with the vendors' own compilers, which need no hardware."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        session.skip("libtpu is published for Linux on x86_64 only")
    dependencies = nox.project.dependency_groups(PYPROJECT, "test")
    install_beside(session, *dependencies, f"jax[tpu,cuda13-local]=={ACCELERATED_JAX}")
    for name, chosen in (("tpu", CELLS["compiled_for_tpu"]), ("cuda", CELLS["compiled_for_cuda"])):
        conformance(session, name, "--depth", "compile", "-n", "2", "-k", chosen)


@nox.session(tags=["daily"], default=False, python=HERE)
def vendor(session: nox.Session) -> None:
    """Run cells on the platform of a vendor, as a package of its own: examples/platform, made of a real plugin."""
    if shutil.which("cc") is None:
        session.skip("the example's plugin is compiled when it starts, and there is no `cc` on the PATH")
    install(session, HERE_JAX, "test")
    # The plugin's metadata ask for an older JAX; it runs with newer ones.
    session.install("--no-deps", "lammps-jax-pjrt-cpu==0.11.2", "./examples/platform")
    chosen = session.posargs or ["-k", CELLS["vendor"]]
    session.run(
        "python", "-m", "conformance", "run", "--platform", "toy", "-n", "2", "--results", "results/toy", *chosen
    )


@nox.session(name="jax-bugs", default=False, python=HERE)
def jax_bugs(session: nox.Session) -> None:
    """Run the programs of docs/jax-bugs, and compare with their pages; `-- jax==0.8.3` names another release."""
    # Neither hostcb nor the suite's dependencies: the programs are of JAX alone.
    session.install(*(session.posargs or REQUIREMENTS[HERE_JAX]))
    session.run("python", "tests/jax_bugs.py")


@nox.session(default=False, python=HERE)
def mutation(session: nox.Session) -> None:
    """Change hostcb's source in hundreds of places, one at a time: `-- -n 2 --minutes 60`; goes on where it stopped."""
    install(session, HERE_JAX, "test")
    session.run("python", "-m", "mutation", "run", *session.posargs)
    session.run("python", "-m", "mutation", "report")


@nox.session(tags=["ci"], python=HERE)
def wheel(session: nox.Session) -> None:
    """Build both wheels and sdists, check them, install the wheels elsewhere, and try them and the types."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "build", "user-types"))
    with tempfile.TemporaryDirectory() as folder:
        for project in (".", "conformance"):
            session.run("python", "-m", "build", "--outdir", folder, project, silent=True)
        session.run("python", "ci/try_wheel.py", folder, *REQUIREMENTS[HERE_JAX])


@nox.session(default=False, python=HERE)
def wheels(session: nox.Session) -> None:
    """Build the sdists, and the wheels of all platforms, into dist/, and check them; downloads the C compiler."""
    build = nox.project.dependency_groups(PYPROJECT, "build")
    # What a build needs is installed once, and not for each wheel: headers of the oldest jaxlib, too.
    needed = PYPROJECT["build-system"]["requires"]
    session.install(*build, *needed, "jaxlib==0.10.2", ZIG)
    zig = str(session.run("python", "-c", "import ziglang; print(*ziglang.__path__)", silent=True)).strip() + "/zig"
    shutil.rmtree("dist", ignore_errors=True)
    program = ("python", "-m", "build", "--no-isolation", "--outdir", "dist")
    session.run(*program, "conformance")
    session.run(*program, "--sdist", ".")
    # pip would keep the first wheel of the archive, and take it for the others.
    pip = ("python", "-m", "pip", "wheel", "-q", "--no-cache-dir", "--no-deps", "--no-build-isolation")
    sdist = next(str(path) for path in pathlib.Path("dist").glob("hostcb-*.tar.gz"))
    for platform_tag, target in CHOSEN["wheels"].items():
        env = {"ZIG_GLOBAL_CACHE_DIR": session.create_tmp(), "HOSTCB_BUILD_PLATFORM": platform_tag}
        env |= {"HOSTCB_BUILD_NATIVE": "1" if target else "0", "CC": f"{shlex.quote(zig)} cc -s -target {target}"}
        session.run(*pip, "--wheel-dir", "dist", sdist, env=env)
    session.run("python", "ci/check_wheels.py", "dist", *CHOSEN["wheels"])


@nox.session(name="try-release", default=False, python=HERE)
def try_release(session: nox.Session) -> None:
    """Install the files of `nox -s wheels` in an empty environment and try them: `-- dist`; for a bare machine."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "build"))
    session.run("python", "ci/try_release.py", *(session.posargs or ["dist"]), *REQUIREMENTS[HERE_JAX])


@nox.session(default=False, python=HERE)
def version(session: nox.Session) -> None:
    """Check that a tag is that of the version in hostcb/_version.py, and that the changelog has it: `-- v0.1.0`."""
    session.run("python", "ci/check_tag.py", *session.posargs)


@nox.session(default=False, python=HERE)
def changelog(session: nox.Session) -> None:
    """Print what the fragments in changes/ become; `-- --yes` moves them into CHANGELOG.md, for a release."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "changelog"))
    session.run("towncrier", "build", "--version", VERSION, *(session.posargs or ["--draft"]))


@nox.session(tags=["ci"], python=HERE)
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(tags=["ci"], python=HERE)
def docs(session: nox.Session) -> None:
    """Build the site of the documentation into build/site; a link that leads nowhere ends it, as any warning does."""
    install(session, HERE_JAX, "docs")
    session.run("python", "tests/promises.py")
    session.run("python", "-m", "sphinx", *SITE, *session.posargs, ".", "build/site")


# In a new environment, since the one of the last time has a pre-release already.
@nox.session(default=False, python=HERE, reuse_venv=False)
def prerelease(session: nox.Session) -> None:
    """Run the tests with the newest pre-release of JAX; says so and succeeds where there is none."""
    install(session, "jax-newest", "test")
    released = installed(session)
    session.install("--pre", "--upgrade", "jax", "jaxlib")
    newest = installed(session)
    if newest == released:
        session.skip(f"there is no pre-release of JAX after {released}")
    session.log(f"trying JAX {newest}, after {released}")
    # What it lacks, if anything; the tests say what that breaks.
    session.run("python", "-m", "hostcb", success_codes=[0, 1])
    session.run("pytest", "-n", "2", *session.posargs)


def installed(session: nox.Session) -> str:
    """The version of JAX in a session's environment."""
    program = "from importlib.metadata import version; print(version('jax'))"
    return str(session.run("python", "-c", program, silent=True)).strip()


for name, entry in CHOSEN["sessions"].items():
    define(name, entry)


if __name__ == "__main__":
    nox.main()
