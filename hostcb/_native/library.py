"""The compiled library: found, checked, loaded, and registered with the runtime (H24).

Nothing fails open. If the library is not there, is of another version, or the runtime refuses it, taps go through
Python, and `hostcb.doctor` says why. `HOSTCB_NATIVE=0` turns the library off.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from .. import _compat
from .._spec.flags import parse_bool
from .._version import __version__

VARIABLE = "HOSTCB_NATIVE"
# All files in C that the library is made of, the headers too.
SOURCES = tuple(sorted(Path(__file__).parent.glob("*.[ch]")))
LIBRARY = Path(__file__).with_name("handover.so")

# The target of a tap's custom call, which may end with the index of its handler in Python, and the runtime's target of
# Python callbacks, which `hostcb_tap` passes calls to.
TARGET = "hostcb_tap"
PYTHON_TARGET = "xla_buffer_python_cpu_callback"
_SITE_TYPE = "hostcb_site"

_POSITION, _ADDRESS, _COUNT = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64
# What Python calls: the types of results and arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "hostcb_build": (ctypes.c_char_p,),
    "hostcb_site_type": (_ADDRESS,),
    "hostcb_site_info": (_ADDRESS,),
    "hostcb_numbered_tap": (_ADDRESS, ctypes.c_uint64),
    "hostcb_set_python_handler": (None, _ADDRESS),
    "hostcb_all_through_python": (None, ctypes.c_int32),
    "hostcb_ring": (_ADDRESS, _POSITION, ctypes.POINTER(_ADDRESS)),
    "hostcb_is_unbound": (ctypes.c_int,),
    "hostcb_bind": (ctypes.c_int, _ADDRESS, _POSITION, _ADDRESS, _POSITION, _COUNT, ctypes.POINTER(ctypes.c_uint64)),
    "hostcb_attend": (None, _ADDRESS, ctypes.c_int),
    "hostcb_read": (_COUNT, _ADDRESS, _POSITION, ctypes.POINTER(ctypes.c_uint64), _COUNT),
    "hostcb_done": (None, _ADDRESS, _POSITION),
    "hostcb_share": (ctypes.c_int, _ADDRESS, _POSITION, _POSITION, ctypes.c_uint64, _ADDRESS),
    "hostcb_own": (ctypes.c_int, _ADDRESS, ctypes.c_uint64),
    "hostcb_release": (None, _ADDRESS),
    "hostcb_mapped": (ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)),
    "hostcb_trim": (None, _ADDRESS),
    "hostcb_hold_ended_threads": (None, _ADDRESS),
    "hostcb_wake": (None, _ADDRESS),
    "hostcb_forked": (None, _ADDRESS),
}
# What Python calls without the interpreter lock.
_FREE_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "hostcb_sleep": (_POSITION, _ADDRESS, _POSITION, _COUNT),
    "hostcb_settle": (None, _ADDRESS),
    "hostcb_copy": (None, _ADDRESS, _ADDRESS, ctypes.c_uint64),
}


def build_of(sources: Iterable[Path]) -> str:
    """The mark of a library that was compiled from these files for this version of hostcb."""
    source = b"".join(path.read_bytes() for path in sources)
    return f"{__version__} {hashlib.sha256(source).hexdigest()[:16]}"


def _with_types(loaded: Any, functions: dict[str, tuple[Any, ...]]) -> Any:
    for name, (result, *arguments) in functions.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Library:
    """The library, and whether it is in use."""

    def __init__(self) -> None:
        self.held: Any = None
        self.free: Any = None
        # Why taps go through Python; None if they do not.
        self.problem: str | None = None
        self._registered = False
        # The targets of taps by the index of their handler in Python.
        self._targets: dict[int, str | None] = {}
        try:
            self._load()
        except (OSError, AttributeError) as error:
            self.problem = f"it cannot be loaded: {error}"
        if self.problem is not None:
            self.held = self.free = None

    def _load(self) -> None:
        if not parse_bool(VARIABLE, os.environ.get(VARIABLE, "1")):
            self.problem = f"{VARIABLE} turns it off"
            return
        if not LIBRARY.exists():
            self.problem = "it was not built; that needs a C compiler, and `pip install -v` says what is missing"
            return
        if _compat.python_handler(PYTHON_TARGET) is None:
            self.problem = "this JAX does not give the handler of Python callbacks"
            return
        held = _with_types(ctypes.PyDLL(str(LIBRARY)), _FUNCTIONS)
        build, wanted = held.hostcb_build().decode(), build_of(SOURCES)
        if build != wanted:
            self.problem = f"it was built for hostcb {build}, and this is {wanted}: install hostcb anew"
            return
        free = _with_types(ctypes.CDLL(str(LIBRARY)), _FREE_FUNCTIONS)
        held.hostcb_set_python_handler(_compat.python_handler(PYTHON_TARGET))
        self.held, self.free = held, free

    def is_ready(self) -> bool:
        """Whether programs that are lowered now may use the target; registers it the first time.

        Only after JAX has made its CPU client does a refusal raise here; before, it would keep that client from
        starting.
        """
        if self.problem is not None or self._registered:
            return self.problem is None
        if not _compat.backends_exist():
            return False
        try:
            self._register()
            self._registered = True
        except Exception as error:
            self.problem = f"JAX refuses it: {error}"
        return self._registered

    def _register(self) -> None:
        capsule, held = jax.ffi.pycapsule, self.held
        site: Any = {"type_id": capsule(held.hostcb_site_type()), "type_info": capsule(held.hostcb_site_info())}
        jax.ffi.register_ffi_type(_SITE_TYPE, site, platform="cpu")
        self._register_target(TARGET, held.hostcb_tap)

    def _register_target(self, name: str, handler: Any) -> None:
        capsule = jax.ffi.pycapsule
        stages = {"instantiate": capsule(self.held.hostcb_instantiate), "execute": capsule(handler)}
        jax.ffi.register_ffi_target(name, stages, platform="cpu")

    def numbered_target(self, index: int) -> str | None:
        """Return the target of the taps with this handler in Python; None if such taps have `TARGET` and an attribute.

        XLA takes longer to compile an operation with an attribute.
        """
        try:
            return self._targets[index]
        except KeyError:
            handler = self.held.hostcb_numbered_tap(index)
            target = None if handler is None else f"{TARGET}_{index}"
            if target is not None:
                # Several threads may do this at once: JAX accepts the same handler again.
                self._register_target(target, ctypes.c_void_p(handler))
            self._targets[index] = target
            return target

    def constant(self, name: str, without_extension: int) -> int:
        """Return a number that the files in C export; Python's own is for use without the extension."""
        return without_extension if self.held is None else ctypes.c_uint64.in_dll(self.held, f"hostcb_{name}").value

    def all_through_python(self, yes: bool) -> None:
        """Send all taps through Python, or no longer."""
        if self.held is not None:
            self.held.hostcb_all_through_python(yes)

    def hold_ended_threads(self) -> None:
        """From now on, let a thread that C++ terminates stay where it is, but not this one, which ends the process.

        Up to Python 3.13, a thread that asks for the interpreter lock while the interpreter is finalized is unwound.
        jaxlib has functions that may not be unwound, and the C++ library then aborts the process.
        """
        if self.held is None:
            return
        with contextlib.suppress(OSError, AttributeError):
            # glibc unwinds such a thread, and this is the C++ library of jaxlib there.
            set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
            self.held.hostcb_hold_ended_threads(ctypes.cast(set_terminate, ctypes.c_void_p))

    def state(self) -> str:
        """A text of the state, for `hostcb.doctor`."""
        if self.problem is None:
            self.is_ready()
        if self.problem is not None:
            return f"not in use, so taps are queued in Python and wait for the interpreter lock: {self.problem}"
        return "in use; taps are queued in C, without the interpreter lock"


library = Library()

# Larger operands are in blocks of their own.
MOST_INSIDE = library.constant("most_inside", 1 << 16)
