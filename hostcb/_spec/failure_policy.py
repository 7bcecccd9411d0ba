"""What happens after a callback without a result has failed: the policies of `on_error` (H14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from .kinds import Kind
from .naming import shown, subject

# The computation goes on, and the failure is logged. In addition: the next barrier raises it; the next dispatch of a
# program raises it, or else a barrier; nothing raises it.
OnError: TypeAlias = Literal["barrier", "next_dispatch", "log"]


def check_policy(kind: Kind, function: Callable[..., Any], on_error: Any) -> None:
    """Refuse what is no policy.

    Raises:
        ValueError: `on_error` is none of the policies.
    """
    if not (isinstance(on_error, str) and on_error in get_args(OnError)):
        raise ValueError(
            f"{subject(kind.name, function)}: on_error must be one of {', '.join(map(repr, get_args(OnError)))}, got "
            f"{shown(on_error)}."
        )
