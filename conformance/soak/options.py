"""The options of a soak; the command hands them to the process of the soak, as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    minutes: float = 0.0
    """0 for no limit but that of events."""
    events: int = 0
    """0 for no limit but that of time."""
    seed: int = 0
    devices: int = 8
    threads: int = 4
    implementation: str = "hostcb"
    library: str = "hostcb"
    """The package whose objects must not become more."""
    warm_up: int = 500_000
    """The events before which no sample counts: pools fill, and each thread of the runtime has its first callback."""
    deadline: float = 120.0
    """Seconds without any progress, after which the process writes its stacks and ends."""
    programs: int = 3
    """The programs that a thread has at a time."""
    acts: int = 40
    """The acts of each thread in a round. Between two rounds there is a look at everything."""
