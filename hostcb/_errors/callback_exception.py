"""What a barrier raises: the exception, and each failure in it; both can be pickled and copied (H13)."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from .._spec.naming import class_name


@dataclasses.dataclass(frozen=True)
class Failure:
    """One failed call of a user function: the callback's name, its device, the exception and the traceback's text.

    `kind` is the public name of the function that made the callback, `headline` says in one line what failed and why,
    and `ended` whether the computation has ended with this failure. `raised` says that the program has got the error of
    that computation.
    """

    callback: str
    device: Any
    exception: BaseException
    text: str
    kind: str = ""
    headline: str = ""
    ended: bool = False
    raised: bool = False
    # Whether hostcb has raised that error itself. JAX makes others of a text, which does not say whose failure it is.
    raised_here: bool = dataclasses.field(default=False, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        device = self.device if _survives_pickle(self.device) else str(self.device)
        exception = _portable(self.exception)
        return Failure, (self.callback, device, exception, self.text, self.kind, self.headline, self.ended, self.raised)


class CallbackException(Exception):  # noqa: N818 - host_callback's name
    """Some callbacks failed since the last barrier.

    Raised by `hostcb.barrier_wait`. `__cause__` is the last failure's exception; `failures` holds all of them in the
    order in which they happened, each with `kind`, `callback`, `device`, `exception`, `text`, `headline`, `ended`
    and `raised` (H13).
    """

    def __init__(self, message: str, failures: tuple[Failure, ...] = ()):
        super().__init__(message)
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle drops causes, and fails if a failure holds an object that cannot be pickled.
        failures = tuple(Failure(*each.__reduce__()[1]) for each in self.failures)
        is_last = bool(failures) and self.__cause__ is self.failures[-1].exception
        cause = self.__cause__
        if cause is not None:
            cause = failures[-1].exception if is_last else _portable(cause)
        notes = [note for note in getattr(self, "__notes__", ()) if isinstance(note, str)]
        return _restored, (type(self), str(self), failures, cause, notes)

    def __copy__(self) -> CallbackException:
        notes = getattr(self, "__notes__", ())
        return _restored(type(self), str(self), self.failures, self.__cause__, notes)

    def __deepcopy__(self, memory: Any) -> CallbackException:
        # The failures are immutable.
        return self.__copy__()


def _restored(
    cls: type[CallbackException],
    message: str,
    failures: tuple[Failure, ...],
    cause: BaseException | None,
    notes: Sequence[str],
) -> CallbackException:
    error = cls(message, failures)
    error.__cause__ = cause
    for note in notes:
        error.add_note(note)
    return error


def _survives_pickle(value: Any) -> bool:
    try:
        # Safe: this process pickled the value one call ago.
        return type(pickle.loads(pickle.dumps(value))) is type(value)  # noqa: S301
    except KeyboardInterrupt:
        raise
    except BaseException:
        # The value's own methods may raise any exception.
        return False


def _portable(exception: BaseException) -> BaseException:
    """Return the exception if pickle can restore it, or else an `Exception` with its text."""
    if _survives_pickle(exception):
        return exception
    return Exception(only_text(exception))


def only_text(exception: BaseException) -> str:
    """Return the class and the text of an exception, without its traceback."""
    try:
        return "".join(traceback.format_exception_only(exception)).strip()
    except Exception:
        return class_name(exception)


# host_callback renamed its exception and kept the old name as an alias.
TapFunctionException = CallbackException
