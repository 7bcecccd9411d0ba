"""Transports that give the handler views of device memory: on CPU for all callbacks, on GPU for in-place ones.

Nearly every callback takes this transport, and most of its cost arises here. So lowering works out all that it can, and
the usual signatures have handlers of their own, without a branch that they do not need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _compat
from .._compat import extend
from .._errors.forgetting import forget_locals
from .._errors.refusals import returned_something
from .._native.library import PYTHON_TARGET, TARGET, library
from .._runtime.dispatch.postponed import clear, has_failed, postpone, skip
from .._runtime.host import Host
from .._runtime.memory.blocks import LEAST_BYTES, LEAST_QUEUED_BYTES, blocks
from .._runtime.memory.owners import Shape
from .._runtime.memory.pages import LEAST_IN_LARGE_PAGES, advise
from .._runtime.observing import observers
from .._runtime.queue.queues import queues
from .._runtime.queue.sites import Site, SiteKeeper, is_small, suits
from .._spec.shapes import size_of
from .._threads.running import called_by_runtime, running, runs_callbacks
from .._threads.switching import switch_interval
from .crossing import Crossing
from .custom_calls import custom_call
from .transports import Emitted, Equation, split_token, with_token
from .wire import unchanged

Handler = Callable[..., None]
Devices = Mapping[int, Any]


def views(equation: Equation, devices: Devices, sharding: Any) -> Emitted:
    """CPU, on one device or on each shard of a mesh: the handler gets views of the device's memory."""
    crossing = equation.crossing
    in_extension = _uses_extension(crossing, equation.context.module_context)
    if crossing.handler is None:
        crossing.handler = _extension_tap(crossing, devices) if in_extension else _handler(crossing, devices)
    results = custom_call(
        equation.context,
        TARGET if in_extension else PYTHON_TARGET,
        crossing.handler,
        with_token(equation, equation.operands, equation.token),
        with_token(equation, crossing.operand_avals, _compat.abstract_token),
        with_token(equation, crossing.result_avals, _compat.abstract_token),
        sharding,
        side_effect=not crossing.host.callback.kind.pure,
        numbered=library.numbered_target if in_extension else None,
    )
    return split_token(equation, results)


# The runtime calls a handler with its context, the operand buffers and the result buffers. A token is the first operand
# and the first result. `buffer.__array__()` gives the same view as `np.asarray`, at a quarter of its cost.


def _handler(crossing: Crossing, devices: Devices) -> Handler:
    host, kind = crossing.host, crossing.host.callback.kind
    copy_operands = _operand_copier(crossing)
    if kind.identity:
        return _tap(host, devices, copy_operands, host.nbytes >= LEAST_BYTES)
    write_results = _result_writer(crossing)
    if kind.ordered:
        return _in_order(host, devices, len(crossing.operand_avals), copy_operands, write_results)
    return _in_any_order(host, devices, len(crossing.operand_avals), copy_operands, write_results)


def _uses_extension(crossing: Crossing, module_context: Any) -> bool:
    """Return whether the native extension takes the values of a tap."""
    if (
        not crossing.host.callback.kind.identity
        or not crossing.host.program.is_tracked
        or not suits(crossing.operand_avals)
    ):
        return False
    if not library.is_ready():
        return False
    client = _compat.client_of(module_context)
    try:
        return client is None or client is extend.get_backend("cpu")
    except RuntimeError:
        # JAX can lower a program for CPU without a CPU client.
        return False


def _extension_tap(crossing: Crossing, devices: Devices) -> Handler:
    """Return the handler for the first value of each executable, and for those that the extension does not take."""
    host, is_unbound, large = crossing.host, library.held.hostcb_is_unbound, not is_small(crossing.operand_avals)
    # In the memory that the library uses, so that there is no second pool.
    copy_operands = _operand_copier(crossing, in_blocks=True)
    keeper = SiteKeeper(Site(host, crossing.decode, crossing.operand_avals, host.program.through_python))

    def bind(device: Any) -> None:
        if is_unbound():
            queues[device].bind(keeper.site)

    return _tap(host, devices, copy_operands, large, bind)


def _operand_copier(crossing: Crossing, in_blocks: bool = False) -> Callable[[Sequence[Any]], Sequence[np.ndarray]]:
    """Return the function that copies the operand buffers into NumPy arrays; later buffers are ignored.

    It copies because the device reuses the memory as soon as the handler returns. With `in_blocks`, large operands go
    into blocks of the native extension.
    """
    least = LEAST_QUEUED_BYTES if crossing.host.callback.kind.identity else LEAST_BYTES

    def copy_of(aval: Any) -> Callable[[np.ndarray], np.ndarray]:
        nbytes = size_of(aval)
        if nbytes < least:
            return np.ndarray.copy
        return Shape(aval.shape, np.dtype(aval.dtype), nbytes).copy if in_blocks else blocks.copy

    copies = [copy_of(aval) for aval in crossing.operand_avals]
    decode = crossing.decode
    if len(copies) == 1 and decode is unchanged:
        copy = copies[0]
        return lambda buffers: (copy(buffers[0].__array__()),)
    return lambda buffers: decode([copy(buffer.__array__()) for copy, buffer in zip(copies, buffers, strict=False)])


def _result_writer(crossing: Crossing) -> Callable[[Sequence[Any], Sequence[np.ndarray]], None]:
    """Return the function that copies the results into their buffers, which are the last of all buffers."""
    count, encode = len(crossing.result_avals), crossing.encode
    if count == 1 and encode is unchanged and size_of(crossing.result_avals[0]) < LEAST_IN_LARGE_PAGES:

        def write_one(buffers: Sequence[Any], results: Sequence[np.ndarray]) -> None:
            buffers[-1].__array__()[...] = results[0]

        return write_one

    def write(buffers: Sequence[Any], results: Sequence[np.ndarray]) -> None:
        for buffer, value in zip(buffers[len(buffers) - count :], encode(results), strict=True):
            advise(buffer.__array__())[...] = value

    return write


def _tap(
    host: Host, devices: Devices, copy_operands: Any, large: bool, bind: Callable[[Any], None] | None = None
) -> Handler:
    tap = host.tap

    @called_by_runtime
    def taps(_: Any, token: Any, *buffers: Any) -> None:
        program = host.program
        if running.frame.pending is not None and has_failed(program):
            return
        try:
            device = devices[token.__dlpack_device__()[1]]
            if bind is not None:
                bind(device)
            if large:
                host.make_room(device)
            tap(device, copy_operands(buffers))
        except BaseException as exception:
            # An interrupt, such as Ctrl-C, or no memory.
            if not postpone(program, exception):
                raise

    return taps


def _in_order(host: Host, devices: Devices, operand_count: int, copy_operands: Any, write_results: Any) -> Handler:
    run = host.run
    # The buffer of the token comes between those of the operands and those of the results.
    first_result = operand_count + 1

    @called_by_runtime
    def in_order(_: Any, token: Any, *buffers: Any) -> None:
        if running.frame.pending is not None and has_failed(host.program):
            return skip(host.program, buffers[first_result:])
        device = devices[token.__dlpack_device__()[1]]
        arrays = copy_operands(buffers)
        try:
            results = run(device, arrays)
        except BaseException as exception:
            error = host.refused(device, exception)
            clear(buffers[first_result:])
            if not postpone(host.program, error):
                raise error from error.__cause__
            return None
        if results:
            write_results(buffers, results)
        return None

    return in_order


def _in_any_order(host: Host, devices: Devices, operand_count: int, copy_operands: Any, write_results: Any) -> Handler:
    run, names_device = host.run, host.callback.on_error is not None

    @called_by_runtime
    def in_any_order(_: Any, *buffers: Any) -> None:
        if running.frame.pending is not None and has_failed(host.program):
            return skip(host.program, buffers[operand_count:])
        # Only what observes the run, and the report of a failure that does not end it, want to know the device.
        device = None if observers.on is None and not names_device else _device_of(buffers, devices)
        try:
            results = run(device, copy_operands(buffers))
            if results:
                write_results(buffers, results)
        except BaseException as exception:
            error = host.refused(_device_of(buffers, devices, exception), exception)
            clear(buffers[operand_count:])
            if not postpone(host.program, error):
                raise error from error.__cause__
        return None

    return in_any_order


def _device_of(buffers: Sequence[Any], devices: Devices, exception: BaseException | None = None) -> Any:
    """Return the device of `buffers`; None if there are no buffers or `devices` does not know their device.

    If the memory is not the handler's own, the function fails or failed because of that, and `exception` gets a note
    saying so.
    """
    try:
        return devices[buffers[0].__dlpack_device__()[1]]
    except (IndexError, KeyError):
        return None
    except RuntimeError as stale:
        if exception is not None:
            exception.add_note(str(stale))
        return None


def in_place(equation: Equation, target: str, sharding: Any, devices: Devices) -> Emitted:
    """Emit a callback whose user function gets the buffers of operands and results themselves (B1, B2)."""
    crossing = equation.crossing
    callback = crossing.host.callback
    if crossing.handler is None:
        on_cpu = equation.context.module_context.platforms == ("cpu",)
        crossing.handler = _filling(crossing, devices, on_cpu)
    results = custom_call(
        equation.context,
        target,
        crossing.handler,
        equation.operands,
        crossing.operand_avals,
        crossing.result_avals,
        sharding,
        side_effect=not callback.kind.pure,
        aliases=callback.aliases,
    )
    return Emitted(None, list(results))


def _mapped_anew(crossing: Crossing) -> list[int]:
    """Return the positions of the buffers for large results in fresh memory: those without an alias."""
    aliased = {result for _, result in crossing.host.callback.aliases}
    return [
        len(crossing.operand_avals) + position
        for position, aval in enumerate(crossing.result_avals)
        if position not in aliased and size_of(aval) >= LEAST_IN_LARGE_PAGES
    ]


def _filling(crossing: Crossing, devices: Devices, on_cpu: bool) -> Handler:
    host = crossing.host
    program, callback = host.program, host.callback
    count = callback.operand_count
    # Nearly every callback takes its buffers without a tree, and one call less is a tenth of its cost.
    function = callback.function if callback.fills_leaves else None
    if function is not None and callback.kind.lends and on_cpu:
        function = function.on_cpu  # type: ignore[attr-defined]
    mapped = _mapped_anew(crossing) if on_cpu else ()

    def fill(context: Any, buffers: Sequence[Any]) -> Any:
        if function is None:
            return callback.fill(context, buffers)
        return function(context, buffers[count], *buffers[:count])

    @called_by_runtime
    @runs_callbacks
    def handler(context: Any, *buffers: Any) -> None:
        switch_interval.callback_begins()
        frame = running.frame
        if frame.pending is not None and has_failed(program):
            return skip(program, buffers[count:])
        outer = frame.depth
        frame.depth = outer + 1
        try:
            for position in mapped:
                advise(buffers[position].__array__())
            observing = observers.on
            if observing is not None:
                # Buffers are not shown: JAX mistakes later buffers for one of which an array is kept.
                returned = observing.around(host, _device_of(buffers, devices), (), fill)(context, buffers)
            elif function is None:
                returned = callback.fill(context, buffers)
            else:
                returned = function(context, buffers[count], *buffers[:count])
            if returned is not None:
                raise returned_something(callback)
        except BaseException as exception:
            error = host.refused(_device_of(buffers, devices, exception), exception)
            # Buffers that the traceback's frames keep alive would corrupt later callbacks: see `_device_of`.
            forget_locals(exception)
            if program.takes_cpp_dispatch:
                # JAX dispatches programs on a CPU alone in C++, so the handler can write to the buffers.
                clear(buffers[count:])
            if not postpone(program, error, inside=1):
                raise error from error.__cause__
        finally:
            frame.depth = outer
        return None

    return handler
