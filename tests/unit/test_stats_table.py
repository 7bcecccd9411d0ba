"""H29: the table of `stats()` has its devices in the order of their numbers, and sizes in units that one can read."""

from __future__ import annotations

import pytest

from hostcb._api.stats import DeviceStats, Stats, _size

pytestmark = pytest.mark.contract("H29")


def test_the_devices_are_in_the_order_of_their_numbers() -> None:
    names = ("cpu:10", "unknown", "cpu:9", "cuda:0", "cpu:0")
    table = str(Stats({name: DeviceStats(taps=1, calls={"call": 2}) for name in names}, 1.0, 0, 0.0))
    in_order = ["cpu:0", "cpu:9", "cpu:10", "cuda:0", "unknown"]
    rows = [line.split()[0] for line in table.splitlines()[2:7]]
    calls = [line.removeprefix("calls of ").partition(": ")[0] for line in table.splitlines()[7:]]
    assert (rows, calls) == (in_order, in_order), table


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (100 << 10, "100 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (7 << 40, "7.0 TiB"),
        (2000 << 40, "2,000 TiB"),
    ],
)
def test_sizes_are_in_the_largest_unit_of_which_there_is_one(count: int, shown: str) -> None:
    assert _size(count) == shown
