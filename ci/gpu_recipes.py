"""Runs the recipes of docs/callbacks/buffer_callback.md on this machine's GPU: those of torch, CuPy, Numba and Triton.

A library that is not installed is said, and is no failure; a recipe that fails, or no GPU, is one.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "callbacks" / "buffer_callback.md"

# The title on the page, the modules that it needs, and what its code must do.
Check = Callable[[dict[str, Any]], None]


def _softmax(names: dict[str, Any]) -> None:
    _equal(names, names["softmax"], names["jax"].nn.softmax)


def _sort(names: dict[str, Any]) -> None:
    _equal(names, names["sort"], names["jnp"].sort)


def _double(names: dict[str, Any]) -> None:
    _equal(names, names["double"], lambda x: 2 * x)


def _add(names: dict[str, Any]) -> None:
    _equal(names, lambda x: names["add"](x, x), lambda x: x + x)


RECIPES: tuple[tuple[str, tuple[str, ...], Check], ...] = (
    ("torch", ("torch",), _softmax),
    ("CuPy", ("cupy",), _sort),
    ("Numba", ("numba",), _double),
    ("Triton", ("torch", "triton"), _add),
)


def _equal(names: dict[str, Any], ours: Any, theirs: Any) -> None:
    x = names["jnp"].asarray([3.0, 1.0, 2.0, 5.0] * 1000, dtype="float32")
    found = names["jax"].jit(ours)(x)
    assert found.device.platform == "gpu", f"the result is on {found.device}"
    names["np"].testing.assert_allclose(found, theirs(x), rtol=1e-5)


def code(title: str) -> str:
    """The code under a title of the page."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found: list[str] = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    return "\n".join(found)


def main() -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hostcb

    if jax.default_backend() != "gpu":
        print(f"ERROR: JAX uses {jax.default_backend()}, and these recipes are for a GPU", file=sys.stderr)
        return 2
    failed = 0
    for title, modules, check in RECIPES:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{title}: not run, {' and '.join(missing)} not installed")
            continue
        names = {"hcb": hostcb, "jax": jax, "jnp": jnp, "np": np, "__name__": "recipe"}
        # Numba and Triton read the source of their kernels, which must be in a file.
        file = Path(f"recipe_{modules[-1]}.py")
        file.write_text(code(title))
        try:
            exec(compile(file.read_text(), str(file), "exec"), names)
            check(names)
            print(f"{title}: good")
        except Exception:
            failed += 1
            print(f"{title}: FAILED\n{traceback.format_exc()}")
        finally:
            file.unlink()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
