"""A pure callback that still runs when the interpreter ends comes to its end, and so does the process."""

from __future__ import annotations

import pytest
from subprocesses import run_program

LAYOUTS = {
    "one_device": """
x = np.ones(1 << 12, np.float32)
program = jax.jit(lambda x: call(x) * 2)
""",
    "mesh": """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.ones(1 << 12, np.float32), NamedSharding(mesh, P("d")))
program = jax.jit(call)
""",
    "pmap": """
x = np.ones((4, 1 << 10), np.float32)
program = jax.pmap(call)
""",
    "shard_map": """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.ones(1 << 12, np.float32), NamedSharding(mesh, P("d")))
program = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
""",
}
CALLERS = {"one_device": 1, "mesh": 1, "pmap": 4, "shard_map": 4}

START = """
entered, last = threading.Event(), threading.Event()
main = threading.main_thread()

def host(array):
    if last.is_set():
        entered.set()
        # In the main thread the program is over before the interpreter ends.
        while main.is_alive() and threading.current_thread() is not main:
            time.sleep(0.01)
        # For as long as this the interpreter ends beside the callback.
        time.sleep(0.3)
        os.write(1, b"ended\\n")
    return np.asarray(array) * 1

def call(x):
    return hcb.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
"""

END = """
for _ in range(int(sys.argv[1])):
    jax.block_until_ready(program(x))
last.set()
program(x)
entered.wait(30)
"""


@pytest.mark.parametrize("runs_before", [0, 2], ids=["first_dispatch", "later_dispatch"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_h17_a_pure_callback_that_runs_at_exit(layout: str, runs_before: int) -> None:
    """JAX dispatches such a program in a way that it tells nobody of, from the second time on."""
    ended = run_program(START + LAYOUTS[layout] + END, str(runs_before), devices=4, timeout=60.0).check()
    assert ended.lines == ["ended"] * CALLERS[layout], f"every callback should have ended: {ended}"
