"""H21: a private object of JAX that has a place in each release is looked for in one after the other."""

from __future__ import annotations

import os

import pytest

from hostcb import UnknownJaxError
from hostcb._compat import profiles, registry
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


@pytest.mark.parametrize(("cost", "pure_is_refused"), [(Cost.ALL, True), (Cost.EFFECTS, False)])
def test_what_costs_effects_alone_refuses_no_pure_callback(
    cost: Cost, pure_is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("os:nothing", "Is a test.", "None.", ("H5",), cost)
    entry.probe()
    monkeypatch.setattr(registry, "_blocking", [entry])

    def refused(effectful: bool) -> bool:
        try:
            registry.refuse_if_unusable("a callback", effectful=effectful)
        except UnknownJaxError:
            return True
        return False

    assert (refused(effectful=False), refused(effectful=True)) == (pure_is_refused, True)


@pytest.mark.parametrize(
    ("cost", "blocks"), [(Cost.ALL, True), (Cost.EFFECTS, True), (Cost.SOME, False), (Cost.COMFORT, False)]
)
def test_which_lost_entries_refuse_callbacks(cost: Cost, blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    blocking: list[Entry] = []
    monkeypatch.setattr(registry, "_blocking", blocking)
    monkeypatch.setattr(registry, "entries", [])
    entry = registry.private("os:nothing", "Is a test.", "None.", ("H5",), cost)
    assert blocking == ([entry] if blocks else [])


def test_a_profiler_that_cannot_be_watched_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # The class of an integer cannot be changed.
    monkeypatch.setattr(profiles._STATE, "value", 3)
    monkeypatch.setattr(profiles._STATE, "problem", None)
    profiles.on_profiles(lambda is_on: None)
    assert (profiles._STATE.value, profiles._STATE.lost) == (None, True)
    assert "cannot be watched" in str(profiles._STATE.problem)
