"""How the values of one callback cross between device and host, worked out once for all equal equations of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._handlers import Host
from ._wire import Wire, decoder, encoder


class Crossing:
    """A callback's host side, and the types in which its operands and results cross."""

    def __init__(self, host: Host, wires_in: Sequence[Wire], wires_out: Sequence[Wire]):
        self.host = host
        self.operand_avals = [wire.carried for wire in wires_in]
        self.result_avals = [wire.carried for wire in wires_out]
        # From what crosses to what the function gets, and back.
        self.decode = decoder(wires_in)
        self.encode = encoder(wires_out)
        # What the runtime calls, in the transports of `_views`; the first equation makes it.
        self.handler: Callable[..., None] | None = None
        self._wires_in, self._wires_out = wires_in, wires_out

    def pack(self, operands: Sequence[Any]) -> list[Any]:
        """On the device: the program's operands as they cross."""
        return [wire.pack(operand) for wire, operand in zip(self._wires_in, operands, strict=True)]

    def unpack(self, results: Sequence[Any]) -> list[Any]:
        """On the device: what crossed as the program's results."""
        return [wire.unpack(result) for wire, result in zip(self._wires_out, results, strict=True)]
