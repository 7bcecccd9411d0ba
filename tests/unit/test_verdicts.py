"""H10, H15: under jit over a mesh each device hears of a failure, wherever it comes from, and none waits for ever."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._runtime import host

pytestmark = pytest.mark.contract("H10", "H15")

# A failure between the runtime and the user's function, such as a copy for which there is no memory.
WITHOUT_MEMORY = """
from hostcb._runtime.host import Host
run = Host.run

def without_memory(self, device, arrays):
    if fails:
        raise MemoryError("planted")
    return run(self, device, arrays)

Host.run = without_memory
everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), P())
program = jax.jit(
    lambda x: hcb.call(lambda y: y + 1, x, result_shape=x), in_shardings=everywhere, out_shardings=everywhere
)
for fails in (False, True, False):
    try:
        print(np.asarray(program(np.float32(2))))
    except jax.errors.JaxRuntimeError as error:
        print("MemoryError: planted" in str(error))
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as error:
        print([type(failure.exception).__name__ for failure in error.failures])
"""


def test_a_failure_around_the_function_ends_the_program_on_all_devices() -> None:
    ended = run_program(WITHOUT_MEMORY, devices=4, timeout=60).check()
    assert ended.lines == ["3.0", "True", "['MemoryError']", "3.0"]


def test_a_computation_ends_where_the_text_of_its_failure_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: Any) -> str:
        raise MemoryError

    def fails(_: Any) -> Any:
        raise OSError("planted")

    monkeypatch.setattr(host, "refusal", without_memory)
    with pytest.raises(jax.errors.JaxRuntimeError, match="text of its failure raised MemoryError") as caught:
        jax.jit(lambda x: hcb.call(fails, x, result_shape=x))(1.0)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()
