"""`dlpack_callback`: kernels of other libraries as JAX functions, without a copy (D1, D2)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ._binding import check_callable
from ._buffers import in_place as bind_in_place
from ._callback import describe
from ._kinds import DLPACK, DLPACK_WITH_EFFECT
from ._results import canonical, to_array
from ._shapes import ResultShape


def dlpack_callback(
    fn: Callable[..., Any],
    result_shape_dtypes: Any,
    *,
    in_place: bool = False,
    with_stream: bool = False,
    has_side_effect: bool = False,
    vmap_method: str | None = None,
    input_output_aliases: dict[int, int] | None = None,
    command_buffer_compatible: bool = False,
) -> Callable[..., Any]:
    """Make a JAX function of one written with another array library: NumPy, torch, CuPy, Numba, Triton.

    Operands reach it where they are, through DLPack, without a copy. On GPU nothing goes through the host, and the
    work belongs on XLA's stream: while the function runs, that stream is the current one of torch and of CuPy if they
    have been imported; `with_stream` is for libraries that want it by hand.

    Args:
        fn: called as `fn(*args, **kwargs)`, each leaf an object with `__dlpack__` (and `__array__` on CPU,
            `__cuda_array_interface__` on GPU), to be turned into an array with `np.from_dlpack`, `torch.from_dlpack`,
            `cupy.from_dlpack` and so on. Operands are only valid until it returns, and must not be written to, except
            those that share their memory with a result. It returns arrays, which are copied into the results on their
            own device, or with `in_place` writes into what it is given.
        result_shape_dtypes: a pytree whose leaves have `shape` and `dtype`, or a function that makes one from the
            arguments, given as `jax.ShapeDtypeStruct`s.
        in_place: call `fn(out, *args, **kwargs)`, with an object for each result in the tree of `result_shape_dtypes`;
            it must write them all and return nothing.
        with_stream: pass `stream=`, the address of XLA's stream as an integer, or `None` on CPU.
        has_side_effect: as for `buffer_callback`.
        vmap_method: as for `pure_callback`.
        input_output_aliases: as for `buffer_callback`.
        command_buffer_compatible: as for `buffer_callback`.

    Returns:
        A function that takes pytrees of arrays, as positional and keyword arguments, and returns the results as JAX
        arrays. Give it derivatives with `jax.custom_jvp` or `jax.custom_vjp`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `buffer_callback`.
        jax.errors.JaxRuntimeError: when the computation runs, if `fn` raises, or returns what has not the promised
            tree, shapes and dtypes.

    Follows D1 and D2. Example:

        >>> import hostcb, jax, numpy as np
        >>> def double(x):
        ...     return 2 * np.from_dlpack(x)
        >>> print(jax.jit(hostcb.dlpack_callback(double, lambda x: x))(jax.numpy.arange(3)))
        [0 2 4]
    """
    kind = DLPACK_WITH_EFFECT if has_side_effect else DLPACK
    check_callable(fn, kind, "fn")
    filler = Filler(fn, bool(in_place), bool(with_stream))

    def call(*args: Any, **kwargs: Any) -> Any:
        given = result_shape_dtypes
        if callable(given) and not hasattr(given, "shape"):
            shapes, named = jax.tree_util.tree_map(_struct, (args, kwargs))
            given = given(*shapes, **named)
        expected = ResultShape.of_dtypes(given)
        function = bind_in_place(kind, filler, expected, vmap_method, input_output_aliases, command_buffer_compatible)
        return function(*args, **kwargs)

    return call


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


@dataclasses.dataclass(frozen=True)
class Filler:
    """`fn` as a function that fills buffers; equal ones are equal, so that using one twice compiles once."""

    fn: Callable[..., Any]
    in_place: bool
    with_stream: bool

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fn

    @functools.cached_property
    def name(self) -> str:
        return describe(self.fn)

    def __call__(self, context: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
        lent: list[Lent] = []
        try:
            results = lend(out, context, lent)
            given = [lend(each, context, lent) for each in args]
            named = {name: lend(each, context, lent) for name, each in kwargs.items()} if kwargs else {}
            stream = lent[0]._stream if lent else None
            if self.with_stream:
                named["stream"] = None if stream is None else stream.address
            if stream is not None:
                with current(stream):
                    return self._run(results, given, named)
            return self._run(results, given, named)
        finally:
            for each in lent:
                each._lent = None

    def _run(self, results: Any, given: list[Any], named: dict[str, Any]) -> Any:
        if self.in_place:
            return self.fn(results, *given, **named)
        returned = self.fn(*given, **named)
        if not copied(results, returned):
            fill(results, returned, self.name)
        return None


@dataclasses.dataclass(frozen=True)
class Stream:
    """The stream of a GPU on which XLA expects the work."""

    address: int
    device: int


from_dlpack = np.from_dlpack

# In DLPack's numbering of device types.
_ON_CPU = 1


def lend(buffers: Any, context: Any, lent: list[Lent]) -> Any:
    """The same tree of what may be used until it is taken back from `lent`."""
    if not hasattr(buffers, "__dlpack__"):
        return jax.tree_util.tree_map(lambda each: lend(each, context, lent), buffers)
    one = Lent()
    one._lent = buffers
    if lent:
        # All are on one device.
        one._stream = lent[0]._stream
    else:
        device_type, device = buffers.__dlpack_device__()
        one._stream = None if device_type == _ON_CPU else Stream(int(context.stream), device)
    lent.append(one)
    return one


@contextlib.contextmanager
def current(stream: Stream) -> Iterator[None]:
    """Make `stream` the current one of the libraries that have been imported and have such a thing."""
    with contextlib.ExitStack() as stack:
        torch = sys.modules.get("torch")
        if torch is not None:
            external = torch.cuda.ExternalStream(stream.address, device=torch.device("cuda", stream.device))
            stack.enter_context(torch.cuda.stream(external))
        cupy = sys.modules.get("cupy")
        if cupy is not None:
            stack.enter_context(cupy.cuda.Device(stream.device))
            stack.enter_context(cupy.cuda.ExternalStream(stream.address, stream.device))
        yield


class Lent:
    """Device memory that a function may use until it returns, in the protocols that array libraries know."""

    __slots__ = ("_lent", "_stream")

    _lent: Any
    _stream: Stream | None

    @property
    def _buffer(self) -> Any:
        if self._lent is None:
            raise BufferError(
                "this buffer was lent to a dlpack_callback that has returned: its memory is the device's again. Copy "
                "what should be kept."
            )
        return self._lent

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._buffer.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._buffer.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __dlpack__(self, **options: Any) -> Any:
        return self._buffer.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._buffer.__dlpack_device__()
        return device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # The property, which refuses, costs a call.
        lent = self._buffer if self._lent is None else self._lent
        if self._stream is not None:
            raise TypeError(
                "this array is on a GPU: use a library for that, such as torch.from_dlpack or cupy.asarray."
            )
        # An array that `Buffer.__array__` gives keeps an object alive that the runtime then takes for another buffer.
        try:
            array = from_dlpack(lent)
        except (BufferError, RuntimeError):
            # A type that NumPy does not know by itself, such as bfloat16.
            array = np.asarray(lent)
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to make {dtype} of {array.dtype}.")
            return array.astype(dtype)
        return array.copy() if copy else array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._stream is None:
            # What probes for the protocol expects this error on CPU.
            raise AttributeError("this array is on CPU: it has no __cuda_array_interface__.")
        # With the stream, a consumer orders its own work behind what is on it.
        return {**self._buffer.__cuda_array_interface__, "version": 3, "stream": self._stream.address}

    def __repr__(self) -> str:
        if self._lent is None:
            return "Lent(returned)"
        return f"Lent({self.dtype.name}{list(self.shape)})"


def copied(results: Any, returned: Any) -> bool:
    """Copy one array into one result on CPU, if it is just right: nearly every call, and worth sparing the tree."""
    if type(results) is not Lent or results._stream is not None:
        return False
    array = np.asarray(returned._lent) if type(returned) is Lent and returned._lent is not None else returned
    if type(array) is not np.ndarray:
        return False
    result = np.asarray(results._lent)
    if array.shape != result.shape or array.dtype != result.dtype:
        return False
    np.copyto(result, array)
    return True


def fill(results: Any, returned: Any, name: str) -> None:
    """Copy what a function returned into its results, where they are.

    Raises:
        TypeError: it does not match in tree, shape or dtype, or is on another device than the results.
    """
    buffers, tree = jax.tree_util.tree_flatten(results)
    actual: Any = jax.tree_util.tree_structure(returned)
    if actual.num_leaves != len(buffers):
        raise TypeError(
            f"Mismatched number of outputs from callback. Expected: {len(buffers)}, Actual: {actual.num_leaves}. The "
            f"tree should be {tree}, and is {actual}"
        )
    for index, (buffer, leaf) in enumerate(zip(buffers, jax.tree_util.tree_leaves(returned), strict=True)):
        library = type(leaf).__module__.partition(".")[0]
        if library == "torch":
            _check(index, buffer, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
            sys.modules["torch"].from_dlpack(buffer).copy_(leaf.detach())
        elif buffer.__dlpack_device__()[0] == _ON_CPU:
            only_dlpack = hasattr(leaf, "__dlpack__") and not hasattr(leaf, "__array__")
            array = np.from_dlpack(leaf) if only_dlpack else to_array(leaf, name)
            converted = canonical(array, buffer)
            if converted is None:
                _check(index, buffer, array.shape, array.dtype.name)
            else:
                np.copyto(np.asarray(buffer), converted)
        elif hasattr(leaf, "__cuda_array_interface__") and hasattr(sys.modules.get(library), "from_dlpack"):
            _check(index, buffer, tuple(leaf.shape), np.dtype(leaf.dtype).name)
            sys.modules[library].from_dlpack(buffer)[...] = leaf
        else:
            raise TypeError(
                f"return value #{index} is a {type(leaf)}, which hostcb cannot copy on a GPU. Return torch or CuPy "
                "arrays, or write into the results with in_place=True."
            )


def _check(index: int, buffer: Lent, shape: tuple[int, ...], dtype: str) -> None:
    if shape != buffer.shape:
        raise TypeError(f"Incorrect output shape for return value #{index}: Expected: {buffer.shape}, Actual: {shape}")
    if dtype != buffer.dtype.name:
        raise TypeError(
            f"Incorrect output dtype for return value #{index}: Expected: {buffer.dtype.name}, Actual: {dtype}"
        )
