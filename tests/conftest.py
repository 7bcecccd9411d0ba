"""Eight CPU devices for the whole test process, and no failure that leaks from one test into the next."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

DEVICES = 8

# Before JAX is imported by anything: its CPU client reads these once.
_flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count={DEVICES}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
for _name in [name for name in os.environ if name.startswith("JAX_HOST_CALLBACK_")]:
    del os.environ[_name]
# What tests of the conformance suite run is no part of a CI job's summary.
os.environ.pop("GITHUB_STEP_SUMMARY", None)

import jax  # noqa: E402
import pytest  # noqa: E402

import hostcb as hcb  # noqa: E402


def settle() -> list[str]:
    """Wait for everything that was started, forget its failures, and say what they were."""
    try:
        hcb.barrier_wait("between tests")
    except hcb.CallbackException as exception:
        return [failure.text for failure in exception.failures]
    return []


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test starts with a clean slate, and has to report for itself the failures that it provokes."""
    if not request.module.__name__.startswith("test_conformance"):
        settle()
    yield
    if not request.module.__name__.startswith("test_conformance"):
        left = settle()
        assert not left, f"the test left {len(left)} failed callback(s) unreported, the first: {left[0]}"


@pytest.fixture(scope="session")
def devices() -> list[jax.Device]:
    found = jax.devices()
    assert len(found) == DEVICES, f"the suite needs {DEVICES} forced CPU devices, got {len(found)}"
    return found
