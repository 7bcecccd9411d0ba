"""A worker lowers several programs in one context of MLIR, where JAX makes one for each (C69)."""

from __future__ import annotations

import threading

import jax
import pytest
from suite_runs import DEADLINE, ROOT, python

from conformance.spec.versions import version_matches
from conformance.worker.private_jax import MAKES_EACH_CONTEXT, several_times

pytestmark = pytest.mark.contract("C69")


def test_a_thread_has_its_own() -> None:
    made = several_times(object, 10)
    seen: list[object] = []
    barrier = threading.Barrier(2)

    def make() -> None:
        mine = [made() for _ in range(3)]
        barrier.wait(DEADLINE)
        # After the other thread has made its own.
        seen.extend({*mine, made()})

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(seen) == 2
    assert seen[0] is not seen[1]


WORKER = """
import sys
from conformance.worker.__main__ import main

# Without an implementation it ends when it has reported its devices.
sys.argv = ["worker", "cpu-1dev"]
main()
from jax._src.interpreters import mlir

raise SystemExit(mlir.make_ir_context() is not mlir.make_ir_context())
"""


@pytest.mark.skipif(
    not version_matches(jax.__version__, MAKES_EACH_CONTEXT), reason="this JAX makes one context for all programs"
)
def test_a_worker_lowers_all_programs_in_one_context() -> None:
    """That its programs are right, each run of cells shows."""
    ended = python(ROOT, "-c", WORKER)
    assert ended.returncode == 0, ended.stderr
