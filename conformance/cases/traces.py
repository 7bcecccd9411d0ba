"""Fault cells of `hostcb.trace` and of `hostcb.doctor`: no other cell reads what they write."""

from __future__ import annotations

from typing import Any

from .harness.bench import Bench


def library(bench: Bench) -> Any:
    """The module whose functions these are; no other implementation has them."""
    implementation: Any = bench.implementation
    return implementation.namespace
