"""Taps through the library's handler for CUDA, without a GPU: CPU devices with streams of a stand-in for the driver.

The handler, the rings, the queues and XLA's typed FFI are the real ones. The driver is `programs/stand_in_for_cuda.c`.
The runtime is that of CPUs, which gives the handler no stream; a handler around it does.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import hostcb as hcb
from hostcb import _compat
from hostcb._lowering import on_stream, transports, views
from hostcb._native.cuda import cuda
from hostcb._native.library import PYTHON_TARGET, library

ROOT = Path(hcb.__file__).parent.parent
SOURCE = Path(__file__).parents[1] / "programs" / "stand_in_for_cuda.c"

STREAMS = 8
_wait_for_callbacks = hcb.barrier_wait
NAME, CONTEXT, PUSH, POP, ALLOCATE, COPY, CALL, WAIT = range(8)
"""The functions of the driver, as the stand-in counts them and lets them fail."""


def packaging() -> Any:
    """The module that compiles the library."""
    spec = importlib.util.spec_from_file_location("packaging_native", ROOT / "ci" / "packaging" / "native.py")
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    return native


def compiled(folder: Path, *, is_driver: bool = True) -> Path:
    """Compile the stand-in; `dlopen` takes it for the driver once a process has loaded it, because of its name."""
    native = packaging()
    path = folder / ("libcuda.so.1" if is_driver else "no_driver.so")
    named = [f"-Wl,-soname,{path.name}"]
    command = [*native.compiler(), *native.FLAGS, f"-I{native.headers()}", str(SOURCE), *named, "-o", str(path)]
    subprocess.run(command, check=True)
    return path


class Driver:
    """The stand-in, in this process."""

    def __init__(self, path: str, streams: int = 1) -> None:
        self._functions = ctypes.CDLL(path)
        self._functions.stand_in_calls.restype = ctypes.c_int64
        self._functions.stand_in_depth.restype = ctypes.c_int64
        assert _compat.backends_exist() or jax.devices()
        library.held.hostcb_cuda_set_python_handler(_compat.python_handler(PYTHON_TARGET))
        self._functions.stand_in_for(ctypes.cast(library.held.hostcb_cuda_tap, ctypes.c_void_p), streams)
        cuda.register("cpu", self._functions.stand_in_tap)

    def fail(self, function: int, after: int = 0, code: int = 700) -> None:
        self._functions.stand_in_fail(function, after, code)

    def delay(self, microseconds: int) -> None:
        self._functions.stand_in_delay(microseconds)

    def calls(self, function: int) -> int:
        return int(self._functions.stand_in_calls(function))

    def contexts_left(self) -> int:
        return int(self._functions.stand_in_depth())

    def break_stream(self, stream: int) -> None:
        self._functions.stand_in_break(stream)

    @contextmanager
    def held(self, stream: int = 0) -> Iterator[None]:
        """Let a stream do nothing in the block."""
        self._functions.stand_in_hold(stream, 1)
        try:
            yield
        finally:
            self._functions.stand_in_hold(stream, 0)

    def arrive(self) -> None:
        """Wait for all streams, as the token of a program on a GPU does."""
        for stream in range(STREAMS):
            self._functions.stand_in_wait(stream)

    def barrier(self) -> None:
        self.arrive()
        _wait_for_callbacks()


@contextmanager
def installed(path: str, streams: int = 1) -> Iterator[Driver]:
    """Let callbacks on CPU devices take the transports of CUDA."""
    driver = Driver(path, streams)

    def as_on_cuda(site: Any, devices: Any, sharding: Any) -> transports.Emitted:
        if on_stream.takes(site, "cuda"):
            return on_stream.taps(site, sharding)
        assert sharding is None
        locate = lambda _: site.crossing.host.program.device_at(0)
        return transports.arrays(site, "xla_ffi_python_cpu_callback", locate, None, None)

    def device() -> Any:
        return jax.devices("cpu")[library.held.hostcb_cuda_ordinal()]

    with (
        mock.patch.object(views, "views", as_on_cuda),
        mock.patch.object(cuda, "device", device),
        mock.patch.object(cuda, "is_ready", lambda: True),
    ):
        yield driver
