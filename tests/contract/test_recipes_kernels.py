"""The recipes with kernels: NumPy and Numba on the CPU; CuPy and Triton lowered for CUDA, and with stand-ins."""

from __future__ import annotations

import sys
import types
from typing import Any

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipes import load


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


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy as far as the recipe uses it: a launch takes the running maximum of the rows that its threads cover."""

    class RawKernel:
        def __init__(self, source: str, name: str) -> None:
            assert f"void {name}(const float* x, float* out, int rows, int columns)" in source

        def __call__(self, grid: Any, block: Any, args: Any) -> None:
            x, out, rows, columns = args
            covered = min(rows, grid[0] * block[0])
            out.reshape(rows, columns)[:covered] = np.maximum.accumulate(x.reshape(rows, columns)[:covered], axis=1)

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


def lowered_for_cuda(function: Any, *args: Any) -> str:
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
