"""The errors of calls without a valid result, which end their computations (H3, H15).

Under jit over a mesh other devices receive the result too. For these a mark crosses in place of a failed result, which
their error calls `int8[12345]` as host_callback did, and they refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .._spec.callback import HostCallback
from .._spec.naming import class_name
from .headlines import abstract, headline, say


class HostcbCallbackError(Exception):
    """A call has no valid result, so its computation ends.

    The runtime makes a text of the exception. The name of this class in it tells where hostcb's words begin.
    """


def own_words(text: str) -> str | None:
    """Return hostcb's words in the text of a runtime's error; None if the error is not of a callback of hostcb.

    Before them come the runtime's status, its name for the transport, and frames of hostcb.
    """
    _, found, own = text.partition(f"{HostcbCallbackError.__name__}: ")
    return own if found else None


# The phrases of error texts for what happened in place of a valid result.
MARK = " (int8[12345] stands for it on the other devices)"
FAILED = "but the callback failed"
MISMATCHED = "but the callback returned something else"
IN_PLACE_OF = " in place of "
RETURNED = "written into `out`, but the callback returned something"


def mismatched(text: str, did: str, advice: str | None = None) -> TypeError:
    """Return the error for a result that does not match: a plain `TypeError`, for `what_came` to recognise.

    `did` is what the function did, for the first line of the error's report; `advice` is for its last line.
    """
    error = TypeError(text)
    error._hostcb_came = MISMATCHED  # type: ignore[attr-defined]
    say(error, did)
    if advice is not None:
        error.add_note(advice)
    return error


def returned_something(callback: HostCallback) -> ValueError:
    """Return the error for an in-place function that returned a value."""
    error = ValueError(
        f"{callback.kind.name} callback must not return any values, but {callback.name} did. Write into the buffers "
        "that it is given as `out`."
    )
    error._hostcb_came = RETURNED  # type: ignore[attr-defined]
    say(error, "returned something in place of writing into `out`")
    return error


def what_came(failure: BaseException | None) -> str:
    """Return the phrase that says what a failed callback did."""
    try:
        return (
            str(vars(failure).get("_hostcb_came", FAILED)) if isinstance(failure, (TypeError, ValueError)) else FAILED
        )
    except Exception:
        # The user's class may let any access to its attributes raise.
        return FAILED


def refusal(
    callback: HostCallback,
    avals: Sequence[Any],
    device: Any,
    failure: BaseException | None,
    reason: str,
    marked: bool,
) -> str:
    """Return the error text for a computation that a failed call ended.

    Args:
        callback: the callback that failed.
        avals: the expected results.
        device: the device that called, or None if it is not known.
        failure: the exception, or None if another process has it.
        reason: its traceback.
        marked: whether the mark of a failed call came in place of the results.
    """
    # A callback without a result sends no mark, so the text names the failure itself.
    came = what_came(failure) + (MARK if marked else "")
    first = headline(callback.kind.name, callback.name, device, failure)
    expected = show(callback, avals)
    is_mismatched = failure is not None and is_mismatch(failure)
    if callback.result_tree is None:
        ended = "The computation has ended, because the callback failed."
    elif is_mismatched and not marked and f"{IN_PLACE_OF}{expected}" in first:
        ended = "The computation has ended."
    else:
        ended = f"The computation has ended: expected {expected}, {came}."
    if is_mismatched:
        asked = "result_shape" if callback.kind.one_argument else "result_shape_dtypes"
        ended += f" Correct the callback, or {asked} if it is right as it is."
        if callback.batched_by is not None:
            ended += (
                f" vmap_method={callback.batched_by!r} passes a whole batch to the callback: its results need the "
                "batch's axis in front. 'sequential' calls it for each element."
            )
    elif callback.batched_by is not None:
        ended += (
            f" vmap passes a whole batch to the callback ({callback.batched_by!r}): its arguments have the batch's "
            "axis in front. 'sequential' calls it for each element."
        )
    # The reason ends with the advice, if there is any.
    return f"{first}\n{ended}\n{reason.strip()}"


def is_hostcbs(failure: BaseException) -> bool:
    """Return whether hostcb has made the exception, for a function that has returned what is refused."""
    return what_came(failure) != FAILED


def is_mismatch(failure: BaseException) -> bool:
    """Return whether a callback has failed because its result does not match."""
    return what_came(failure) == MISMATCHED


def show(callback: HostCallback, avals: Sequence[Any]) -> str:
    """Format the expected abstract values in the tree that the callback should return."""
    if callback.result_tree is None:
        return "no result"
    return in_containers(callback.result_tree, avals)


def in_containers(tree: Any, values: Sequence[Any]) -> str:
    """Format the abstract values of the leaves of a tree in its containers."""
    texts = [abstract(value) for value in values]
    try:
        return repr(jax.tree_util.tree_unflatten(tree, list(map(Shown, texts))))
    except Exception:
        # A container of the user's may read the shape of a leaf where it is made, or where it is shown.
        return f"{text_of(tree)} of {', '.join(texts)}"


def text_of(tree: Any) -> str:
    """Format a tree without its leaves."""
    try:
        return str(tree)
    except Exception as error:
        # The static data of a container of the user's may not be shown either.
        return f"a tree, whose repr raises {class_name(error)},"


def instead(returned: Any, expected: str) -> str:
    """Describe a returned value by the shapes and dtypes of its leaves, beside the expected ones."""
    try:
        seen = repr(jax.tree_util.tree_map(lambda leaf: Shown(abstract(leaf)), returned))
    except Exception:
        # A container of the user's may not be rebuilt with other leaves.
        seen = type(returned).__qualname__
    return f"returned {seen}{IN_PLACE_OF}{expected}"


class Shown:
    """A leaf whose repr is its abstract value."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text
