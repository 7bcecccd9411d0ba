"""Taps of CUDA devices in C: off unless the environment asks for it, since one model of GPU alone has run it (H26).

Nothing fails open: where it is asked for and cannot be used, taps go through Python, and `hostcb.doctor` says why.
"""

from __future__ import annotations

import os
from typing import Any

import jax

from .. import _compat
from .._spec.flags import parse_bool
from .library import library

VARIABLE = "HOSTCB_NATIVE_CUDA"

# The target of a tap's custom call, and the platform's name in XLA's registry.
TARGET = "hostcb_cuda_tap"
PLATFORM = "CUDA"
_SITE_TYPE = "hostcb_cuda_site"


class Cuda:
    """Whether programs for CUDA may use the target."""

    def __init__(self) -> None:
        # Why taps go through Python; None if they do not.
        self.problem: str | None = None
        self.asked_for = parse_bool(VARIABLE, os.environ.get(VARIABLE, "0"))
        self._registered = False
        if not self.asked_for:
            self.problem = f"one model of GPU alone has run it; {VARIABLE}=1 turns it on"
        elif library.problem is not None:
            self.problem = f"the library in C is not in use: {library.problem}"

    def is_ready(self) -> bool:
        """Whether programs that are lowered now may use the target; registers it the first time."""
        if self.problem is not None or self._registered:
            return self.problem is None
        if not _compat.backends_exist():
            return False
        handler = _compat.cuda_python_handler()
        if handler is None:
            self.problem = "no plugin of JAX for CUDA gives its handler of Python callbacks"
            return False
        library.held.hostcb_cuda_set_python_handler(handler)
        try:
            self.register(PLATFORM, library.held.hostcb_cuda_tap)
            self._registered = True
        except Exception as error:
            self.problem = f"JAX refuses it: {error}"
        return self._registered

    def register(self, platform: str, handler: Any) -> None:
        capsule, held = jax.ffi.pycapsule, library.held
        # The CPU's runtime and the plugin of CUDA number their types by themselves.
        site: Any = {"type_id": capsule(held.hostcb_cuda_site_type()), "type_info": capsule(held.hostcb_site_info())}
        jax.ffi.register_ffi_type(_SITE_TYPE, site, platform=platform)
        stages = {"instantiate": capsule(held.hostcb_cuda_instantiate), "execute": capsule(handler)}
        jax.ffi.register_ffi_target(TARGET, stages, platform=platform)

    def device(self) -> Any:
        """Return the device for which this thread runs the handler of a tap in Python."""
        ordinal = library.held.hostcb_cuda_ordinal()
        found = [device for device in jax.local_devices(backend="cuda") if device.local_hardware_id == ordinal]
        if len(found) != 1:
            raise RuntimeError(
                f"hostcb: the runtime taps on its device {ordinal}, and JAX has {len(found)} devices of this number. "
                f"{VARIABLE}=0 in the environment hands values over in Python."
            )
        return found[0]

    def state(self) -> str:
        """A text of the state, for `hostcb.doctor`."""
        if self.problem is None:
            self.is_ready()
        if self.problem is not None:
            return f"taps are handed over in Python; taps in C are off: {self.problem}"
        return "taps are handed over in C, which one model of GPU alone has run"


cuda = Cuda()
