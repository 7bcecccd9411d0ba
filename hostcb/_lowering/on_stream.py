"""The transport of taps on CUDA in C: copies on the stream of XLA (H26).

It is off unless `HOSTCB_NATIVE_CUDA=1` asks for it. A callback of another transport waits for the stream before it
comes to Python: then all values that the stream has handed over before have arrived, and the order is right.
`transports` checks that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _compat
from .._native.cuda import TARGET, cuda
from .._native.library import library
from .._runtime.queue.queues import queues
from .._runtime.queue.sites import Site, SiteKeeper, is_small
from .._threads.running import called_by_runtime
from .crossing import Crossing
from .custom_calls import custom_call
from .transports import Emitted, Equation, split_token, with_token


def takes(equation: Equation, platform: str) -> bool:
    """Return whether a callback takes this transport: a small tap on CUDA, in a program whose executions are known."""
    host = equation.crossing.host
    if platform != "cuda" or not host.callback.kind.identity or not host.program.is_tracked:
        return False
    return is_small(equation.crossing.operand_avals) and cuda.is_ready()


def taps(equation: Equation, sharding: Any) -> Emitted:
    """Emit a tap on one device, or on each shard of a mesh."""
    crossing = equation.crossing
    if crossing.handler is None:
        crossing.handler = _handler(crossing)
    results = custom_call(
        equation.context,
        TARGET,
        crossing.handler,
        with_token(equation, equation.operands, equation.token),
        with_token(equation, crossing.operand_avals, _compat.abstract_token),
        with_token(equation, [], _compat.abstract_token),
        sharding,
    )
    return split_token(equation, results)


def _handler(crossing: Crossing) -> Callable[..., None]:
    """Return the handler for the first value of each executable, and for those that the extension does not take."""
    host = crossing.host
    keeper = SiteKeeper(Site(host, crossing.decode, crossing.operand_avals, host.program.through_python, pinned=True))

    @called_by_runtime
    def tapped(*_: Any) -> None:
        # The runtime's buffers are in the memory of the device. The native extension copies them.
        device = cuda.device()
        arrays = keeper.site.fetched()
        if library.held.hostcb_is_unbound():
            queues[device].bind(keeper.site)
        host.tap(device, arrays)

    return tapped
