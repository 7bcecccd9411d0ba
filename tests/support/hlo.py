"""Optimized HLO as tests write it, in the form in which jaxlib hands it out: modules, computations, instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

# Opcodes whose names in `HloOpcode` are others than those that are printed.
NAMES = {"sine": "kSin", "log-plus-one": "kLog1p"}


def hlo_module(text: str) -> Any:
    """A module of the computations in `text`, which need not make sense."""
    found = [*_computations(text)]
    return SimpleNamespace(computations=lambda: found, to_string=lambda: text)


def _computations(text: str) -> Iterator[Any]:
    for header in re.finditer(r"^(?:ENTRY )?%(\S+) \(.*\{\n((?:  .*\n)*)\}", text, re.MULTILINE):
        own = [_instruction(line.strip()) for line in header[2].splitlines()]
        yield SimpleNamespace(name=header[1], instructions=lambda own=own: own)


def _instruction(line: str) -> Any:
    opcode = re.search(r" ([a-z][a-z0-9-]*)\(", line)
    assert opcode is not None, f"no operation in {line!r}"
    name = NAMES.get(opcode[1]) or "k" + "".join(word.capitalize() for word in opcode[1].split("-"))
    return SimpleNamespace(opcode=SimpleNamespace(name=name), to_string=lambda: line.removeprefix("ROOT "))
