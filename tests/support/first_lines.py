"""The parts of first lines that several files of tests ask of (H32)."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import jax
import pytest

import hostcb as hcb


def files_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def files_in(lines: Iterable[str]) -> set[str]:
    """Return the files of the tracebacks in a text."""
    return set(re.findall(r'^  File "(.*)", line \d', "\n".join(lines), re.MULTILINE))


def ended(program: Callable[[], Any]) -> jax.errors.JaxRuntimeError:
    """The error with which a computation ends."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(program())
        jax.effects_barrier()
    return caught.value


def barrier() -> hcb.CallbackException:
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    return caught.value


def name_of(function: Callable[..., Any]) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
