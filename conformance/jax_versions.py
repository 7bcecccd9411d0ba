"""What is elsewhere in older releases of JAX, down to 0.4.31: there the suite runs JAX's own callbacks alone."""

from __future__ import annotations

import importlib
from typing import Any

import jax


def _shard_map() -> Any:
    if hasattr(jax, "shard_map"):
        return jax.shard_map
    return importlib.import_module("jax.experimental.shard_map").shard_map


def _runtime_error() -> type[Exception]:
    if hasattr(jax.errors, "JaxRuntimeError"):
        return jax.errors.JaxRuntimeError
    error: type[Exception] = importlib.import_module("jaxlib.xla_extension").XlaRuntimeError
    return error


shard_map = _shard_map()
JaxRuntimeError = _runtime_error()
