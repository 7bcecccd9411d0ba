"""The text that programs with `debug.print` write, by hostcb or by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

Show = Callable[..., None]


class Printed:
    """What has been written since the last question, when everything that was started has ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self) -> str:
        jax.effects_barrier()
        return self._capsys.readouterr().out

    def by(self, program: Callable[[Show], Any], module: Any) -> str:
        self()
        jax.block_until_ready(program(module.debug.print))
        return self()
