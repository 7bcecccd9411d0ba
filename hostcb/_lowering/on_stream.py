"""The transport of taps on CUDA through the library in C: copies on XLA's stream, which does not wait for Python (H26).

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
from .._runtime.queue.sites import Keeper, is_small
from .._runtime.queue.sites import Site as CallSite
from .._threads.running import called_by_runtime
from .crossing import Crossing
from .custom_calls import custom_call
from .transports import Emitted, Site, split_token, with_token


def takes(site: Site, platform: str) -> bool:
    """Return whether a callback takes this transport: a small tap on CUDA, in a program whose executions are known."""
    host = site.crossing.host
    if platform != "cuda" or not host.callback.kind.identity or not host.program.told:
        return False
    return is_small(site.crossing.operand_avals) and cuda.is_ready()


def taps(site: Site, sharding: Any) -> Emitted:
    """Emit a tap on one device, or on each shard of a mesh."""
    crossing = site.crossing
    if crossing.handler is None:
        crossing.handler = _handler(crossing)
    results = custom_call(
        site.context,
        TARGET,
        crossing.handler,
        with_token(site, site.operands, site.token),
        with_token(site, crossing.operand_avals, _compat.abstract_token),
        with_token(site, [], _compat.abstract_token),
        sharding,
    )
    return split_token(site, results)


def _handler(crossing: Crossing) -> Callable[..., None]:
    """Return the handler for the first value of each executable, and for those that the library in C does not take."""
    host = crossing.host
    keeper = Keeper(CallSite(host, crossing.decode, crossing.operand_avals, host.program.through_python, pinned=True))

    @called_by_runtime
    def tapped(*_: Any) -> None:
        # The runtime's buffers are in the memory of the device. The library in C copies them.
        device = cuda.device()
        arrays = keeper.site.fetched()
        if library.held.hostcb_is_unbound():
            queues[device].bind(keeper.site)
        host.tap(device, arrays)

    return tapped
