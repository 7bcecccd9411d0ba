"""`stats`: how much each device has handed over, how it waited, and how barriers did (H29)."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from .._runtime.observing.counting import Counting, counting
from .._runtime.queue.counters import Totals, totals_by_device
from .._runtime.queue.queues import queues
from .._spec.naming import device_name, shown

_COLUMNS = ("device", "taps", "run", "calls", "bytes", "queued", "at most", "waited for room", "failures")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True)
class DeviceStats:
    """What one device has handed over.

    Attributes:
        taps: values that `id_tap` and `id_print` have handed over.
        taps_run: those of them whose functions have ended. After a barrier, it is `taps`.
        calls: runs of the functions of all other callbacks that have ended, by kind, such as `call`, `io_callback` or
            `debug.print`; 0 for those that have not run.
        bytes: of the operands of all of these.
        queued: taps whose functions have not ended, at this moment.
        queued_bytes: their bytes.
        most_queued: how many there were at most.
        most_queued_bytes: how many bytes they had at most.
        waited_for_room: the seconds for which the device waited because its queue was full.
        failures: callbacks that failed.
    """

    taps: int = 0
    taps_run: int = 0
    calls: Counter[str] = dataclasses.field(default_factory=Counter)
    bytes: int = 0
    queued: int = 0
    queued_bytes: int = 0
    most_queued: int = 0
    most_queued_bytes: int = 0
    waited_for_room: float = 0.0
    failures: int = 0

    def __sub__(self, before: DeviceStats) -> DeviceStats:
        sums = ("taps", "taps_run", "calls", "bytes", "waited_for_room", "failures")
        return dataclasses.replace(self, **{name: getattr(self, name) - getattr(before, name) for name in sums})

    def _row(self) -> tuple[str, ...]:
        return (
            f"{self.taps:,}",
            f"{self.taps_run:,}",
            f"{sum(self.calls.values()):,}",
            _size(self.bytes),
            f"{self.queued:,} ({_size(self.queued_bytes)})",
            f"{self.most_queued:,} ({_size(self.most_queued_bytes)})",
            f"{self.waited_for_room:.3f} s",
            f"{self.failures:,}",
        )


@dataclasses.dataclass(frozen=True)
class Stats:
    """What the devices of this process have handed over; `print` shows a table.

    Attributes:
        devices: a `DeviceStats` for each device that has called back, by its name, such as `cpu:0`. Callbacks whose
            device is not known, for example those without operands and results, are at `unknown`.
        seconds: for how long this was counted.
        barriers: calls of `barrier_wait` that have ended.
        waited_in_barriers: the seconds for which they waited.
    """

    devices: Mapping[str, DeviceStats]
    seconds: float
    barriers: int
    waited_in_barriers: float

    def __getitem__(self, device: Any) -> DeviceStats:
        """Return the figures of a `jax.Device`, or of its name; zeros if it has not called back."""
        name = device if isinstance(device, str) else _name(device)
        return self.devices.get(name, DeviceStats())

    def __sub__(self, before: Stats) -> Stats:
        """Return what happened between two moments. `queued` and `most_queued` are those of the later one."""
        if not isinstance(before, Stats):
            return NotImplemented
        return Stats(
            {name: each - before[name] for name, each in self.devices.items()},
            self.seconds - before.seconds,
            self.barriers - before.barriers,
            self.waited_in_barriers - before.waited_in_barriers,
        )

    def __str__(self) -> str:
        head = f"counted for {self.seconds:.1f} s; barriers: {self.barriers:,}, for {self.waited_in_barriers:.3f} s"
        rows = [_COLUMNS, *((name, *each._row()) for name, each in sorted(self.devices.items(), key=_in_order))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        for name, each in sorted(self.devices.items(), key=_in_order):
            if each.calls:
                kinds = ", ".join(f"{count:,} x {kind}" for kind, count in sorted(each.calls.items()))
                lines.append(f"calls of {name}: {kinds}")
        return "\n".join([head, *lines])


def stats() -> Stats:
    """Return what each device has handed over since the first call of this function.

    The first call begins the counting. It returns zeros, and the values that wait in queues at that moment, which count
    as handed over. Until then a callback does not count its runs. From then on each run takes one or two microseconds
    longer.

    Between two moments: `hostcb.stats() - before`.

    Figures of one moment belong together after a `barrier_wait`, if no program runs. Meanwhile each of them is right
    for a moment of the call, `taps_run` is never more than `taps`, and no figure but `queued` becomes smaller.

    A forked child counts anew, from its own first call on. After `clear_backends`, the counts of a device go on with
    the new device of its name.

    Returns:
        A `Stats`.

    Follows H29. Example:

        >>> import hostcb as hcb, jax
        >>> before = hcb.stats()
        >>> y = jax.jit(lambda x: hcb.id_tap(lambda value, transforms: None, x))(jax.numpy.ones(1000))
        >>> hcb.barrier_wait()
        >>> here = (hcb.stats() - before)["cpu:0"]
        >>> here.taps, here.taps_run, here.bytes, here.queued
        (1, 1, 4000, 0)
    """
    counted = counting()
    now = time.monotonic()
    found = totals_by_device(queues.all())
    names = sorted({*found, *counted.tallies, *counted.totals})
    every = {name: _device(counted, name, found.get(name, Totals(name))) for name in names}
    return Stats(
        {name: each for name, each in every.items() if each != DeviceStats()},
        now - counted.began,
        *counted.barriers.read(),
    )


def _device(counted: Counting, name: str, totals: Totals) -> DeviceStats:
    tally = counted.tally(name)
    queued, queued_bytes = totals.taps - totals.ended, totals.taps_bytes - totals.ended_bytes
    tally.reaches(queued, queued_bytes)
    before, runs = counted.totals.get(name, Totals(name)), tally.read()
    # What waited at the first call counts as handed over, so both counts begin with what had ended.
    return DeviceStats(
        taps=totals.taps - before.ended,
        taps_run=totals.ended - before.ended,
        calls=+Counter({kind: count for kind, (count, _) in runs.items()}),
        bytes=totals.taps_bytes - before.ended_bytes + sum(size for _, size in runs.values()),
        queued=queued,
        queued_bytes=queued_bytes,
        most_queued=tally.most_queued.read(),
        most_queued_bytes=tally.most_queued_bytes.read(),
        waited_for_room=totals.waited_for_room - before.waited_for_room,
        failures=tally.failures.read()[0],
    )


def _name(device: Any) -> str:
    try:
        return device_name(device)
    except AttributeError:
        raise TypeError(
            f"hostcb.stats: expected a jax.Device or its name such as 'cpu:0', got {shown(device)} of {type(device)}."
        ) from None


def _in_order(entry: tuple[str, DeviceStats]) -> tuple[str, int]:
    platform, _, number = entry[0].partition(":")
    return platform, int(number or -1)


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
