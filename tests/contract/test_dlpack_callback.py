"""D1, D2: kernels of other array libraries as JAX functions, on CPU for real, on GPU with stand-ins for libraries."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record, address, failed, like

import hostcb as hcb
from hostcb._api import dlpack

X = np.arange(8, dtype=np.float32)
MODES = pytest.mark.parametrize("in_place", [False, True], ids=["returned", "in_place"])


def same(*args: Any) -> Any:
    return args[0]


@pytest.mark.contract("D1")
@MODES
@pytest.mark.parametrize("layout", [*helpers.MAIN_LAYOUTS, helpers.JIT_DEVICE_5], ids=helpers.named)
def test_both_modes_in_every_layout(layout: helpers.Layout, in_place: bool) -> None:
    def returned(x: Any) -> Any:
        return 2 * np.from_dlpack(x)

    def written(out: Any, x: Any) -> None:
        np.multiply(np.asarray(x), 2, out=np.asarray(out))

    f = hcb.dlpack_callback(written if in_place else returned, same, in_place=in_place)
    values = [X + n for n in range(len(layout.callers))]
    for value, out in zip(values, layout.run(lambda x: f(x) + 1, values), strict=True):
        helpers.equal(out, 2 * value + 1, layout.name)


@pytest.mark.contract("D1")
@STAGES
@MODES
def test_trees_keyword_arguments_and_shapes_by_a_function(stage: Any, in_place: bool) -> None:
    asked = []

    def shapes(tree: Any, *, n: Any) -> Any:
        asked.append((type(tree["x"]).__name__, n.shape))
        return {"sum": like(np.float32(0)), "twice": jax.ShapeDtypeStruct((2, *tree["x"].shape), tree["x"].dtype)}

    def returned(tree: Any, *, n: Any) -> Any:
        x = np.from_dlpack(tree["x"])
        return {"sum": x.sum() * np.asarray(n), "twice": np.stack([x, x])}

    def written(out: Any, tree: Any, *, n: Any) -> None:
        for name, value in returned(tree, n=n).items():
            np.asarray(out[name])[...] = value

    f = hcb.dlpack_callback(written if in_place else returned, shapes, in_place=in_place)
    out = stage(lambda x, n: f({"x": x}, n=n))(X, np.float32(3))
    helpers.equal(out, {"sum": np.float32(84), "twice": np.stack([X, X])}, "results")
    out = stage(lambda x, n: f({"x": x}, n=n))(X[:4], np.float32(1))
    helpers.equal(out["twice"], np.stack([X[:4]] * 2), "another shape, the same function")
    assert asked[0] == ("ShapeDtypeStruct", ()), f"the shapes' function was given {asked}"


@pytest.mark.contract("D1")
def test_what_the_function_receives() -> None:
    seen = []

    def f(x: Any, y: Any, *, stream: Any) -> Any:
        view = np.from_dlpack(x)
        assert stream is None, f"there is no stream on CPU, got {stream}"
        assert (x.size, y.size) == (1 << 12, 3)
        seen.append((address(view), x.shape, x.dtype, x.ndim, repr(y), x.__dlpack_device__(), y.dtype))
        assert not hasattr(x, "__cuda_array_interface__"), "what probes for the protocol should not find it on CPU"
        assert np.asarray(x, np.float64).dtype == np.float64, "__array__ converts"
        assert address(np.array(x, copy=True)) != address(view), "__array__ copies if asked to"
        with pytest.raises(ValueError, match="copy"):
            np.array(x, dtype=np.int8, copy=False)
        return view

    x = jax.block_until_ready(jnp.arange(1 << 12, dtype=jnp.float32).reshape(2, -1))
    y = jnp.ones((3,), jnp.bfloat16)
    out = jax.block_until_ready(jax.jit(hcb.dlpack_callback(f, same, with_stream=True))(x, y))
    helpers.equal(out, np.asarray(x), "identity")
    ((where, shape, dtype, rank, shown, device, other),) = seen
    assert where == x.unsafe_buffer_pointer(), "no copy on the way in"
    assert (shape, dtype, rank, tuple(device)) == ((2, 2048), np.float32, 2, (1, 0))
    assert shown == "Lent(bfloat16[3])" and other == ml_dtypes.bfloat16, f"{shown} {other}"


@pytest.mark.contract("D1")
@STAGES
@MODES
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.float16, np.complex64, ml_dtypes.bfloat16],
                         ids=lambda d: np.dtype(d).name)  # fmt: skip
def test_dtypes_and_zero_sizes(stage: Any, in_place: bool, dtype: Any) -> None:
    for value in (np.array([[1, 0, 1]]).astype(dtype), np.zeros((0, 2), dtype)):

        def f(*buffers: Any) -> Any:
            reverse = np.asarray(buffers[-1])[:, ::-1]
            if not in_place:
                return reverse
            np.asarray(buffers[0])[...] = reverse
            return None

        out = stage(hcb.dlpack_callback(f, same, in_place=in_place))(value)
        helpers.equal(out, value[:, ::-1], f"{np.dtype(dtype).name}{value.shape}")


@pytest.mark.contract("D1")
@STAGES
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint16, np.complex64])
def test_results_in_the_byte_order_of_other_machines(stage: Any, dtype: Any) -> None:
    numbers = np.arange(1, 9).astype(dtype)
    turned = numbers.astype(numbers.dtype.newbyteorder())
    f = hcb.dlpack_callback(lambda x: turned, jax.ShapeDtypeStruct((8,), dtype))
    helpers.equal(np.asarray(stage(f)(X)), numbers, "the numbers")


@pytest.mark.contract("D2")
@STAGES
def test_a_kernel_becomes_a_primitive_with_batching_and_a_derivative(stage: Any) -> None:
    kernel = hcb.dlpack_callback(lambda x: np.tanh(np.from_dlpack(x)), same, vmap_method="expand_dims")
    tanh = jax.custom_jvp(kernel)
    tanh.defjvp(lambda primals, tangents: (lambda y: (y, (1 - y * y) * tangents[0]))(tanh(*primals)))
    np.testing.assert_allclose(stage(jax.vmap(tanh))(X), np.tanh(X), rtol=1e-6)
    np.testing.assert_allclose(stage(jax.vmap(jax.grad(tanh)))(X), 1 - np.tanh(X) ** 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stage(jax.hessian(tanh))(0.5), jax.hessian(jnp.tanh)(0.5), rtol=1e-5)
    total = lambda x: lax.scan(lambda c, y: (c + tanh(y), None), 0.0, x)[0]
    np.testing.assert_allclose(stage(jax.grad(total))(X), 1 - np.tanh(X) ** 2, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"DLPack callbacks do not support JVP.*jax\.custom_jvp"):
        stage(jax.grad(kernel))(1.0)


@pytest.mark.contract("D1", "D2")
def test_aliases_effects_and_equal_programs() -> None:
    record = Record()

    def f(out: Any, x: Any) -> None:
        record.add(address(out) == address(x))
        np.asarray(out)[...] += 1

    options: Any = {"in_place": True, "has_side_effect": True, "input_output_aliases": {0: 0}}
    g = hcb.dlpack_callback(f, same, **options)
    helpers.equal(jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, y: g(y), x))(X), X + 3, "in place in a loop")
    jax.block_until_ready(jax.jit(lambda x: (g(x), x)[1])(X))
    jax.effects_barrier()
    assert record.args == [True] * 4, f"same memory {record.args}"
    one, two = (jax.make_jaxpr(hcb.dlpack_callback(f, same, **options))(X).eqns[0].params for _ in range(2))
    assert one == two, "equal callbacks should make equal programs"


@pytest.mark.contract("D1")
def test_gpu_lowering_uses_the_buffer_target() -> None:
    text = jax.jit(hcb.dlpack_callback(same, same)).trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert "@xla_buffer_python_gpu_callback(" in text, text
    with pytest.raises(ValueError, match="`dlpack_callback` not supported on tpu"):
        jax.jit(hcb.dlpack_callback(same, same)).trace(X).lower(lowering_platforms=("tpu",))


@pytest.mark.contract("D1")
@STAGES
@MODES
def test_functions_of_torch(stage: Any, in_place: bool) -> None:
    torch = pytest.importorskip("torch")

    def returned(x: Any, y: Any) -> Any:
        x = torch.from_dlpack(x)
        return torch.sin(x).requires_grad_(), (x @ torch.from_dlpack(y)).T

    def written(out: Any, x: Any, y: Any) -> None:
        for buffer, value in zip(out, returned(x, y), strict=True):
            torch.from_dlpack(buffer).copy_(value.detach())

    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    shapes = (like(x), jax.ShapeDtypeStruct((4, 2), np.float32))
    f = hcb.dlpack_callback(written if in_place else returned, shapes, in_place=in_place)
    sine, product = stage(f)(x, y)
    np.testing.assert_allclose(sine, np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(product, (x @ y).T, rtol=1e-6)
    half = jnp.ones((2, 2), jnp.bfloat16) * 1.5
    twice = hcb.dlpack_callback(lambda h: torch.from_dlpack(h) * 2, same)
    helpers.equal(stage(twice)(half), np.full((2, 2), 3, ml_dtypes.bfloat16), "bfloat16")
    failed(
        "Expected: float32, Actual: float64",
        stage(hcb.dlpack_callback(lambda x: torch.from_dlpack(x).double(), same)),
        X,
    )
    failed(r"Expected: \(8,\), Actual: \(2,\)", stage(hcb.dlpack_callback(lambda x: torch.from_dlpack(x)[:2], same)), X)


# On GPU, with stand-ins -------------------------------------------------------------------------------------------


class Buffer:
    """Memory that says it is on a GPU."""

    def __init__(self, values: Any):
        self.values = np.array(values)
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 3

    def __dlpack__(self, **_: Any) -> Any:
        return self

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (4096, False), "version": 2}


class Library:
    """torch or CuPy as far as streams, devices and copies go: what is entered is what is current."""

    def __init__(self, name: str, other: str, module: str, monkeypatch: pytest.MonkeyPatch):
        self.current: list[Any] = []
        self.module: Any = types.ModuleType(name)
        self.cuda = self.module.cuda = types.SimpleNamespace()
        self.module.from_dlpack = lambda lent: Tensor(lent.__dlpack__().values, name)
        self.module.device = lambda kind, index: (kind, index)
        monkeypatch.setitem(sys.modules, name, self.module)
        monkeypatch.delitem(sys.modules, other, raising=False)
        monkeypatch.setattr(Tensor, "__module__", f"{name}.{module}")

    @contextlib.contextmanager
    def enter(self, what: Any) -> Any:
        self.current.append(what)
        try:
            yield
        finally:
            assert self.current.pop() == what


class Tensor:
    """An array of another library that only its own library can read."""

    def __init__(self, values: Any, name: str):
        self.values = values
        self.shape = values.shape
        self.dtype = f"torch.{values.dtype.name}" if name == "torch" else values.dtype
        if name != "torch":
            self.__cuda_array_interface__ = {}

    def copy_(self, other: Tensor) -> None:
        self.values[...] = other.values

    def detach(self) -> Tensor:
        return self

    def copy(self) -> Tensor:
        return Tensor(self.values.copy(), type(self).__module__.partition(".")[0])

    clone = copy

    def __setitem__(self, where: Any, other: Tensor) -> None:
        self.values[where] = other.values


CONTEXT = types.SimpleNamespace(stream=77, stage="execute")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library("torch", "cupy", "_tensor", monkeypatch)
    library.cuda.ExternalStream = lambda stream, device: ("stream", stream, device)
    library.cuda.stream = library.enter
    return library


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library("cupy", "torch", "_core", monkeypatch)
    library.cuda.Device = lambda index: library.enter(("device", index))
    library.cuda.ExternalStream = lambda stream, device: library.enter(("stream", stream, device))
    return library


@pytest.mark.contract("D1")
def test_gpu_work_is_on_xlas_stream_for_torch(torch: Library) -> None:
    seen, out, x = [], Buffer(np.zeros(3, np.float32)), Buffer(np.array([1, 2, 3], np.float32))

    def f(lent: Any, *, scale: Any, stream: Any) -> Any:
        seen.append((list(torch.current), stream, lent.__cuda_array_interface__["stream"]))
        return Tensor(torch.module.from_dlpack(lent).values * torch.module.from_dlpack(scale).values, "torch")

    filler = dlpack.Filler(f, in_place=False, with_stream=True)
    assert filler(CONTEXT, out, x, scale=Buffer(np.float32(10))) is None
    assert seen == [([("stream", 77, ("cuda", 3))], 77, 77)], f"current {seen}"
    assert out.values.tolist() == [10, 20, 30], f"results {out.values}"
    assert torch.current == [], "afterwards the stream is what it was"


@pytest.mark.contract("D1")
def test_gpu_work_is_on_xlas_stream_for_cupy(cupy: Library) -> None:
    seen, out = [], (Buffer(np.zeros(3, np.int32)), Buffer(np.zeros((), np.int32)))

    def f(x: Any) -> Any:
        seen.append((list(cupy.current), x.__cuda_array_interface__["stream"], x.__cuda_array_interface__["version"]))
        with pytest.raises(TypeError, match="on a GPU"):
            np.asarray(x)
        return Tensor(np.arange(3, dtype=np.int32), "cupy"), Tensor(np.array(7, np.int32), "cupy")

    dlpack.Filler(f, in_place=False, with_stream=False)(CONTEXT, out, Buffer(np.zeros(1)))
    assert seen == [([("device", 3), ("stream", 77, 3)], 77, 3)], f"current {seen}"
    assert [buffer.values.tolist() for buffer in out] == [[0, 1, 2], 7]
    assert cupy.current == []


@pytest.mark.contract("D1")
@pytest.mark.parametrize("in_place", [False, True])
def test_gpu_failures_leave_the_stream_and_take_the_memory_back(in_place: bool, torch: Library) -> None:
    kept = []

    def f(*lent: Any) -> Any:
        kept.extend(lent)
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        dlpack.Filler(f, in_place, False)(CONTEXT, Buffer(np.zeros(2)), Buffer(np.zeros(2)))
    assert torch.current == []
    for each in kept:
        with pytest.raises(BufferError, match="has returned"):
            each.__dlpack__()
