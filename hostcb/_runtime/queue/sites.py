"""The call sites whose values come by a ring: how a record becomes the arrays of a user function (H5, H18).

C knows a site by its number, which is not in the program's text: the site is bound when it is first called, through
Python. A function lives as long as its executables. An executable may end with values still in a ring. So the end of
its handler leaves the site in the table until these values have run.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._native.library import MOST_INSIDE, library
from ..._spec.shapes import size_of
from ..memory.owners import Owner, Shape
from .items import Item, Receiver
from .rings import Record, Ring

# The place of each operand in a record is a multiple of it.
_ALIGNMENT = library.constant("alignment", 1)
_POINTER = ctypes.sizeof(ctypes.c_void_p)

# A value with more bytes in small operands goes through Python: a record takes a sixteenth of the ring at most.
MOST_IN_RECORD = 1 << 20

_numbers = itertools.count()

# The sites by their numbers, and the ends of the rings' values when the handlers of some of them ended.
_sites: dict[int, Site] = {}
sites_to_forget: dict[int, list[tuple[Ring, int]]] = {}


def is_small(carried: Sequence[Any]) -> bool:
    """Return whether values of these types go by a ring without blocks."""
    return sum(map(size_of, carried)) <= MOST_INSIDE


def suits(carried: Sequence[Any]) -> bool:
    """Return whether values of these types go by a ring; those of very many small operands go through Python."""
    return sum(size for size in map(size_of, carried) if size <= MOST_INSIDE) <= MOST_IN_RECORD


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Site:
    """One callback in one program, whose handler the runtime calls on any of its devices."""

    def __init__(
        self,
        receiver: Receiver,
        decode: Callable[..., Any],
        carried: Sequence[Any],
        through_python: ctypes.c_int32,
    ) -> None:
        self.number = next(_numbers)
        self.receiver = receiver
        self.rings: dict[Ring, None] = {}
        self._decode = decode
        self._through_python = through_python
        sizes = [size_of(aval) for aval in carried]
        self._sizes = (ctypes.c_uint64 * len(sizes))(*sizes)
        # A record begins with pointers to the blocks of large operands. The others come after these.
        self._blocks = [
            Shape(aval.shape, np.dtype(aval.dtype), size)
            for aval, size in zip(carried, sizes, strict=True)
            if size > MOST_INSIDE
        ]
        inside = [0 if size > MOST_INSIDE else _aligned(size) for size in sizes]
        places = itertools.accumulate(inside, initial=_aligned(len(self._blocks) * _POINTER))
        self._operands = [
            (aval.shape, np.dtype(aval.dtype), place) for aval, place in zip(carried, places, strict=False)
        ]
        self._is_large = [size > MOST_INSIDE for size in sizes]
        _sites[self.number] = self

    def bind(self, ring: Ring) -> None:
        """Let the executable whose handler this thread runs hand its values over to a ring."""
        self.rings[ring] = None
        library.held.hostcb_bind(
            ring.address,
            self.number,
            ctypes.addressof(self._through_python),
            self.receiver.nbytes,
            len(self._sizes),
            self._sizes,
        )

    def item(self, ring: Ring, begin: int, end: int) -> Item | None:
        """Return the value of a record as an item of the queue.

        None if it has run in the meantime.
        """
        memory = ring.memory
        if not self._blocks:
            arrays = [np.ndarray(shape, dtype, memory, begin + place).copy() for shape, dtype, place in self._operands]
            return Item(self.receiver, self._decode(arrays), end)
        large = []
        for index, block in enumerate(self._blocks):
            owner = Owner()
            if not library.held.hostcb_share(ring.address, begin, end, index, ctypes.byref(owner)):
                return None
            large.append(block.over(owner))
        blocks = iter(large)
        arrays = [
            next(blocks) if is_large else np.ndarray(shape, dtype, memory, begin + place).copy()
            for (shape, dtype, place), is_large in zip(self._operands, self._is_large, strict=True)
        ]
        return Item(self.receiver, self._decode(arrays), end)


class SiteKeeper:
    """What a handler keeps: its end is the end of the executables that call it."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __del__(self) -> None:
        site = self.site
        marks = [(ring, ring.counters.reserved) for ring in site.rings if ring.oldest() or ring.is_expecting()]
        if marks:
            sites_to_forget[site.number] = marks
            # They may have run meanwhile.
            forget_finished_sites()
        else:
            _sites.pop(site.number, None)


def item_of(ring: Ring, record: Record) -> Item | None:
    """Return the value of the oldest record, and leave it in the ring; None if it has been run in the meantime."""
    number, begin, end = record
    # Looked up first: once the record has run, the site may be forgotten.
    site = _sites.get(number)
    if ring.counters.head >= end:
        return None
    assert site is not None
    return site.item(ring, begin, end)


def waiting(ring: Ring) -> list[Receiver]:
    """Return the receivers of a ring's values that have not run."""
    sites = [_sites.get(number) for number in ring.waiting()]
    return [site.receiver for site in sites if site is not None]


def forget_finished_sites() -> None:
    """Forget the sites whose executables have ended, and whose values have run."""
    for number, marks in list(sites_to_forget.items()):
        if all(ring.counters.head >= mark for ring, mark in marks):
            sites_to_forget.pop(number, None)
            _sites.pop(number, None)
