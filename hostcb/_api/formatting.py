"""Format the text of `debug.print`, and check its format string while tracing (X4)."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _compat
from .._primitive.binding import value_of
from .._spec.naming import shown, shows_tracer
from .._spec.options import nearest, no_option
from .printing import write

# The repr of a larger array shows only its shape, as that of a jax.Array.
MOST_BYTES_IN_REPR = 1 << 20


_NO_F_STRING = (
    'Was an f-string passed? Values are not known yet: write debug.print("{x}", x=x) rather than debug.print(f"{x}").'
)


_OPTIONS = ("ordered", "partitioned", "skip_format_check")


class MissingPositionError(ValueError, IndexError):
    """The format string asks for a positional argument that was not given."""


class MissingNameError(ValueError, KeyError):
    """The format string asks for a keyword argument that was not given."""

    __str__ = ValueError.__str__


# A traceback names the module, and this one is private.
for _error in (MissingPositionError, MissingNameError):
    _error.__module__ = "hostcb.debug"


class FormatChecker(string.Formatter):
    """Checks a format string by formatting stand-ins for the values, which are not known yet."""

    # 1 in the text, 2 in a specification.
    _depth = 0

    def check(self, text: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            self.vformat(text, args, kwargs)
        except (MissingPositionError, MissingNameError) as error:
            # Without the frames of Python's formatter.
            raise type(error)(f"debug.print: the format string {text!r} {error}") from None

    def parse(self, text: Any) -> Iterator[Any]:
        self._depth += 1
        yield from super().parse(text)
        self._depth -= 1

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if isinstance(key, int):
            if key >= len(args):
                raise MissingPositionError(f"asks for {key + 1} or more positional arguments, but got {len(args)}.")
            return args[key]
        if key not in kwargs:
            given = f"the keyword arguments are {', '.join(map(repr, kwargs))}" if kwargs else "got no keyword argument"
            raise MissingNameError(f"asks for {key!r}, but {given}.")
        return kwargs[key]

    def format_field(self, value: Any, format_spec: str) -> str:
        # Formatting a whole array is slow, and without a specification it cannot fail. A specification needs the text.
        return str(super().format_field(value, format_spec)) if format_spec or self._depth > 1 else ""

    def check_unused_args(self, used_args: set[int | str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        positions = [position for position in range(len(args)) if position not in used_args]
        names = [name for name in kwargs if name not in used_args]
        if positions:
            raise ValueError(
                f"Unused positional arguments to `debug.print`: numbers {positions}. Write {{}} where each is to be "
                'printed: debug.print("x is {}", x).'
            )
        if names:
            meant = nearest(names[0], _OPTIONS)
            # A string that has a field is no f-string.
            asked = (
                f" {no_option('debug.print', names[0], meant)}" if meant else "" if used_args else f" {_NO_F_STRING}"
            )
            raise ValueError(f"Unused keyword arguments to `debug.print`: {names}.{asked}")


def check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"debug.print: the format must be a string, got {shown(text)} of {type(text)}.")


def check_format(text: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a format string that does not match its arguments.

    Raises:
        TypeError: `text` is no string.
        ValueError: the string is malformed or has the text of a traced value, an argument is missing (then also an
            `IndexError` or `KeyError`) or unused, or a specification does not fit its value.
    """
    check_text(text)
    if shows_tracer(text):
        raise ValueError(f"debug.print: the format string {text!r} has the text of a traced value. {_NO_F_STRING}")
    for leaf in jax.tree_util.tree_leaves((args, kwargs)):
        if isinstance(leaf, str) and shows_tracer(leaf):
            raise ValueError(f"debug.print: the argument {leaf!r} has the text of a traced value. {_NO_F_STRING}")
    stand_ins, names = jax.tree_util.tree_map(_stand_in, (args, kwargs))
    try:
        FormatChecker().check(text, stand_ins, names)
    except (MissingPositionError, MissingNameError):
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(f"debug.print: the format string {text!r} does not match its arguments: {error}") from None


def _stand_in(leaf: Any) -> Any:
    """Return an array of the leaf's shape and dtype that takes no memory.

    Of ones, since every number may have the width 1 and the precision 1. A complex number may not have the width 0.
    """
    try:
        # `jax.typeof` refuses a part of a mutable array, but that part has a shape and a dtype.
        value = value_of(leaf)
        aval = value if _compat.is_ref(value) else jax.typeof(value)
    except Exception:
        # The leaf is no JAX value, or a number that fits no JAX type, or reading its attributes raises.
        return leaf
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        # A typed PRNG key prints as its words.
        return np.ones((*aval.shape, *_compat.key_data_shape(aval.dtype)), np.uint32)
    return np.broadcast_to(np.ones((), aval.dtype), aval.shape)


@dataclasses.dataclass(frozen=True)
class FormatPrinter:
    """The function behind `debug.print`; printers with equal fields are equal, so printing twice compiles once."""

    text: str
    # NumPy's print options at tracing time.
    print_options: tuple[tuple[str, Any], ...]

    @property
    def __name__(self) -> str:
        return repr(self.text)

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        # One write, as JAX's: a stream of the program's own may count them.
        write(self.line(args, kwargs) + "\n")

    def line(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        args, kwargs = jax.tree_util.tree_map(_shown, (args, kwargs))
        if not (args or kwargs) or any(field is not None for field in self.fields()):
            return self.formatted(args, kwargs)
        # Possible only with skip_format_check: the values follow the text, as Pallas prints them.
        with np.printoptions(**dict(self.print_options)):
            return " ".join((self.text, *map(str, args), *(f"{key}={value}" for key, value in kwargs.items())))

    def formatted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        with np.printoptions(**dict(self.print_options)):
            return self.text.format(*args, **kwargs)

    def fields(self) -> list[str | None]:
        return [field for _, field, _, _ in string.Formatter().parse(self.text)]


class _Shown(np.ndarray):
    """An array with the repr of a `jax.Array`, for arrays inside containers."""

    def __repr__(self) -> str:
        dtype = f"dtype={self.dtype.name}"
        if self.size == 0:
            return f"Array([], shape={self.shape}, {dtype})"
        if self.nbytes >= MOST_BYTES_IN_REPR:
            return f"Array(shape={self.shape}, {dtype})"
        width = np.get_printoptions()["linewidth"]
        values = np.array2string(
            self.view(np.ndarray), prefix="Array(", suffix=",", separator=", ", max_line_width=width
        )
        last_line = len(values) - values.rfind("\n") + 1
        separator = " " if last_line + len(dtype) + 2 <= width else " " * len("Array(")
        return f"Array({values},{separator}{dtype})"


def _shown(leaf: Any) -> Any:
    return leaf.view(_Shown) if type(leaf) is np.ndarray else leaf
