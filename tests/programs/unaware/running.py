"""Run the programs of a module of this folder, and write as JSON what each printed, raised and logged."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
from collections.abc import Callable
from typing import Any

import jax

# Of an error of a computation the words that a user looks for; the rest is the implementation's.
WORDS = (
    *("planted", "ValueError", "KeyError", "SystemExit", "vmap_method", "Cannot `vmap`"),
    *("Mismatched number of outputs", "Incorrect output shape", "Incorrect output dtype"),
)


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()}")


def attempt(function: Callable[..., Any], *args: Any) -> None:
    """Print a result, or the error that a program would catch."""
    try:
        print(jax.block_until_ready(function(*args)))
        jax.effects_barrier()
    except BaseException as error:
        # Errors of hostcb are subclasses of JAX's and Python's. One that is a ValueError, too, is caught as IndexError.
        public = [each for each in type(error).__mro__ if each.__module__ in ("builtins", "jax.errors", "jaxlib._jax")]
        caught = max(public, key=lambda each: issubclass(each, LookupError) and each is not LookupError)
        print(caught.__name__, [word for word in WORDS if word in str(error)])
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()


def main(module: str) -> None:
    records = Records()
    logging.getLogger().addHandler(records)
    outcomes = {}
    for name, program in importlib.import_module(f"programs.unaware.{module}").PROGRAMS.items():
        records.lines.clear()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            attempt(program)
        outcomes[name] = [*printed.getvalue().splitlines(), *records.lines]
    print(json.dumps(outcomes))
