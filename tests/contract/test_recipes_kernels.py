"""The recipes with kernels: NumPy and Numba on the CPU; CuPy and Triton lowered for CUDA, and with stand-ins."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers, packaging
from support.recipes import RECIPES, load
from support.subprocesses import run_program


@pytest.mark.contract("B3", "D1")
def test_a_numpy_kernel_changes_its_state_in_place() -> None:
    module = load("numpy_kernel")
    x = jax.random.randint(jax.random.key(3), (40,), 0, module.BINS)
    wanted = jnp.bincount(x, length=module.BINS)
    helpers.equal(jax.jit(module.histogram)(x), wanted.astype(jnp.int32), "the histogram")
    counts = jnp.ones(module.BINS, jnp.int32)
    helpers.equal(jax.jit(module.add_to_histogram)(counts, x), (wanted + 1).astype(jnp.int32), "counted on")
    assert (counts == 1).all(), "the program still has it, so XLA copies"
    donated = jax.device_put(jnp.ones(module.BINS, jnp.int32), may_alias=False)
    address = donated.unsafe_buffer_pointer()
    out = jax.jit(module.add_to_histogram, donate_argnums=0)(donated, x)
    assert out.unsafe_buffer_pointer() == address


@pytest.mark.contract("D1", "D2")
def test_a_numba_kernel_is_the_same_loop_as_in_jax() -> None:
    module = load("numba_kernel")
    x = jax.random.normal(jax.random.key(3), (3, 20))
    ours, theirs = (lambda x, f=f: f(x, 0.7) for f in (module.smooth, module.smooth_in_jax))
    for check in (lambda f: f, lambda f: jax.grad(lambda x: jnp.sum(f(x) ** 3)), jax.jacrev):
        for stage in (lambda f: f, jax.jit):
            np.testing.assert_allclose(stage(check(ours))(x[0]), stage(check(theirs))(x[0]), atol=1e-5)
    np.testing.assert_allclose(jax.vmap(ours)(x), jax.vmap(theirs)(x), atol=1e-6)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(module.smooth)(x, 0.7)


ON_THE_CPU = """
#include <math.h>
static struct { int x; } blockIdx, blockDim, threadIdx;
SOURCE
__attribute__((visibility("default")))
void launch(int blocks, int threads, const float* x, float* out, int rows, int columns) {
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) NAME(x, out, rows, columns);
}
"""
"""A kernel in CUDA's C++, as a C compiler takes it, and a launch of its threads one after the other."""


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy as far as the recipe uses it, on the CPU."""
    native = packaging.native()
    if reason := native.lacks():
        pytest.skip(reason)

    class RawKernel:
        def __init__(self, source: str, name: str) -> None:
            file, library = tmp_path / "kernel.c", tmp_path / "kernel.so"
            source = source.replace('extern "C" __global__', "static")
            file.write_text(ON_THE_CPU.replace("SOURCE", source).replace("NAME", name))
            subprocess.run([*native.compiler(), *native.FLAGS, str(file), "-lm", "-o", str(library)], check=True)
            self.function = ctypes.CDLL(str(library)).launch

        def __call__(self, grid: tuple[int], block: tuple[int], args: Any) -> None:
            x, out, rows, columns = args
            pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, out))
            self.function(*grid, *block, *pointers, rows, columns)

    module: Any = types.ModuleType("cupy")
    module.RawKernel, module.from_dlpack = RawKernel, np.from_dlpack
    monkeypatch.setitem(sys.modules, "cupy", module)
    return load("cupy_kernel")


@pytest.mark.contract("B5", "D1")
def test_a_cupy_kernel_is_lowered_for_cuda_and_launched_over_all_rows(cupy: Any) -> None:
    x = jax.random.normal(jax.random.key(0), (1000, 5))
    assert "@xla_buffer_python_gpu_callback(" in lowered_for_cuda(cupy.running_maximum, x)
    helpers.equal(jax.jit(cupy.running_maximum)(x), jax.lax.cummax(x, axis=1), "the running maximum")
    helpers.equal(jax.vmap(cupy.running_maximum)(x), jax.lax.cummax(x, axis=1), "under vmap")


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Triton and torch as far as the recipe uses them: a launch takes the softmax of as many rows as its grid has."""

    class Kernel:
        def __init__(self, function: Any) -> None:
            assert list(function.__annotations__) == ["BLOCK"]

        def __getitem__(self, grid: tuple[int]) -> Any:
            def launch(x: Any, out: Any, columns: int, BLOCK: int) -> None:
                assert columns <= BLOCK < 2 * columns
                first = slice(0, grid[0] * columns)
                powers = np.exp(x.values.reshape(-1)[first].reshape(-1, columns))
                out.values.reshape(-1)[first] = (powers / powers.sum(axis=1, keepdims=True)).reshape(-1)

            return launch

    def tensor(lent: Any) -> Any:
        values = np.from_dlpack(lent)
        return types.SimpleNamespace(values=values, shape=values.shape, numel=lambda: values.size)

    modules: dict[str, Any] = {name: types.ModuleType(name) for name in ("torch", "triton", "triton.language")}
    modules["torch"].from_dlpack = tensor
    modules["triton"].jit = Kernel
    modules["triton"].next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    modules["triton"].language = modules["triton.language"]
    modules["triton.language"].constexpr = int
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return load("triton_kernel")


@pytest.mark.contract("B5", "D1")
def test_a_triton_kernel_is_lowered_for_cuda_and_launched_over_all_rows(triton: Any) -> None:
    x = jax.random.normal(jax.random.key(0), (7, 300))
    assert "@xla_buffer_python_gpu_callback_cmd_buffer(" in lowered_for_cuda(triton.softmax, x)
    np.testing.assert_allclose(jax.jit(triton.softmax)(x), jax.nn.softmax(x), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(triton.softmax)(x), jax.nn.softmax(x), rtol=1e-5)
    gradients = [jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2))(x) for f in (triton.softmax, jax.nn.softmax)]
    np.testing.assert_allclose(*gradients, atol=1e-6)


FOR_AN_H100 = """
import sys, types
sys.path.insert(0, sys.argv[1])
# The kernel needs no torch; its launch does.
sys.modules["torch"] = types.ModuleType("torch")
import triton_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

types = {"x": "*fp32", "out": "*fp32", "columns": "i32", "BLOCK": "constexpr"}
source = ASTSource(fn=triton_kernel._softmax_kernel, signature=types, constexprs={"BLOCK": 512})
print(".entry _softmax_kernel(" in compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])
"""


def test_the_triton_kernel_compiles_for_an_h100(tmp_path: Path) -> None:
    """By Triton's own compiler, which needs no GPU."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install triton")
    ended = run_program(FOR_AN_H100, str(RECIPES), prelude="", env={"TRITON_CACHE_DIR": str(tmp_path)}).check()
    assert ended.lines == ["True"], str(ended)


def lowered_for_cuda(function: Any, *args: Any) -> str:
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
