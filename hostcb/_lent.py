"""Device memory as a function may use it until it returns (D1, D2)."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ._results import canonical, to_array


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
    if lent:
        # All are on one device.
        stream = stream_of(lent)
    else:
        device_type, device = buffers.__dlpack_device__()
        stream = None if device_type == _ON_CPU else Stream(int(context.stream), device)
    one = Lent() if stream is None else LentOnGpu(stream)
    one._lent = buffers
    lent.append(one)
    return one


def stream_of(lent: Sequence[Lent]) -> Stream | None:
    """The stream on which work on what is lent belongs; None on CPU, or for nothing."""
    return lent[0].stream if lent and isinstance(lent[0], LentOnGpu) else None


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

    __slots__ = ("_lent",)

    _lent: Any

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

    def __repr__(self) -> str:
        if self._lent is None:
            return "Lent(returned)"
        return f"Lent({self.dtype.name}{list(self.shape)})"


class LentOnGpu(Lent):
    """The same on a GPU, with the stream on which XLA expects the work."""

    __slots__ = ("stream",)

    def __init__(self, stream: Stream):
        self.stream = stream

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._buffer  # noqa: B018 - refuses what has been taken back
        raise TypeError("this array is on a GPU: use a library for that, such as torch.from_dlpack or cupy.asarray.")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # With the stream, a consumer orders its own work behind what is on it.
        return {**self._buffer.__cuda_array_interface__, "version": 3, "stream": self.stream.address}


def copied(results: Any, returned: Any) -> bool:
    """Copy one array into one result on CPU, if it is just right: nearly every call, and worth sparing the tree."""
    if type(results) is not Lent:
        return False
    array = returned._lent.__array__() if type(returned) is Lent and returned._lent is not None else returned
    if type(array) is not np.ndarray:
        return False
    result = results._lent.__array__()
    if array.shape != result.shape or array.dtype != result.dtype:
        return False
    result[...] = array
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
