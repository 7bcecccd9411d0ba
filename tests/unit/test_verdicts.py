"""H10, H15: under jit over a mesh each device hears of a failure, wherever it comes from, and none waits for ever."""

from __future__ import annotations

import pytest
from subprocesses import run_program

pytestmark = pytest.mark.contract("H10", "H15")

# A failure between the runtime and the user's function, such as a copy for which there is no memory.
WITHOUT_MEMORY = """
from hostcb._runtime.host import Host
run = Host.run

def without_memory(self, device, arrays):
    if fails:
        raise MemoryError("planted")
    return run(self, device, arrays)

setattr(Host, NAME, without_memory)
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


@pytest.mark.parametrize("name", ["run", "call"])
def test_a_failure_around_the_function_ends_the_program_on_all_devices(name: str) -> None:
    ended = run_program(WITHOUT_MEMORY.replace("NAME", repr(name)), devices=4, timeout=60).check()
    assert ended.lines == ["3.0", "True", "['MemoryError']", "3.0"]
