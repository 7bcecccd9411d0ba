"""`dlpack_callback`: kernels of other libraries as JAX functions, without a copy (D1, D2)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from ._binding import check_callable
from ._buffers import in_place as bind_in_place
from ._callback import describe
from ._kinds import DLPACK, DLPACK_WITH_EFFECT
from ._lent import Lent, copied, current, fill, lend, stream_of
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
            stream = stream_of(lent)
            if self.with_stream:
                named["stream"] = None if stream is None else stream.address
            if stream is not None:
                with current(stream):
                    return self._run(results, given, named)
            return self._run(results, given, named)
        finally:
            for each in lent:
                each._lent = None

    @property
    def on_cpu(self) -> Callable[..., Any]:
        """The same for one result and no keywords on CPU, as nearly every call is: a third of the cost.

        `_views.in_place` asks for it.
        """
        if self.with_stream:
            return self
        fn, fill_one = self.fn, None if self.in_place else self._fill_one

        def call(_: Any, out: Any, *buffers: Any) -> Any:
            result = Lent()
            result._lent = out
            given = []
            try:
                for buffer in buffers:
                    given.append(one := Lent())
                    one._lent = buffer
                if fill_one is None:
                    return fn(result, *given)
                return fill_one(result, fn(*given))
            finally:
                result._lent = None
                for one in given:
                    one._lent = None

        return call

    def _run(self, results: Any, given: list[Any], named: dict[str, Any]) -> Any:
        if self.in_place:
            return self.fn(results, *given, **named)
        self._fill_one(results, self.fn(*given, **named))
        return None

    def _fill_one(self, results: Any, returned: Any) -> None:
        if not copied(results, returned):
            fill(results, returned, self.name)
