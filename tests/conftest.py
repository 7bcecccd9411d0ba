"""Eight CPU devices for the whole test process, and no failure that leaks from one test into the next."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator

from support import sessions

DEVICES = 8

# Before JAX is imported by anything: its CPU client reads these once.
_own = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
# What the user asks of XLA comes last, and so has the last word.
_flags = (f"--xla_force_host_platform_device_count={DEVICES}", *sessions.XLA_FLAGS, _own.strip())
os.environ["XLA_FLAGS"] = " ".join(_flags).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
for _name in [name for name in os.environ if name.startswith("JAX_HOST_CALLBACK_")]:
    del os.environ[_name]
# What tests of the conformance suite run is no part of a CI job's summary.
os.environ.pop("GITHUB_STEP_SUMMARY", None)

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from support.contract_markers import pytest_generate_tests  # noqa: E402

import hostcb as hcb  # noqa: E402
from hostcb._runtime.observing import counting  # noqa: E402

__all__ = ["pytest_generate_tests"]


# The same examples each time, however slow the machine; `rounds` says how many.
settings.register_profile(
    "hostcb", derandomize=True, deadline=None, database=None, max_examples=sessions.rounds(50, 500), print_blob=False
)
settings.load_profile("hostcb")


def settle() -> list[str]:
    """Wait for everything that was started, forget its failures, and say what they were."""
    try:
        hcb.barrier_wait("between tests")
    except hcb.CallbackException as exception:
        return [failure.text for failure in exception.failures]
    return []


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Each test starts with a clean slate, and has to report for itself the failures that it provokes."""
    settle()
    yield
    # A test that asks for `hostcb.stats` counts, and the ones after it do not.
    counting.reset_after_fork()
    left = settle()
    assert not left, f"the test left {len(left)} failed callback(s) unreported, the first: {left[0]}"


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file() -> Iterator[None]:
    """Compiled programs are those of one file, and what was there before it is no matter of its garbage collections.

    Many tests collect garbage, and otherwise a third of a session would be the search through older objects.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    jax.clear_caches()


@pytest.fixture(scope="session")
def devices() -> list[jax.Device]:
    found = jax.devices()
    assert len(found) == DEVICES, f"the suite needs {DEVICES} forced CPU devices, got {len(found)}"
    return found
