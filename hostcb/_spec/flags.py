"""The flags of host_callback and our own, by environment variable, absl flag and `jax.config.update` (H16)."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from absl import flags as absl_flags

from .. import _compat

T = TypeVar("T")

_TRUE = {"1", "true", "t", "yes", "y", "on"}
_FALSE = {"", "0", "false", "f", "no", "n", "off"}


def parse_bool(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(f"{name} must be a truth value such as 1, 0, true or false, got {text!r}.")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # No flag takes it.
        return -1.0


def _parse_size(name: str, text: str) -> int:
    # host_callback's own default was written 256e6, so a float with an integer value is accepted too.
    number = _number(text)
    if number < 0 or not number.is_integer():
        raise ValueError(f"{name} must be a number of bytes, zero or more, got {text!r}.")
    return int(number)


def _parse_interval(name: str, text: str) -> float:
    seconds = _number(text)
    # Python counts in whole microseconds.
    if seconds != 0 and not 1e-6 <= seconds < math.inf:
        raise ValueError(f"{name} must be a number of seconds, at least 0.000001, or 0 for never, got {text!r}.")
    return seconds


def _parse_timeout(name: str, text: str) -> float:
    seconds = _number(text)
    if not seconds >= 0:
        raise ValueError(f"{name} must be a number of seconds, zero or more, or inf for no end, got {text!r}.")
    return seconds


class Flag(Generic[T]):
    """One setting. `jax.config.update` overrides the absl flag, which overrides the environment variable."""

    def __init__(self, name: str, default: T, parse: Callable[[str, str], T], define: Callable[..., Any], text: str):
        self.name = name
        self._parse = parse
        variable = name.upper()
        self._default = parse(variable, os.environ[variable]) if variable in os.environ else default
        self._chosen: T | None = None
        # The last value of the absl flag, unparsed and parsed; every callback reads the flag.
        self._absl_value: Any = None
        self._parsed = self._default
        # Functions to call with each value that `jax.config.update` sets.
        self.listeners: list[Callable[[T], None]] = []
        if name not in absl_flags.FLAGS:
            define(name, self._default, text)
        self._flag = absl_flags.FLAGS[name]
        _compat.register_config_option(name, self)

    def _set(self, value: Any) -> None:
        """Set the value; `jax.config.update` calls this."""
        self._chosen = None if value is None else self._parse(self.name, str(value))
        for listener in self.listeners:
            listener(self.value)

    @property
    def value(self) -> T:
        if self._chosen is not None:
            return self._chosen
        # An absl flag has its default until the command line is parsed.
        absl_value = self._flag.value
        if absl_value is not self._absl_value:
            self._parsed = self._parse(self.name, str(absl_value))
            self._absl_value = absl_value
        return self._parsed


def _switch(name: str, text: str) -> Flag[bool]:
    return Flag(name, False, parse_bool, absl_flags.DEFINE_bool, text)


inline = _switch(
    "jax_host_callback_inline",
    "Outside jit and control flow, run host callbacks in the calling thread and let their exceptions through.",
)
max_queue_byte_size = Flag(
    "jax_host_callback_max_queue_byte_size",
    256_000_000,
    _parse_size,
    functools.partial(absl_flags.DEFINE_integer, lower_bound=0),
    "How many bytes of tapped values may wait for their callbacks on one device before the device waits.",
)
outfeed = _switch(
    "jax_host_callback_outfeed",
    "Accepted for old programs: hostcb needs no outfeed, and what this flag enabled on CPU works there without it.",
)
ad_transforms = _switch(
    "jax_host_callback_ad_transforms",
    "Tap tangents and cotangents too, with 'jvp' and 'transpose' among the transforms.",
)
jax_arrays = _switch(
    "hostcb_jax_arrays",
    "Give pure_callback, io_callback and debug.callback functions jax.Arrays, as JAX's own do, not NumPy arrays.",
)
switch_interval = Flag(
    "hostcb_switch_interval",
    1e-4,
    _parse_interval,
    absl_flags.DEFINE_float,
    "While callbacks wait for the interpreter lock: the seconds after which a thread that computes lets them in. "
    "0 leaves the interval of the process as it is.",
)
exit_timeout = Flag(
    "hostcb_exit_timeout",
    300.0,
    _parse_timeout,
    absl_flags.DEFINE_float,
    "At the end of the process: the seconds after which it gives up if a callback runs, and no callback has begun or "
    "ended meanwhile. 0 gives up at once, inf never.",
)
