"""Runs each program of this folder with JAX's own callbacks, and under hostcb: `python examples/libraries/compare.py`.

The programs are of libraries as they are, and do not name hostcb: `HOSTCB_INSTALL=1` does it all. What a program prints
must be the same both times; a line `seconds: N` is the time of its part with callbacks. Prints the table of
docs/libraries.md, and exits with 1 if a program fails or differs. Arguments choose programs by name.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# The library of each program, by its name in the index.
LIBRARIES = {
    "blackjax_bar": "blackjax",
    "chex_assertions": "chex",
    "diffrax_meters": "diffrax",
    "equinox_errors": "equinox",
    "flax_metrics": "flax",
    "jax_tqdm_bars": "jax-tqdm",
    "jaxtyping_annotations": "jaxtyping",
    "numpyro_bars": "numpyro",
    "optax_linesearch": "optax",
    "optimistix_steps": "optimistix",
}
SECONDS = "seconds: "


def run(path: Path, install: bool) -> tuple[str, float]:
    """What a program prints, and how long its part with callbacks takes.

    Raises:
        subprocess.CalledProcessError: the program fails.
    """
    variables = {name: value for name, value in os.environ.items() if name != "HOSTCB_INSTALL"}
    variables |= {"JAX_PLATFORMS": "cpu", **({"HOSTCB_INSTALL": "1"} if install else {})}
    ended = subprocess.run([sys.executable, str(path)], env=variables, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        print(ended.stdout, ended.stderr, file=sys.stderr)
        ended.check_returncode()
    lines = ended.stdout.splitlines()
    times = [float(line.removeprefix(SECONDS)) for line in lines if line.startswith(SECONDS)]
    return "\n".join(line for line in lines if not line.startswith(SECONDS)), sum(times)


def goes_through_hostcb() -> bool:
    """Whether HOSTCB_INSTALL=1 reaches a program here."""
    program = "import jax; print('host_callback' in str(jax.make_jaxpr(lambda x: jax.pure_callback(abs, x, x))(1.0)))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HOSTCB_INSTALL": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip() == "True"


def row(name: str) -> str:
    """Run one program both ways, and return its line of the table.

    Raises:
        AssertionError: it prints something else under hostcb.
    """
    path = HERE / f"{name}.py"
    library = LIBRARIES[name]
    what = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split()).rstrip(".")
    plain, before = run(path, install=False)
    ours, after = run(path, install=True)
    assert plain == ours, f"{name} prints with JAX's own callbacks:\n{plain}\nand under hostcb:\n{ours}"
    version = importlib.metadata.version(library)
    return f"| {library} {version} | {what} | {len(ours.splitlines())} | {before:.3f} s | {after:.3f} s |"


def main() -> int:
    if not goes_through_hostcb():
        print("HOSTCB_INSTALL=1 has no effect in this environment: install hostcb with pip", file=sys.stderr)
        return 1
    print("| library | what runs | equal lines | with JAX's own | with hostcb |\n| --- | --- | --- | --- | --- |")
    failed = 0
    for name in sys.argv[1:] or LIBRARIES:
        try:
            print(row(name), flush=True)
        except (AssertionError, subprocess.CalledProcessError) as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
