"""H21: `import hostcb` where Python or the system lacks something, and a second time in one process."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H21")

USE = """
seen = []
program = jax.jit(lambda x: hcb.call(np.negative, hcb.id_tap(lambda v, t: seen.append(float(v)), x), result_shape=x))
assert program(1.0) == -1
hcb.barrier_wait()
assert seen == [1.0], seen
"""

WITHOUT = """
import importlib.abc, os, signal, sys, mmap
import numpy, jax, jax.numpy
for module, names in {
    os: "fork forkpty register_at_fork sched_getaffinity getuid geteuid getppid kill killpg setsid uname O_NONBLOCK",
    signal: "SIGKILL SIGUSR1 SIGALRM SIGHUP setitimer pthread_kill pthread_sigmask",
    mmap: "MADV_HUGEPAGE MAP_PRIVATE MAP_ANONYMOUS PROT_READ PROT_WRITE",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ModuleNotFoundError(name)

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
sys.platform = "win32"
"""


def test_what_windows_lacks_is_not_needed() -> None:
    """A simulation: hostcb has never run on Windows."""
    program = f"{WITHOUT}import hostcb as hcb, numpy as np, jax.numpy as jnp{USE}hcb.install(); hcb.doctor()"
    run_program(program, devices=1, timeout=60.0, prelude="").check()


@pytest.mark.parametrize(("enabled", "status"), [("True", 0), ("False", 1)])
def test_a_python_without_the_interpreter_lock_is_refused(enabled: str, status: int) -> None:
    program = f"import sys; sys._is_gil_enabled = lambda: {enabled}; import hostcb"
    ended = run_program(program, devices=1, timeout=60.0, prelude="")
    assert ended.returncode == status
    if status:
        last = ended.stderr.splitlines()[-1]
        assert last.startswith("ImportError: hostcb needs Python's interpreter lock") and "PYTHON_GIL=1" in last


def test_an_import_leaves_out_what_takes_long() -> None:
    """`jax.extend` imports Pallas: 30 to 45 ms."""
    program = """
import hostcb, sys
print([name for name in sys.modules if name.startswith(("jax.extend", "jax._src.pallas"))])
"""
    assert run_program(program, devices=1, timeout=60.0, prelude="", fresh=True).check().lines == ["[]"]


def test_objects_of_jax_that_are_elsewhere_are_those_of_jax_extend() -> None:
    program = f"""
import sys, jax, jax.numpy as jnp, numpy as np
import jax.extend as extend
sys.modules["jax._src.source_info_util"] = None
import hostcb as hcb
from hostcb._compat.extend import Primitive, register_exclusion
assert (Primitive, register_exclusion) == (extend.core.Primitive, extend.source_info_util.register_exclusion)
{USE}"""
    run_program(program, devices=1, timeout=60.0, prelude="", fresh=True).check()


AGAIN = {
    "purged": """
for name in [name for name in sys.modules if name.partition(".")[0] == "hostcb"]:
    del sys.modules[name]
import hostcb as again
""",
    "one_module": """
del sys.modules["hostcb"], sys.modules["hostcb._compat"], sys.modules["hostcb._compat.dispatch"]
import hostcb._compat.dispatch
import hostcb as again
""",
    "reloaded": """
import importlib
for name in [name for name in sys.modules if name.partition(".")[0] == "hostcb"]:
    importlib.reload(sys.modules[name])
again = importlib.reload(hcb)
""",
    "second_copy": """
import pathlib, shutil, tempfile
folder = tempfile.mkdtemp()
shutil.copytree(pathlib.Path(hcb.__file__).parent, pathlib.Path(folder, "hostcb"))
sys.path.insert(0, folder)
for name in [name for name in sys.modules if name.partition(".")[0] == "hostcb"]:
    del sys.modules[name]
import hostcb as again
""",
}


@pytest.mark.parametrize("way", AGAIN)
def test_a_second_import_gives_the_modules_of_the_first_and_says_so(way: str) -> None:
    program = f"""
import warnings
{USE}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    {AGAIN[way].strip().replace(chr(10), chr(10) + "    ")}
assert {{each.category for each in said}} == {{RuntimeWarning}}, said
assert all("has imported hostcb" in str(each.message) and "Restart" in str(each.message) for each in said), said
assert again is hcb is sys.modules["hostcb"]
from hostcb._runtime.executions.barrier import barrier_wait
assert barrier_wait is hcb.barrier_wait and hcb.__spec__.origin == hcb.__file__
seen.clear()
assert program(1.0) == -1
hcb.barrier_wait()
assert seen == [1.0]
{USE}
hcb.install()
"""
    run_program(program, devices=1, timeout=60.0).check()
