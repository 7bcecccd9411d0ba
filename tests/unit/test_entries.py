"""H21: a private object of JAX that has a place in each release is looked for in one after the other."""

from __future__ import annotations

import os

import pytest

from hostcb._compat.registry import Cost, Entry

pytestmark = pytest.mark.contract("H21")


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (("os:sep", "os:curdir"), os.sep),
        (("os:nothing", "os:curdir", "os:sep"), os.curdir),
        (("os:nothing",), None),
    ],
)
def test_the_first_place_that_has_it_counts(places: tuple[str, ...], found: str | None) -> None:
    entry = Entry(places[0], "Is a test.", "None.", (), Cost.COMFORT, other_places=places[1:])
    entry.probe()
    assert (entry.value, entry.lost) == (found, found is None)
