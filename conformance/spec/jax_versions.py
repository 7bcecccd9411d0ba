"""Names that older releases of JAX have in other places, down to 0.4.31. There the suite tests only JAX's callbacks."""

from __future__ import annotations

import importlib
import inspect
import operator
from typing import Any

import jax
from jax.interpreters import mlir

from .versions import HOSTCB_NEEDS, version_matches

shard_map: Any = getattr(jax, "shard_map", None) or importlib.import_module("jax.experimental.shard_map").shard_map

JaxRuntimeError: type[Exception] = (
    getattr(jax.errors, "JaxRuntimeError", None) or importlib.import_module("jaxlib.xla_extension").XlaRuntimeError
)


def why_missing(name: str) -> str | None:
    """The reason if this release has no such function or attribute, like `stages.Compiled.output_formats`; or None."""
    try:
        operator.attrgetter(name or "__name__")(jax)
    except AttributeError:
        return f"JAX {jax.__version__} has no jax.{name}"
    return None


def why_no_hostcb() -> str | None:
    """The reason if hostcb does not run on this release; otherwise None."""
    if version_matches(jax.__version__, HOSTCB_NEEDS):
        return None
    return f"hostcb needs JAX {HOSTCB_NEEDS.removeprefix('>=')} or newer, and JAX {jax.__version__} is installed"


def why_no_runtime_targets() -> str | None:
    """The reason if a program of this release cannot send results to the runtime's own targets; otherwise None."""
    if not hasattr(getattr(jax, "ffi", None), "build_ffi_lowering_function"):
        return f"JAX {jax.__version__} has no jax.ffi.build_ffi_lowering_function, by which the suite lowers to it"
    if "cacheable" not in inspect.signature(mlir.register_lowering).parameters:
        return f"JAX {jax.__version__} has no register_lowering(cacheable=...), by which the suite lowers to it"
    return None
