"""Host callbacks for JAX: call Python on the host from jitted, transformed and parallel programs."""

from __future__ import annotations

from . import _importing

# Before anything of JAX is used that an old one does not have.
_importing.check()

from . import debug  # noqa: E402
from ._api.annotations import Buffer, ExecutionContext, ExecutionStage  # noqa: E402
from ._api.buffers import buffer_callback  # noqa: E402
from ._api.dlpack import dlpack_callback  # noqa: E402
from ._api.doctor import doctor  # noqa: E402
from ._api.external import io_callback, pure_callback  # noqa: E402
from ._api.host_callback import call, id_print, id_tap  # noqa: E402
from ._api.jax_arrays import jax_arrays  # noqa: E402
from ._api.stats import stats  # noqa: E402
from ._api.trace import trace  # noqa: E402
from ._compat import UnknownJaxError, UnknownJaxWarning  # noqa: E402
from ._compat import registry as _registry  # noqa: E402
from ._errors.callback_exception import CallbackException, TapFunctionException  # noqa: E402
from ._installation import switch as _switch  # noqa: E402
from ._installation.switch import install, installed, uninstall  # noqa: E402
from ._runtime import exiting as _exiting  # noqa: E402, F401
from ._runtime import fork as _fork  # noqa: E402, F401
from ._runtime.executions.barrier import barrier_wait, stop_outfeed_receiver  # noqa: E402
from ._runtime.executions.outstanding import BarrierTimeoutError  # noqa: E402
from ._runtime.observing import spans as _spans  # noqa: E402, F401
from ._version import __version__ as __version__  # noqa: E402
from ._workarounds import control_flow as _control_flow  # noqa: E402, F401
from ._workarounds import functions_without_operands as _functions_without_operands  # noqa: E402, F401

# A traceback names them as a program catches them.
for _error in (BarrierTimeoutError, CallbackException, UnknownJaxError, UnknownJaxWarning):
    _error.__module__ = __name__

_registry.warn_of_losses()
_switch.install_if_asked()
_importing.once.keep()

__all__ = (
    "BarrierTimeoutError",
    "Buffer",
    "CallbackException",
    "ExecutionContext",
    "ExecutionStage",
    "TapFunctionException",
    "UnknownJaxError",
    "UnknownJaxWarning",
    "barrier_wait",
    "buffer_callback",
    "call",
    "debug",
    "dlpack_callback",
    "doctor",
    "id_print",
    "id_tap",
    "install",
    "installed",
    "io_callback",
    "jax_arrays",
    "pure_callback",
    "stats",
    "stop_outfeed_receiver",
    "trace",
    "uninstall",
)
