"""Host callbacks for JAX: call Python on the host from jitted, transformed and parallel programs."""

from __future__ import annotations

from . import _pool

# Before anything can start JAX's devices, which fix the number of threads.
_pool.ensure_threads()

from . import _while as _while  # noqa: E402
from ._barrier import barrier_wait, stop_outfeed_receiver  # noqa: E402
from ._failures import CallbackException, TapFunctionException  # noqa: E402
from ._host_callback import call, id_print, id_tap  # noqa: E402

__version__ = "0.1.0"

__all__ = (
    "CallbackException",
    "TapFunctionException",
    "barrier_wait",
    "call",
    "id_print",
    "id_tap",
    "stop_outfeed_receiver",
)
