"""`trace`: a record of all callbacks of a program, for Perfetto (H22)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from .._errors.frames import leave_out_frames
from .._runtime.executions.barrier import wait_for_callbacks
from .._runtime.observing import recording
from .._spec.naming import shown
from .._threads.running import inside_callback


def trace(path: str | os.PathLike[str], *, values: bool = False) -> contextlib.AbstractContextManager[None]:
    """Record every callback of hostcb that runs in a `with` block, in a file for https://ui.perfetto.dev.

    The file has a track for each device, and for callbacks whose device is not known, for each thread. Each run of a
    user function is a slice with its function, the kind of callback, the jitted program, the operands' shapes and
    dtypes, the thread and, if it failed, the error. An arrow leads from where the device handed the value of an
    `id_tap` or `id_print` over to where its function ran. Programs that were compiled before are recorded as well.

    The block ends when all callbacks of the programs that it started have run, as at a `barrier_wait`; failures stay
    for the next `barrier_wait`. Wait for the results of pure callbacks yourself. The file is complete even if the block
    raises. Traces may be nested or overlap in several threads: each records everything.

    Args:
        path: the file, which is replaced. Its events are written while the block runs, some hundreds at a time, so a
            long trace takes disk space, and memory only for its tracks: a few hundred bytes for each device and each
            thread that it has seen.
        values: also record the values of operands, as short texts. Those of buffer and DLPack callbacks stay out.

    Returns:
        A context manager. A function that it decorates is recorded each time that it is called.

    Raises:
        TypeError: `path` is no path.
        OSError: when the block begins, if the file cannot be written; when it ends, if that became impossible, for
            example because the disk is full. The callbacks run all the same.
        ValueError: when the block begins, if a trace that is on writes the same file.
        RuntimeError: when the block begins, if that is inside a callback. Its end would wait for that callback.

    Follows H22. Example:

        >>> import hostcb as hcb, jax, json, os, tempfile
        >>> @jax.jit
        ... def double(x):
        ...     return hcb.id_tap(lambda value, transforms: None, 2 * x)
        >>> file = os.path.join(tempfile.mkdtemp(), "trace.json")
        >>> with hcb.trace(file):
        ...     y = double(3.0)
        >>> [run] = [event for event in json.load(open(file)) if event.get("cat") == "id_tap"]
        >>> run["args"]["program"], run["args"]["operands"]
        ('jit_double', ['float32[]'])
    """
    try:
        file = _file(path)
    except TypeError as error:
        leave_out_frames(error)
        raise
    return _recorded(file, bool(values))


def _file(path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TypeError(f"hostcb.trace: path must be a string or a path, got {shown(path)} of {type(path)}.") from None


@contextlib.contextmanager
def _recorded(file: str, values: bool) -> Iterator[None]:
    if inside_callback():
        raise RuntimeError(
            f"hostcb.trace({shown(file)}) began inside a callback: its end would wait for this callback to end. Begin "
            "it around the program that calls back."
        )
    recorder = recording.begin(file, values)
    try:
        try:
            yield
        finally:
            _finish(recorder)
    except BaseException as exception:
        if recorder.file.error is not None:
            exception.add_note(_incomplete(recorder))
        raise
    if recorder.file.error is not None:
        raise OSError(recorder.file.error.errno, _incomplete(recorder)) from recorder.file.error


def _finish(recorder: recording.Recorder) -> None:
    try:
        if not inside_callback():
            wait_for_callbacks("trace")
    finally:
        recording.end(recorder)


def _incomplete(recorder: recording.Recorder) -> str:
    file = recorder.file
    return f"hostcb.trace: {shown(file.path)} lacks events, because it could not be written: {file.error}"
