"""Host callbacks for JAX: call Python on the host from jitted, transformed and parallel programs."""

from __future__ import annotations

from . import _pool

# Before anything can start JAX's devices, which fix the number of threads.
_pool.ensure_threads()

from . import _control_flow as _control_flow  # noqa: E402
from . import debug  # noqa: E402
from ._barrier import barrier_wait, stop_outfeed_receiver  # noqa: E402
from ._buffers import buffer_callback  # noqa: E402
from ._dlpack import dlpack_callback  # noqa: E402
from ._external import io_callback, pure_callback  # noqa: E402
from ._failures import CallbackException, TapFunctionException  # noqa: E402
from ._host_callback import call, id_print, id_tap  # noqa: E402
from ._jax_arrays import jax_arrays  # noqa: E402

__version__ = "0.1.0"

__all__ = (
    "CallbackException",
    "TapFunctionException",
    "barrier_wait",
    "buffer_callback",
    "call",
    "debug",
    "dlpack_callback",
    "id_print",
    "id_tap",
    "io_callback",
    "jax_arrays",
    "pure_callback",
    "stop_outfeed_receiver",
)
