"""Device memory that a user function may use until it returns (D1, D2)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._errors.refusals import in_containers, instead, mismatched, text_of
from .._runtime.results import canonical, different, mismatch, out_of_range, same_names, to_array
from .from_dlpack import view


@dataclasses.dataclass(frozen=True)
class Stream:
    """The GPU stream on which XLA expects the work."""

    address: int
    device: int


# DLPack's device type for a CPU.
_ON_CPU = 1


def lend(buffers: Any, context: Any, lent: list[Lent]) -> Any:
    """Wrap each buffer of a tree in a `Lent`, and append these to `lent`; the caller takes them back from there."""
    if not jax.tree_util.all_leaves((buffers,)):
        return jax.tree_util.tree_map(lambda each: lend(each, context, lent), buffers)
    if isinstance(buffers, np.ndarray):
        # A float0 leaf, which has no device memory.
        return buffers
    if lent:
        # All buffers are on one device.
        stream = stream_of(lent)
    else:
        device_type, device = buffers.__dlpack_device__()
        stream = None if device_type == _ON_CPU else Stream(int(context.stream), device)
    one = Lent() if stream is None else LentOnGpu(stream)
    one._lent = buffers
    lent.append(one)
    return one


def stream_of(lent: Sequence[Lent]) -> Stream | None:
    """Return the stream for work on the lent buffers; None on CPU, or if there are no buffers."""
    return lent[0].stream if lent and isinstance(lent[0], LentOnGpu) else None


@contextlib.contextmanager
def current(stream: Stream) -> Iterator[None]:
    """Make `stream` the current stream of torch and CuPy, if they have been imported."""
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
    """Device memory that a user function may use until it returns, through the protocols of array libraries."""

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

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __dlpack__(self, **options: Any) -> Any:
        return self._buffer.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._buffer.__dlpack_device__()
        if kind == _ON_CPU and jax.process_count() > 1:
            # The runtime gives the device's global id, but DLPack means the number within this process.
            number = next((each.local_hardware_id for each in jax.local_devices(backend="cpu") if each.id == number), 0)
        return kind, number

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # The property costs a call, so it is used only to raise.
        lent = self._buffer if self._lent is None else self._lent
        # Not `Buffer.__array__`: its array keeps an object alive that the runtime mistakes for a later buffer.
        array = view(lent)
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
    """GPU memory that a user function may use until it returns, with the stream on which XLA expects the work."""

    __slots__ = ("stream",)

    def __init__(self, stream: Stream):
        self.stream = stream

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._buffer  # noqa: B018 - raises if the callback has returned
        raise TypeError("this array is on a GPU: use a library for that, such as torch.from_dlpack or cupy.asarray.")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # The stream lets a consumer order its own work after the work on that stream.
        return {**self._buffer.__cuda_array_interface__, "version": 3, "stream": self.stream.address}


def copied(results: Any, returned: Any) -> bool:
    """Copy one array of matching type into one result on CPU, and return whether this was possible.

    Nearly every call is like that and needs no tree.
    """
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


def fill(results: Any, returned: Any, name: str, shares_memory: bool = False) -> None:
    """Copy the arrays that a function returned into its results, on their device.

    Args:
        results: the tree of `Lent` objects for the results.
        returned: the tree of arrays that the function returned.
        name: the function's name.
        shares_memory: whether results share memory with operands. Writing a result may then change a returned operand
            or view of one, so all returned arrays are copied before any result is written.

    Raises:
        TypeError: `returned` does not match in tree, shape or dtype, or is on another device than the results.
    """
    buffers, tree = jax.tree_util.tree_flatten(results)
    actual: Any = jax.tree_util.tree_structure(returned)

    def refuse(text: str, why: str | None = None) -> TypeError:
        reason = f": {why.partition(',')[0]}" if why else ""
        return mismatched(text, f"{instead(returned, in_containers(tree, buffers))}{reason}")

    def check(index: int, shape: tuple[int, ...], dtype: str, why: str | None = None) -> None:
        wrong = different(index, buffers[index], shape, dtype, why)
        if wrong is not None:
            raise refuse(wrong, why)

    if actual != tree and not same_names(returned, tree):
        raise refuse(f"{mismatch(actual, tree)}. The tree should be {text_of(tree)}, and is {text_of(actual)}")
    copies: list[tuple[Callable[[Any], None], Any]] = []
    for index, (buffer, leaf) in enumerate(zip(buffers, jax.tree_util.tree_leaves(returned), strict=True)):
        library = type(leaf).__module__.partition(".")[0]
        if library == "torch":
            check(index, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
            source = leaf.detach()
            target = sys.modules["torch"].from_dlpack(buffer)
            copies.append((target.copy_, source.clone() if shares_memory else source))
        elif buffer.__dlpack_device__()[0] == _ON_CPU:
            only_dlpack = hasattr(leaf, "__dlpack__") and not hasattr(leaf, "__array__")
            array = view(leaf) if only_dlpack else to_array(leaf, name)
            converted = canonical(array, buffer)
            if converted is None:
                check(index, array.shape, array.dtype.name, out_of_range(array, buffer))
            else:
                target = np.asarray(buffer)
                copies.append((functools.partial(np.copyto, target), converted.copy() if shares_memory else converted))
        elif hasattr(leaf, "__cuda_array_interface__") and hasattr(sys.modules.get(library), "from_dlpack"):
            check(index, tuple(leaf.shape), np.dtype(leaf.dtype).name)
            target = sys.modules[library].from_dlpack(buffer)
            copies.append((functools.partial(target.__setitem__, ...), leaf.copy() if shares_memory else leaf))
        else:
            raise refuse(
                f"return value #{index} is a {type(leaf)}, which hostcb cannot copy on a GPU. Return torch or CuPy "
                "arrays, or write into the results with in_place=True."
            )
    for write, source in copies:
        write(source)
