"""Give user functions `jax.Array`s, as JAX's own callbacks do, rather than NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import _compat
from .._errors.frames import leave_out_frames
from .._spec import flags
from .._spec.naming import check_callable

if TYPE_CHECKING:
    from .type_hints import P, R


def jax_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` for calls with `jax.Array`s on a CPU device in place of NumPy arrays.

    Converting costs more than the call, so a callback gets NumPy arrays by default. For code that was written for
    JAX's own callbacks, `jax.config.update("hostcb_jax_arrays", True)` (or `HOSTCB_JAX_ARRAYS=1` in the environment)
    asks for all `pure_callback`s, `io_callback`s and `debug.callback`s that are traced from then on.

    Args:
        function: any callback.

    Returns:
        A callback that converts its arrays and calls `function`. JAX operations in it run on the CPU device.

    Raises:
        TypeError: `function` is not callable, or is a generator or coroutine function.
        RuntimeError: when the result is called, if there is no CPU device; JAX_PLATFORMS must list `cpu`.

    Example:
        >>> import hostcb, jax
        >>> ones = jax.numpy.ones(2)
        >>> print(hostcb.pure_callback(hostcb.jax_arrays(lambda x: x.at[0].set(7)), ones, ones))
        [7. 1.]
    """
    try:
        check_callable(function, "jax_arrays", "function")
    except Exception as error:
        leave_out_frames(error)
        raise
    return function if isinstance(function, JaxArrays) else JaxArrays(function)


@dataclasses.dataclass(frozen=True)
class JaxArrays:
    """Calls `function` with `jax.Array`s; equal functions give equal objects, so using one twice compiles once."""

    function: Callable[..., Any]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        cpu = jax.local_devices(backend="cpu")[0]
        with jax.default_device(cpu):
            if not kwargs and all(type(arg) is np.ndarray for arg in args):
                return self.function(*[self.converted(arg, cpu) for arg in args])
            args, kwargs = jax.tree_util.tree_map(
                lambda leaf: self.converted(leaf, cpu) if isinstance(leaf, np.ndarray) else leaf, (args, kwargs)
            )
            return self.function(*args, **kwargs)

    def converted(self, array: np.ndarray, device: jax.Device) -> Any:
        """Return the `jax.Array` of an operand."""
        return _compat.to_jax_array(array, device)


def as_asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `jax_arrays(function)` if the option `hostcb_jax_arrays` is set, or else `function`."""
    return jax_arrays(function) if flags.jax_arrays.value else function
