#!/usr/bin/env python3
"""The parts of JAX's private side that hostcb uses, as text; run as a program, it writes contract/private_parts.txt.

Each has a line with what it costs to lack it and the promises that are lost, one with what the doctor links to, and one
for each thing that hostcb reads of it or calls. The warning on an unknown JAX is made of the same data: an entry that
names too few promises, or that does not ask for what hostcb reads, is seen in no other place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hostcb._compat.registry import Entry, Signature, entries

FILE = Path(__file__).parent / "contract" / "private_parts.txt"
COMMAND = "python tests/private_parts.py"


def _arguments(signature: Signature) -> str:
    if signature.exactly:
        known = " or ".join(f"({names})" for names in signature.exactly)
        return f"{known}, as a plain function" if signature.plain else known
    if signature.among:
        return f"({' '.join(signature.among)}, and any others)"
    return f"({', '.join([*'_' * signature.positional, *(f'{name}=' for name in signature.keywords)])})"


def _lines(entry: Entry) -> Iterator[str]:
    releases = f" since {entry.since}" + (f" until {entry.until}" if entry.until else "")
    yield f"{entry.name}{releases}{' late' if entry.deferred else ''}: {entry.cost.name} {' '.join(entry.promises)}"
    yield from (f"    or {place}" for place in entry.other_places)
    if entry.link is not None:
        yield f"    see {entry.link}"
    if entry.signature is not None:
        yield f"    takes {_arguments(entry.signature)}"
    yield from (f"    has {name}" for name in entry.attributes)
    yield from (f"    has {name}{_arguments(signature)}" for name, signature in entry.methods.items())


def snapshot() -> str:
    return "".join(f"{line}\n" for entry in sorted(entries, key=lambda each: each.name) for line in _lines(entry))


if __name__ == "__main__":
    FILE.write_text(snapshot(), encoding="utf-8")
    print(f"wrote {FILE}", file=sys.stderr)
