"""`dlpack_callback`: kernels of other libraries as JAX functions, without a copy (D1, D2)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .._dlpack.lent import Lent, copied, current, fill, lend, stream_of
from .._errors.frames import leave_out_frames, leaving_out_frames
from .._primitive.batching import ExternalMethod
from .._primitive.binding import as_array, travels
from .._primitive.shape_functions import is_shape_function, shapes_by
from .._spec.kinds import DLPACK, DLPACK_WITH_EFFECT, Kind
from .._spec.naming import check_callable, describe
from .buffers import in_place as bind_in_place


def dlpack_callback(
    fn: Callable[..., Any],
    result_shape_dtypes: Any,
    *,
    in_place: bool = False,
    with_stream: bool = False,
    has_side_effect: bool = False,
    vmap_method: ExternalMethod | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
    command_buffer_compatible: bool = False,
) -> Callable[..., Any]:
    """Make a JAX function from one written with another array library: NumPy, torch, CuPy, Numba, Triton.

    It gets the operands on their device, through DLPack, without a copy. On GPU nothing goes through the host, and the
    work belongs on XLA's stream. While the function runs, that stream is the current stream of torch and CuPy, if they
    have been imported; for other libraries, `with_stream` passes its address.

    Args:
        fn: called as `fn(*args, **kwargs)`, each leaf an object with `__dlpack__` (and `__array__` on CPU,
            `__cuda_array_interface__` on GPU), to be turned into an array with `np.from_dlpack`, `torch.from_dlpack`,
            `cupy.from_dlpack` and so on. `np.from_dlpack` does not know bfloat16 and float8; on CPU, `np.asarray` does.
            Operands are only valid until `fn` returns. `fn` must not write to them, except those that share their
            memory with a result. It returns arrays, which hostcb copies into the results on their own device; with
            `in_place` it writes the results itself.
        result_shape_dtypes: a pytree whose leaves have `shape` and `dtype`, or a function that makes one from the
            arguments, which it gets as `jax.ShapeDtypeStruct`s.
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
        jax.errors.JaxRuntimeError: when the computation runs, if `fn` raises, or if its result has another tree, shape
            or dtype than promised.

    Follows D1 and D2. Example:

        >>> import hostcb, jax, numpy as np
        >>> def double(x):
        ...     return 2 * np.from_dlpack(x)
        >>> print(jax.jit(hostcb.dlpack_callback(double, lambda x: x))(jax.numpy.arange(3)))
        [0 2 4]
    """
    kind = DLPACK_WITH_EFFECT if has_side_effect else DLPACK
    try:
        check_callable(fn, kind.name, "fn")
    except Exception as error:
        leave_out_frames(error)
        raise
    filler = Filler(fn, bool(in_place), bool(with_stream), bool(input_output_aliases))

    def call(*args: Any, **kwargs: Any) -> Any:
        if filler.with_stream and "stream" in kwargs:
            raise TypeError(
                f"{kind.name}: {filler.name} was given a keyword argument `stream`, but with_stream=True passes "
                "`stream=`, the address of XLA's stream. Rename the argument, or drop with_stream=True."
            )
        shapes = result_shape_dtypes
        if is_shape_function(shapes):
            operands, named = jax.tree_util.tree_map(functools.partial(_struct, kind, fn), (args, kwargs))
            shapes = shapes_by(kind, fn, shapes, operands, named)
        function = bind_in_place(kind, filler, shapes, vmap_method, input_output_aliases, command_buffer_compatible)
        return function(*args, **kwargs)

    return leaving_out_frames(call)


def _struct(kind: Kind, fn: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(as_array(kind, fn, leaf) if travels(leaf) else leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


@dataclasses.dataclass(frozen=True)
class Filler:
    """`fn` as an in-place function; fillers of equal functions are equal, so using one twice compiles once."""

    fn: Callable[..., Any]
    in_place: bool
    with_stream: bool
    shares_memory: bool = False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fn

    @functools.cached_property
    def name(self) -> str:
        return describe(self.fn)

    def __call__(self, context: Any, out: Any, /, *args: Any, **kwargs: Any) -> Any:
        lent: list[Lent] = []
        try:
            results = lend(out, context, lent)
            operands = [lend(each, context, lent) for each in args]
            named = {name: lend(each, context, lent) for name, each in kwargs.items()} if kwargs else {}
            stream = stream_of(lent)
            if self.with_stream:
                named["stream"] = None if stream is None else stream.address
            if stream is not None:
                with current(stream):
                    return self._run(results, operands, named)
            return self._run(results, operands, named)
        finally:
            for each in lent:
                each._lent = None

    @property
    def on_cpu(self) -> Callable[..., Any]:
        """The quicker form for one result and no keywords on CPU, as in nearly every call: a third of the cost.

        `_lowering.views.in_place` asks for it.
        """
        if self.with_stream:
            return self
        fn, fill_one = self.fn, None if self.in_place else self._fill_one

        def call(_: Any, out: Any, *buffers: Any) -> Any:
            result = Lent()
            result._lent = out
            operands = []
            try:
                for buffer in buffers:
                    operands.append(operand := Lent())
                    operand._lent = buffer
                if fill_one is None:
                    return fn(result, *operands)
                return fill_one(result, fn(*operands))
            finally:
                result._lent = None
                for operand in operands:
                    operand._lent = None

        return call

    def _run(self, results: Any, operands: list[Any], named: dict[str, Any]) -> Any:
        if self.in_place:
            return self.fn(results, *operands, **named)
        self._fill_one(results, self.fn(*operands, **named))
        return None

    def _fill_one(self, results: Any, returned: Any) -> None:
        if not copied(results, returned):
            fill(results, returned, self.name, self.shares_memory)
