"""Compiled programs that are kept from run to run, for `run --compiled DIR` on CPU.

XLA:CPU makes the same program of the same module and the same options. Its compiler is most of the time of a run with a
new JAX, and programs of different cells are often equal. A kept program is loaded with the callbacks of the cell that
asks for it: it has none of its own.

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
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..spec.depths import Depth
from ..spec.versions import version_matches

FOLDER = "HOSTCB_CONFORMANCE_COMPILED"
"""The environment variable by which the workers know the folder."""

WITH = ">=0.12"
"""The versions of jaxlib. With 0.10.2 a process that keeps a program of several devices ends with SIGSEGV."""

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
        file = self._folder / _name(module, devices, options, callbacks)
        if (program := _read(file)) is not None:
            with contextlib.suppress(RuntimeError):
                return client.deserialize_executable(program, devices, options, *([callbacks] if callbacks else []))
        executable = plain(client, module, devices, options, callbacks)
        # A program that cannot be kept, and a full disk, are no failures of the cell.
        with contextlib.suppress(RuntimeError, OSError):
            _write(file, executable.serialize())
        return executable


def _name(module: Any, devices: Any, options: Any, callbacks: Sequence[Any]) -> str:
    """The name of a program's file: a digest of everything that decides what is compiled."""
    # The text has no locations. They are in the names of operations alone, and would differ from cell to cell.
    parts = (str(module).encode(), options.SerializeAsString(), repr([device.id for device in devices]).encode())
    return _digest(*parts, str(len(callbacks)).encode()).hex()


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
    except FileNotFoundError:
        return None
    program = content[_DIGEST:]
    return program if content[:_DIGEST] == _digest(program) else None


def _write(file: Path, program: bytes) -> None:
    """Another process may write or read the same file at this moment: it is there whole, or not at all."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
    unfinished.write_bytes(_digest(program) + program)
    unfinished.replace(file)


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
