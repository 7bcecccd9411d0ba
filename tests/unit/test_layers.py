"""The imports of `hostcb/` point one way, and JAX's private names are touched in its lowest layer alone."""

from __future__ import annotations

import re

from support.layers import Package, cycles, wrong_imports

LAYERS = (
    "_version",
    "_importing",
    "_compat",
    "_spec",
    "_threads",
    "_errors",
    "_native",
    "_runtime.memory",
    "_runtime.queue",
    "_runtime.observing",
    "_runtime.dispatch",
    "_runtime.executions",
    "_runtime",
    "_dlpack",
    "_lowering",
    "_workarounds",
    "_primitive",
    "_api",
    "debug",
    "_installation",
    "__init__",
    "__main__",
)
"""The lowest first. docs/architecture.md says what each is for."""

HOSTCB = Package.named("hostcb")


def test_imports_point_one_way() -> None:
    assert wrong_imports(HOSTCB, LAYERS) == []


def test_there_is_no_cycle() -> None:
    assert cycles(HOSTCB) == []


def test_private_names_of_jax_are_in_the_lowest_layer_alone() -> None:
    private = re.compile(r"\bjax\._src\b|^\s*(?:import|from) jaxlib\b", re.MULTILINE)
    touching = [module for module, path in HOSTCB.modules.items() if private.search(path.read_text())]
    assert touching and all(module.startswith("_compat.") for module in touching), touching
