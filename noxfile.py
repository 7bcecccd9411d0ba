#!/usr/bin/env python3
"""What can be run on hostcb; `nox -l` lists it. Arguments after `--` go to the tool that a session runs."""

# /// script
# dependencies = ["nox>=2025.5"]
# ///

from __future__ import annotations

import shutil
import sys

import nox

nox.needs_version = ">=2025.5"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "virtualenv" if shutil.which("uv") is None else "uv"

PYPROJECT = nox.project.load_toml("pyproject.toml")

# The oldest JAX that is supported, on the oldest Python, and the newest on the newer ones.
SUPPORTED = (("3.11", "jax-0.10.2"), ("3.12", "jax-newest"), ("3.13", "jax-newest"))
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
# The Python that runs nox is there for certain.
HERE_JAX = next((jax for python, jax in SUPPORTED if python == HERE), "jax-newest")
REQUIREMENTS = {"jax-0.10.2": ["jax==0.10.2", "jaxlib==0.10.2"], "jax-newest": ["jax", "jaxlib"]}


def install(session: nox.Session, jax: str, *groups: str, extras: tuple[str, ...] = ()) -> None:
    """Install the project as a user would, with the JAX that is asked for."""
    dependencies = nox.project.dependency_groups(PYPROJECT, *groups) if groups else []
    session.install("-e", ".", *REQUIREMENTS[jax], *dependencies, *extras)


def conformance(session: nox.Session, platform: str, jax: str = "jax-newest", extras: tuple[str, ...] = ()) -> None:
    """Run the matrix on one platform."""
    # The engine of the matrix is pytest with xdist.
    install(session, jax, "test", extras=extras)
    session.run("python", "-m", "conformance", "run", "--platform", platform, "-n", "2", *session.posargs)


# A change is tried with each JAX once; the newest one on yet another Python is for `nox -s tests` to try.
@nox.session
@nox.parametrize(
    "python,jax",
    [
        nox.param(python, jax, id=f"{python}-{jax}", tags=["ci"] if place < 2 else [])
        for place, (python, jax) in enumerate(SUPPORTED)
    ],
)
def tests(session: nox.Session, jax: str) -> None:
    """Run the tests of the library and of the suite, on each supported pair of Python and JAX."""
    install(session, jax, "test")
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session(default=False, python=HERE)
def examples(session: nox.Session) -> None:
    """Run the tests of the examples with torch, which is large."""
    install(session, HERE_JAX, "test", "torch")
    session.run("pytest", "tests/test_examples.py", *session.posargs)


@nox.session(name="conformance-cpu", tags=["ci", "conformance"], python=HERE)
def conformance_cpu(session: nox.Session) -> None:
    """Run the conformance matrix on CPU devices, as many as it asks for."""
    conformance(session, "cpu", HERE_JAX)


@nox.session(name="conformance-cuda", tags=["conformance"], default=False, python=HERE)
def conformance_cuda(session: nox.Session) -> None:
    """Run the conformance matrix on this machine's CUDA devices; fails where there are none."""
    conformance(session, "cuda", extras=("jax[cuda13]",))


@nox.session(name="conformance-rocm", tags=["conformance"], default=False, python=HERE)
def conformance_rocm(session: nox.Session) -> None:
    """Run the conformance matrix on this machine's ROCm devices; fails where there are none."""
    # ROCm's plugin for JAX comes with the system's ROCm, so the user's own installation brings it.
    conformance(session, "rocm")


@nox.session(name="conformance-tpu", tags=["conformance"], default=False, python=HERE)
def conformance_tpu(session: nox.Session) -> None:
    """Run the conformance matrix on this machine's TPU devices; fails where there are none."""
    conformance(session, "tpu", extras=("jax[tpu]",))


@nox.session(default=False, python=HERE)
def mutants(session: nox.Session) -> None:
    """Break hostcb on purpose and see that the conformance cells notice."""
    install(session, HERE_JAX, "test")
    session.run("python", "-m", "conformance", "mutants", "-n", "2", *session.posargs)


@nox.session(tags=["ci"], python=HERE)
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(tags=["ci"], python=HERE)
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly."""
    install(session, HERE_JAX, "types")
    session.run("mypy", *session.posargs)


@nox.session(default=False, python=HERE)
def bench(session: nox.Session) -> None:
    """Measure callbacks beside JAX's own, as ratios in one run; `-- --compare OLD.json` says what became worse."""
    install(session, HERE_JAX)
    session.run("python", "-m", "benchmarks", *session.posargs)


if __name__ == "__main__":
    nox.main()
