"""The private names of JAX that workers replace, and why no public name does.

Each replacement is in force in a worker of the depths `lower` and `compile` alone, but for `reuse_contexts`.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax

from ..oracle.lowered import Callback
from ..spec.versions import version_matches

_ELEMENTS = {
    "bool": "i1",
    "int2": "i2",
    "int4": "i4",
    "uint2": "ui2",
    "uint4": "ui4",
    "bfloat16": "bf16",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    "float4_e2m1fn": "f4E2M1FN",
}
"""MLIR's names of NumPy's types, where they are not the first letters and the bits."""


class StandIn:
    """As much of a platform's client as JAX's emitter asks for while it lowers; it keeps what the emitter registers."""

    runtime_type = "stand-in"

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.callbacks: list[Callback] = []

    def make_python_callback_from_host_send_and_recv(
        self,
        function: Any,
        operands: Sequence[Any],
        results: Sequence[Any],
        sends: Sequence[int],
        receives: Sequence[int],
        serializer: Any = None,
    ) -> Any:
        del serializer
        types = tuple(map(_type, operands)), tuple(map(_type, results))
        self.callbacks.append(Callback(tuple(sends), tuple(receives), *types))
        return function


def _type(shape: Any) -> str:
    """A shape of XLA's as MLIR writes its type."""
    name = shape.numpy_dtype().name
    element = _ELEMENTS.get(name)
    if element is None:
        kind, _, rest = name.partition("_")
        bits = kind.lstrip("abcdefghijklmnopqrstuvwxyz")
        letters = {"uint": "ui", "int": "i", "float": "f"}[kind.removesuffix(bits)]
        element = f"{letters}{bits}{rest.upper()}"
    return f"tensor<{'x'.join([*map(str, shape.dimensions()), element])}>"


@contextmanager
def lowering_for(platform: str) -> Iterator[StandIn]:
    """Let JAX lower for a platform that it does not have.

    `emit_python_callback` asks `ModuleContext.get_backend` for the platform's client on every platform, although only
    the TPU's lowering uses it: for the handler of its transfers.
    """
    client = StandIn(platform)
    mlir = importlib.import_module("jax._src.interpreters.mlir")
    with mock.patch.object(mlir.ModuleContext, "get_backend", return_value=client):
        yield client


def compile_callbacks_for_gpus() -> None:
    """Let JAX's compile-only client of GPUs compile programs with Python callbacks.

    `ModuleContext.get_backend` looks for a client by the name "gpu", which a compile-only one does not have; the
    module's own client is the right one. `backend_compile_and_load` passes the callbacks as Python functions, where the
    client wants capsules; it compiles without running, so it needs neither.
    """
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    compiler: Any = importlib.import_module("jax._src.compiler")
    mlir.ModuleContext.get_backend = lambda self, optional=False: self.backend
    plain = compiler.backend_compile_and_load

    def without_callbacks(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any, *rest: Any) -> Any:
        ahead = "CompileOnly" in type(backend).__name__
        return plain(backend, module, devices, options, () if ahead else callbacks, *rest)

    compiler.backend_compile_and_load = without_callbacks


MAKES_EACH_CONTEXT = "==0.10.2"
"""The release of JAX that was tried with fewer contexts than programs: others before 0.11.1 were not."""

_PROGRAMS_PER_CONTEXT = 10
"""How many programs JAX lowers in one context from 0.11.1 on: what a context has interned stays for as long as it."""


def reuse_contexts() -> None:
    """Let a thread lower several programs in one context of MLIR, as it does from JAX 0.11.1 on.

    To make one takes JAX 0.10.2 four milliseconds, a tenth of a small cell.
    """
    if not version_matches(jax.__version__, MAKES_EACH_CONTEXT):
        return
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    mlir.make_ir_context = several_times(mlir.make_ir_context, _PROGRAMS_PER_CONTEXT)


def several_times(make: Callable[[], Any], times: int) -> Callable[[], Any]:
    """A function that returns what `make` does, in each thread the same one so many times."""
    of_thread = threading.local()

    def made() -> Any:
        left = getattr(of_thread, "left", 0) or times
        if left == times:
            of_thread.one = make()
        of_thread.left = left - 1
        return of_thread.one

    return made


def without_amd_gpus() -> None:
    """Let the plugin of ROCm load where there is no GPU: it asks the system how many there are, and refuses zero."""
    hardware: Any = importlib.import_module("jax._src.hardware_utils")
    hardware.num_available_amd_gpus = lambda stop_at=None: 1


def quick_locations() -> None:
    """Names of operations without the lines of the sources: to find those costs more than the lowering itself."""
    if "jax_traceback_in_locations_limit" in jax.config.values:
        jax.config.update("jax_traceback_in_locations_limit", 0)
