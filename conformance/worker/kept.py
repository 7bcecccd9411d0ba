"""Compiled programs that are kept from run to run, for `run --compiled DIR` on CPU.

XLA:CPU makes the same program of the same module, options and devices. Its compiler is most of the time of a run with a
new JAX, and programs of different cells are often equal. A kept program is loaded with the callbacks of the cell that
asks for it: it has none of its own.

A module with a call that the suite does not know is compiled. XLA calls Python while it compiles a
`custom_partitioning`, for example, and the module has only an address.

This module does not import JAX.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..spec.depths import Depth
from ..spec.versions import version_matches

WITH = ">=0.12"
"""The versions of jaxlib. With 0.10.2 a process that keeps a program of several devices ends with SIGSEGV."""

_KNOWN_CALLS = ("hostcb_", "xla_ffi_", "xla_buffer_python_", "lapack_", "Sharding", "SPMDFullTo", "SPMDShardTo")
"""How the names of custom calls begin whose programs depend on nothing but the module's text."""

_CALL = re.compile(r'custom_call @"?([^"(]+)')
_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')
"""The name of an operation, as JAX writes it: the functions and scopes around it. Names of files look otherwise."""

_DIGEST = 32
"""The length of the digest before the program in its file."""


def why_not(name: str, depth: Depth, jaxlib: str | None = None) -> str | None:
    """The reason if the programs of a run cannot be kept; otherwise None."""
    jaxlib = jaxlib or importlib.metadata.version("jaxlib")
    if name != "cpu" or depth is not Depth.RUN:
        return f"it keeps what XLA:CPU compiles for a run, and this is {name} at depth {depth.value}"
    if not version_matches(jaxlib, WITH):
        return f"it needs jaxlib {WITH}, and {jaxlib} is installed: older ones cannot keep programs of several devices"
    return None


class KeptPrograms:
    """A folder of compiled programs, which several processes may use at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _compiler_and_machine()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)

    def compile(
        self,
        plain: Callable[..., Any],
        client: Any,
        module: Any,
        devices: Any,
        options: Any,
        callbacks: Sequence[Any],
        *rest: Any,
    ) -> Any:
        """The executable of a module: from the folder, or compiled by `plain`, JAX's own function, and kept."""
        if client.platform != "cpu" or client.device_count() != client.local_device_count() or rest:
            # What a process compiles for devices of several processes was not tried.
            return plain(client, module, devices, options, callbacks, *rest)
        text = str(module)
        if not _is_known(text):
            return plain(client, module, devices, options, callbacks)
        names = _NAME.findall(module.operation.get_asm(enable_debug_info=True))
        facts = [text, names, [device.id for device in devices], len(callbacks)]
        file = self._folder / _digest(repr(facts).encode(), options.SerializeAsString(), _threads(client)).hex()
        if (program := _read(file)) is not None:
            with contextlib.suppress(RuntimeError):
                return client.deserialize_executable(program, devices, options, *([callbacks] if callbacks else []))
        executable = plain(client, module, devices, options, callbacks)
        # A program that cannot be kept, and a full disk, are no failures of the cell.
        with contextlib.suppress(RuntimeError, OSError):
            _write(file, executable.serialize())
        return executable


def _is_known(text: str) -> bool:
    """Whether nothing but the text of a module decides its program."""
    calls = _CALL.findall(text)
    # MLIR may write a call in another form, which has no name after it.
    return len(calls) == text.count("custom_call") and all(name.startswith(_KNOWN_CALLS) for name in calls)


def _threads(client: Any) -> bytes:
    """What decides the number of threads, for which XLA:CPU divides large loops while it compiles."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    named = [os.environ.get(name) for name in ("NPROC", "PJRT_NPROC")]
    return repr((os.cpu_count(), usable, named, client.device_count())).encode()


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _read(file: Path) -> bytes | None:
    """The program in a file; None if there is none, or only a part of one."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    program = content[_DIGEST:]
    return program if content[:_DIGEST] == _digest(program) else None


def _write(file: Path, program: bytes) -> None:
    """Another process may write or read the same file at this moment: it is there whole, or not at all."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        unfinished.write_bytes(_digest(program) + program)
        unfinished.replace(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


@functools.cache
def _compiler_and_machine() -> str:
    """A digest of the libraries of jaxlib and of the processor: another one of either compiles another program."""
    found = importlib.util.find_spec("jaxlib")
    assert found is not None
    assert found.submodule_search_locations
    libraries = sorted(Path(found.submodule_search_locations[0]).rglob("*.so*"))
    facts = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in libraries]
    return _digest(repr(facts).encode(), _processor().encode()).hex()


def _processor() -> str:
    """The processor's model and its instruction sets, as Linux names them."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    # The other lines have its frequency and the like, which change from moment to moment.
    constant = ("model name", "flags", "Features", "CPU ")
    return "\n".join(line for line in first.splitlines() if line.startswith(constant))
