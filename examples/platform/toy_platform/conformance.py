"""The platform for the conformance suite, which finds it by an entry point in `hostcb_conformance.platforms`.

It is imported where no JAX may be: it must not import JAX.
"""

from __future__ import annotations

from pathlib import Path

PLATFORM = Path(__file__).with_name("toy.toml")
