"""Prints an entry of the corpus as a program of its own: `python -m conformance.fuzz.printing ENTRY [IMPLEMENTATION]`.

It is a process of its own since it traces the program, and the command that fuzzes does not import JAX.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .description import from_json
from .oracle import expect
from .standalone import standalone_text


def main(path: str, implementation: str = "hostcb") -> None:
    data = json.loads(Path(path).read_text())
    program = from_json(data["program"])
    title = data["about"].splitlines()[0].replace("\\", "/").replace('"', "'")
    print(standalone_text(program, expect(program), implementation, title))


if __name__ == "__main__":
    main(*sys.argv[1:])
