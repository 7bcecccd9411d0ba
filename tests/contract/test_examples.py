"""H20, X6: the examples, run as programs and checked against JAX itself or SciPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import STAGES
from support.subprocesses import run_program

EXAMPLES = Path(__file__).parents[2] / "examples"
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: pip install torch")


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function(x: Any, y: Any) -> Any:
    return jnp.sum(jnp.sin(x) * y**2)


X, Y = np.linspace(0, 1, 4, dtype=np.float32), np.arange(1, 5, dtype=np.float32)
CHECKS = {
    "value": lambda f: f,
    "gradient": jax.grad,
    "second_argument": lambda f: jax.grad(f, argnums=1),
    "both": lambda f: jax.grad(f, argnums=(0, 1)),
    "gradient_of_gradient": lambda f: jax.grad(lambda x, y: jnp.sum(jax.grad(f)(x, y) ** 2)),
    "mixed": lambda f: jax.grad(lambda x, y: jnp.sum(jax.grad(f)(x, y)), argnums=1),
    "third": lambda f: jax.grad(lambda x, y: jnp.sum(jax.grad(lambda x: jnp.sum(jax.grad(f)(x, y)))(x))),
    "in_a_scan": lambda f: jax.grad(
        lambda x, y: jax.lax.scan(lambda c, _: (c * f(x, y), None), 1.0, None, length=2)[0]
    ),
    "checkpointed": lambda f: jax.grad(jax.checkpoint(f)),
}  # fmt: skip


@pytest.mark.contract("H20")
@STAGES
@pytest.mark.parametrize("check", CHECKS)
def test_jax_on_another_device(check: str, stage: Any, devices: list[jax.Device]) -> None:
    elsewhere = load("jax_on_another_device").call_jax_other_device(function, devices[3])
    got, wanted = (stage(CHECKS[check](f))(X, Y) for f in (elsewhere, function))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, err_msg=check), got, wanted)
    helpers.finish()


@pytest.mark.contract("H20")
def test_it_really_runs_on_the_other_device(devices: list[jax.Device]) -> None:
    seen: list[Any] = []
    module = load("jax_on_another_device")
    original = module.jax.device_put

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(jax, name)

        def device_put(self, args: Any, device: Any) -> Any:
            seen.append(device)
            return original(args, device)

    module.jax = Spy()
    out = module.call_jax_other_device(lambda x: x * 2, devices[5])(jnp.float32(3))
    assert float(out) == 6.0
    assert seen == [devices[5]], f"computed on {seen}"


@pytest.mark.contract("H20")
def test_the_device_example_runs_as_a_program() -> None:
    ended = run_program((EXAMPLES / "jax_on_another_device.py").read_text(), devices=2, prelude="").check()
    assert [line.split()[0] for line in ended.lines] == ["on", "value", "gradient", "second"], str(ended)


@pytest.mark.contract("H20")
@needs_torch
@STAGES
@pytest.mark.parametrize("check", CHECKS)
def test_torch_example(check: str, stage: Any) -> None:
    import torch

    called = load("torch_function").call_torch(lambda x, y: torch.sum(torch.sin(x) * y**2))
    got, wanted = (stage(CHECKS[check](f))(X, Y) for f in (called, function))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, err_msg=check), got, wanted)


@pytest.mark.contract("H20")
@needs_torch
@pytest.mark.parametrize("layout", helpers.COMPILED, ids=helpers.named)
def test_torch_on_many_devices(layout: helpers.Layout) -> None:
    import torch

    called = load("torch_function").call_torch(torch.sin)
    for out in layout.run(lambda x: called(x) * 2, layout.same(np.arange(8, dtype=np.float32))):
        np.testing.assert_allclose(out, 2 * np.sin(np.arange(8)), rtol=1e-5, atol=1e-6)


@pytest.mark.contract("H20")
@needs_torch
def test_the_torch_example_runs_as_a_program() -> None:
    ended = run_program((EXAMPLES / "torch_function.py").read_text(), devices=1, prelude="").check()
    assert [line.split()[0] for line in ended.lines] == ["value", "gradient", "second", "by"], str(ended)


@pytest.mark.contract("X6")
def test_the_bessel_function() -> None:
    import scipy.special

    bessel = load("bessel").bessel
    z = np.linspace(0.5, 6, 12, dtype=np.float32)
    for order in (0, 1, 3):
        np.testing.assert_allclose(jax.jit(bessel)(order, z), scipy.special.jv(order, z), rtol=1e-5, atol=1e-6)
        first = jax.vmap(jax.grad(lambda x, order=order: bessel(order, x)))(z)
        np.testing.assert_allclose(first, scipy.special.jvp(order, z), rtol=1e-4, atol=1e-5)
        second = jax.vmap(jax.hessian(lambda x, order=order: bessel(order, x)))(z)
        np.testing.assert_allclose(second, scipy.special.jvp(order, z, 2), rtol=1e-4, atol=1e-5)
        third = jax.jit(jax.vmap(jax.grad(jax.hessian(lambda x, order=order: bessel(order, x)))))(z)
        np.testing.assert_allclose(third, scipy.special.jvp(order, z, 3), rtol=1e-3, atol=1e-4)
    both = jax.vmap(jax.vmap(bessel, (None, 0)), (0, None))(np.arange(4), z)
    np.testing.assert_allclose(both, scipy.special.jv(np.arange(4)[:, None], z), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="must be an integer"):
        bessel(1.0, z)


@pytest.mark.contract("X6")
def test_the_bessel_example_runs_as_a_program() -> None:
    ended = run_program((EXAMPLES / "bessel.py").read_text(), devices=1, prelude="").check()
    assert [line.split()[0] for line in ended.lines] == ["value", "gradient", "hessian", "batch"], str(ended)


@pytest.mark.contract("H11")
def test_the_progress_bar_runs_as_a_program() -> None:
    ended = run_program((EXAMPLES / "progress_bar.py").read_text(), devices=1, prelude="").check()
    bars = [f"[{'#' * n}{'.' * (20 - n)}] {50 * n}/1000" for n in (5, 10, 15, 20)]
    assert ended.lines[:-1] == bars, str(ended)
    assert ended.lines[-1].startswith("total "), str(ended)
