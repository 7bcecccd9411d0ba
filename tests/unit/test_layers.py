"""The imports of `hostcb/` and `conformance/` point one way, and JAX's private names are in the lowest layer alone."""

from __future__ import annotations

import re

import pytest
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

OF_THE_SUITE = (
    *("__init__", "spec", "model", "oracle", "warm", "implementations", "cases", "planning", "standalone", "worker"),
    *("expectations", "reports", "bundles", "engine", "minimising", "releases", "bisecting", "mutants", "soak"),
    *("cli", "__main__"),
)

HOSTCB, SUITE = Package.named("hostcb"), Package.named("conformance")


@pytest.mark.parametrize(("package", "layers"), [(HOSTCB, LAYERS), (SUITE, OF_THE_SUITE)], ids=["hostcb", "suite"])
def test_imports_point_one_way_without_a_cycle(package: Package, layers: tuple[str, ...]) -> None:
    assert wrong_imports(package, layers) == []
    assert cycles(package) == []


def test_imports_of_the_suite_are_relative() -> None:
    """In a wheel it has another name."""
    absolute = re.compile(r"^\s*(?:from|import) conformance\b", re.MULTILINE)
    assert [module for module, path in SUITE.modules.items() if absolute.search(path.read_text())] == []


def test_private_names_of_jax_are_in_the_lowest_layer_alone() -> None:
    private = re.compile(r"\bjax\._src\b|^\s*(?:import|from) jaxlib\b", re.MULTILINE)
    touching = [module for module, path in HOSTCB.modules.items() if private.search(path.read_text())]
    assert touching and all(module.startswith("_compat.") for module in touching), touching
