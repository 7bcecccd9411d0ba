"""How one callback's values cross between device and host; all equal equations of a module share one `Crossing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._runtime.host import Host
from .wire import Wire, decoder, encoder


class Crossing:
    """A callback's host side, and the types in which its operands and results cross."""

    def __init__(self, host: Host, wires_in: Sequence[Wire], wires_out: Sequence[Wire]):
        self.host = host
        self.operand_avals = [wire.carried for wire in wires_in]
        self.result_avals = [wire.carried for wire in wires_out]
        # From carried operands to the user function's arrays; from its results to carried results.
        self.decode = decoder(wires_in)
        self.encode = encoder(wires_out)
        # The handler of the transports in `views`; lowering the first equation makes it.
        self.handler: Callable[..., None] | None = None
        self._wires_in, self._wires_out = wires_in, wires_out

    def pack(self, operands: Sequence[Any]) -> list[Any]:
        """Convert the program's operands to their carried types, on the device."""
        return [wire.pack(operand) for wire, operand in zip(self._wires_in, operands, strict=True)]

    def unpack(self, results: Sequence[Any]) -> list[Any]:
        """Convert carried results to the program's types, on the device."""
        return [wire.unpack(result) for wire, result in zip(self._wires_out, results, strict=True)]
