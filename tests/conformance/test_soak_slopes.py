"""Growth in a soak: a planted leak is found among noise, and noise alone is no growth."""

from __future__ import annotations

import random

import pytest

from conformance.soak.slopes import LEAST_SAMPLES, slope_of

pytestmark = pytest.mark.contract("C64")

SAMPLES = 60
EVENTS = 20_000
"""Between two samples."""


def places(count: int = SAMPLES) -> list[float]:
    return [float(EVENTS * number) for number in range(count)]


def noise(seed: int, count: int = SAMPLES, width: float = 5e6) -> list[float]:
    """A flat series, with a sample far off now and then."""
    drawn = random.Random(seed)
    return [1e9 + drawn.gauss(0, width) + (10 * width if drawn.random() < 0.05 else 0) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_a_flat_noisy_series_does_not_grow(seed: int) -> None:
    slope = slope_of(places(), noise(seed))
    assert slope is not None
    assert not slope.grows(0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_of_one_object_an_event_grows(seed: int) -> None:
    """56 bytes an event are a quarter of the noise from one sample to the next."""
    leak = 56.0
    values = [value + leak * place for place, value in zip(places(), noise(seed), strict=True)]
    slope = slope_of(places(), values)
    assert slope is not None
    assert slope.grows(0.0)
    assert slope.low <= leak <= slope.high


def test_what_is_allowed_is_a_slope_and_no_bound() -> None:
    values = [3.0 * place for place in places()]
    slope = slope_of(places(), values)
    assert slope is not None
    assert (slope.low, slope.slope, slope.high) == (3.0, 3.0, 3.0)
    assert slope.grows(2.9)
    assert not slope.grows(3.0)


def test_a_series_that_fills_and_stays_does_not_grow() -> None:
    """As caches do; and it says so although nearly all samples are equal."""
    values = [min(float(number), 15.0) for number in range(SAMPLES)]
    slope = slope_of(places(), values)
    assert slope is not None
    assert (slope.slope, slope.grows(0.0)) == (0.0, False)


def test_a_series_that_shrinks_does_not_grow() -> None:
    slope = slope_of(places(), [-place for place in places()])
    assert slope is not None
    assert not slope.grows(0.0)


def test_samples_before_the_warm_up_do_not_count() -> None:
    """Here what grows does so until the last ten samples."""
    full = float(EVENTS * (SAMPLES - 10))
    values = [min(place, full) for place in places()]
    early, late = slope_of(places(), values), slope_of(places(), values, first=full)
    assert early is not None
    assert late is not None
    assert (early.grows(0.0), late.grows(0.0)) == (True, False)


def test_of_few_samples_nothing_is_said() -> None:
    assert slope_of(places(LEAST_SAMPLES), noise(0, LEAST_SAMPLES)) is None
    enough = 2 * LEAST_SAMPLES
    assert slope_of(places(enough), noise(0, enough)) is not None
    assert slope_of([5.0] * enough, noise(0, enough)) is None
