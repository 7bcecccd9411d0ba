"""Runs old releases with the JAX of their time and with the newest: `python examples/libraries/old_releases.py`.

The releases import `jax.experimental.host_callback`, which JAX no longer has. The newest JAX runs them as they are with
`HOSTCB_INSTALL=1`. A program of the folder `old` must print what it prints with JAX 0.4.31, which had the module. The
table of docs/libraries.md is printed. The exit status is 1 if a program fails or differs.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / "old"
# The release of each program.
RELEASES = {"blackjax_bar": "blackjax==1.1.0", "sgmcmcjax_bars": "sgmcmcjax==0.2.13"}
# What these releases need that no other program of this project does, in releases of about their time.
BESIDE = ("fastprogress==1.0.3", "jaxopt==0.8.3")
THEN = "0.4.31"
# The newest that run with it.
THEIR_TIME = (f"jax=={THEN}", f"jaxlib=={THEN}", "numpy<2", "scipy<1.14", "optax==0.2.3", "chex==0.1.86", "tqdm")


def install(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def run(python: Path, program: Path, **variables: str) -> str:
    """What a program prints.

    Raises:
        AssertionError: the program fails.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in ("HOSTCB_INSTALL", "PYTHONPATH")}
    environment = inherited | {"JAX_PLATFORMS": "cpu", **variables}
    ended = subprocess.run(
        [str(python), str(program)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, f"{program.name} exits with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def row(name: str, then: Path, packages: Path) -> str:
    """Run one program both ways, and return its line of the table.

    Raises:
        AssertionError: it fails, or prints something else under hostcb.
    """
    program = FOLDER / f"{name}.py"
    what = " ".join((ast.get_docstring(ast.parse(program.read_text())) or "").split()).rstrip(".")
    before = run(then, program)
    after = run(Path(sys.executable), program, PYTHONPATH=str(packages), HOSTCB_INSTALL="1")
    assert before == after, f"{name} prints with JAX {THEN}:\n{before}\nand today, under hostcb:\n{after}"
    library, version = RELEASES[name].split("==")
    return f"| {library} {version} | {what} | {len(after.split())} | {THEN} | {importlib.metadata.version('jax')} |"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        packages, environment = Path(folder, "packages"), Path(folder, "then")
        venv.create(environment, with_pip=True)
        then = environment / "bin" / "python"
        install(then, *THEIR_TIME, *BESIDE, *RELEASES.values())
        install(Path(sys.executable), "--no-deps", "--target", str(packages), *BESIDE, *RELEASES.values())
        print("| release | what runs | equal words | before, with JAX | under hostcb, with JAX |")
        print("| --- | --- | --- | --- | --- |")
        failed = False
        for name in RELEASES:
            try:
                print(row(name, then, packages), flush=True)
            except AssertionError as error:
                failed = True
                print(error, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
