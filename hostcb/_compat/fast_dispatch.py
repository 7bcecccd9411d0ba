"""JAX's fast dispatch, in C++, for programs with hostcb's tokens: its begin and its end.

JAX keeps a program with an effect out of its fast dispatch, which runs no Python code. Three objects change that:

1. The token operand is the same array at each dispatch, so it can be one of the arguments that JAX calls constant. The
   layout that hostcb gives for it is another one than the array has. So JAX asks its table of functions that put an
   argument on the devices. This is the begin. hostcb's function in the table returns a copy of the token operand.
2. JAX keeps this copy until the C++ function returns or raises. Its death is the end.
3. The tree of the results begins with a node of hostcb, whose only child is the token. JAX builds the tree at the end
   of a dispatch that does not raise, and this node before the user's.

JAX promises none of this. So `_Trial` first tries it, with a program that has no callback.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

import jax
from jax.experimental.layout import Layout

from .dispatch import EXECUTOR, modules_of, program_among
from .registry import Cost, called_with, first_lost, known_as, private
from .runtime import mesh_is_set

_for_fast_dispatch = functools.partial(
    private,
    without="JAX dispatches programs of callbacks with effects in Python, in ten times the time.",
    promises=("D3",),
    cost=Cost.COMFORT,
)
_FAST_PATH = _for_fast_dispatch(
    "jax._src.pjit:_get_fastpath_data",
    "Decides which programs take JAX's fast dispatch.",
    signature=known_as("executable out_tree args_flat out_flat effects consts_for_constvars pgle_profiler const_args"),
)
_DATA = _for_fast_dispatch(
    "jax._src.interpreters.pxla:MeshExecutableFastpathData",
    "Describes a program to the fast dispatch.",
    attributes=(
        *("in_shardings", "in_device_local_layouts", "kept_var_bitvec", "const_args"),
        *("out_pytree_def", "out_shardings", "out_avals", "out_committed", "_replace"),
    ),
)
_EXECUTABLE = _for_fast_dispatch(
    "jax._src.interpreters.pxla:MeshExecutable",
    "Leads to the executor of a program.",
    attributes=("unsafe_call", "_unsafe_call"),
)
_REGISTRY = _for_fast_dispatch(
    "jax._src.tree_util:dispatch_registry", "Describes the tree of the results.", methods={"flatten": called_with(1)}
)
_ARRAY = _for_fast_dispatch(
    "jax._src.array:ArrayImpl", "The class of the token operand.", methods={"clone": called_with(1)}
)
_SHARD = _for_fast_dispatch(
    "jax._src.interpreters.pxla:shard_arg_handlers",
    "Tells the begin of a fast dispatch.",
    signature=known_as("xs shardings layouts copy_semantics"),
    key=_ARRAY.value,
)
_unknown = first_lost(_FAST_PATH, _DATA, _EXECUTABLE, _REGISTRY, _ARRAY, _SHARD)


# The classes of nodes that JAX knows by itself, beside named tuples.
_PLAIN = (type(None), tuple, list, dict, collections.OrderedDict, collections.defaultdict)


class FastDispatches(Protocol):
    """The methods that are called around the fast dispatches of a program with a token of hostcb."""

    def takes_fast(self, program: Any, devices: Sequence[Any], modules: Callable[[], Sequence[Any]]) -> bool:
        """Whether a program of these HLO modules, with hostcb's order, may take the fast dispatch on these devices."""

    def fast_token(self, devices: Sequence[Any]) -> Any:
        """The token operand of each execution on these devices."""

    def begin_fast(self, program: Any, devices: tuple[Any, ...], token: Any) -> list[Any]:
        """Return a copy of the token operand, in a list. An exception that it raises ends the dispatch.

        The copy lives until the dispatch has returned or raised. No variable may hold it.
        """

    def end_fast(self, program: Any, token: Any, caller: FrameType | None) -> None:
        """Called at the end of a dispatch that did not raise. An exception that it raises replaces the results."""


@dataclasses.dataclass(eq=False)
class _Ends:
    """The two ends of the fast dispatches of one program, and its token operand, for which this is the layout."""

    token: Any
    begin: Callable[[Any], list[Any]]
    end: Callable[[Any, FrameType | None], None]

    def __post_init__(self) -> None:
        # The token has one axis, so its own form is another one.
        self._form = Layout((1, 0))._to_xla_layout(self.token.dtype)

    def _to_xla_layout(self, _: Any) -> Any:
        """Return a form; the fast dispatch compares it with that of the token operand."""
        return self._form


class _End:
    """The node of a tree of results whose child is the token. There are no objects of this class."""


class _Results:
    """The root of such a tree: an `_End`, and what the program returns. There are no objects of this class either."""


def _end(ends: _Ends, children: Sequence[Any]) -> Any:
    (token,) = children
    ends.end(token, sys._getframe().f_back)


def _results(_: None, children: Sequence[Any]) -> Any:
    return children[1]


def _no_children(_: Any) -> Any:
    raise TypeError("the nodes of a tree of results are never objects")


jax.tree_util.register_pytree_node(_End, _no_children, _end)
jax.tree_util.register_pytree_node(_Results, _no_children, _results)


def _tree_with_end(ends: _Ends, results: Any) -> Any:
    """Return the tree of a token and of `results`, the tree of what a program returns."""
    registry = _REGISTRY.value
    leaf = registry.flatten(0)[1]
    end = leaf.from_node_data_and_children(registry, (_End, ends), [leaf])
    return leaf.from_node_data_and_children(registry, (_Results, None), [end, results])


def _with_ends(data: Any, ends: _Ends) -> Any:
    """Return the data of a fast dispatch with the token as the first operand and the first result."""
    token = ends.token
    return data._replace(
        in_shardings=[token.sharding, *data.in_shardings],
        in_device_local_layouts=[ends, *data.in_device_local_layouts],
        kept_var_bitvec=[True, *data.kept_var_bitvec],
        const_args=[token, *data.const_args],
        out_pytree_def=_tree_with_end(ends, data.out_pytree_def),
        out_shardings=[token.sharding, *data.out_shardings],
        out_avals=[token.aval, *data.out_avals],
        out_committed=[True, *data.out_committed],
    )


def _classes_of(tree: Any) -> Iterator[type]:
    """Yield the classes of the nodes of a tree of results."""
    data = tree.node_data()
    if data is not None:
        yield data[0]
    for child in tree.children():
        yield from _classes_of(child)


def _is_plain(node: type) -> bool:
    """Return whether making a node of this class runs no code of the user."""
    named = issubclass(node, tuple) and hasattr(node, "_fields") and node.__init__ is object.__init__
    return node in _PLAIN or (named and getattr(node.__new__, "__module__", "").startswith("namedtuple_"))


class _RefusalError(Exception):
    """Raised at an end of the trial's dispatch, which must let it pass."""


@dataclasses.dataclass(eq=False)
class _TrialEnds(_Ends):
    """Tells also when JAX builds a node of the user."""

    user: Callable[[], None]


class _Users:
    """A node of the user in the trial's tree of results."""


def _users(ends: _TrialEnds, _: Any) -> Any:
    ends.user()
    return "results"


jax.tree_util.register_pytree_node(_Users, _no_children, _users)


class _Trial(threading.local):
    """A program without callbacks that shows whether the fast dispatch of this JAX has the two ends.

    Its only operand stands for the token operand, its first result for the token, and its second for the results.
    """

    ends: _Ends | None = None

    def data(self, data: Any) -> Any:
        """Return the data of the trial's program."""
        ends: Any = self.ends
        leaf = _REGISTRY.value.flatten(0)[1]
        users = leaf.from_node_data_and_children(_REGISTRY.value, (_Users, ends), [leaf])
        return data._replace(in_device_local_layouts=[ends], out_pytree_def=_tree_with_end(ends, users))

    def works(self, token: Any) -> bool:
        """Return whether both ends are reported in time, whether each may raise, and whether the copy lives so long."""
        told: list[Any] = []
        refusing: list[str] = []
        copies: list[weakref.ref[Any]] = []

        def tell(end: str) -> None:
            told.append((end, [copy() is not None for copy in copies[-1:]]))
            if end in refusing:
                raise _RefusalError

        def begin(token: Any) -> list[Any]:
            copy = token.clone()
            copies.append(weakref.ref(copy))
            tell("begin")
            return [copy]

        self.ends = _TrialEnds(token, begin, lambda *_: tell("end"), lambda: tell("user"))

        # Each trial has a function of its own: JAX keeps one program of a function for all threads.
        def hostcb_trial(token: Any) -> Any:
            return token.copy(), token.copy()

        try:
            step = jax.jit(hostcb_trial)
            # The first dispatch is always in Python.
            step(token)
            once = [("begin", [True]), ("end", [True]), ("user", [True])]
            if [step(token), step(token)] != ["results"] * 2 or told != 2 * once:
                return False
            for end in ("end", "begin"):
                refusing.append(end)
                try:
                    step(token)
                except _RefusalError:
                    continue
                return False
            ends = [("begin", [True]), ("end", [True]), ("begin", [True])]
            return told[6:] == ends and len(copies) == 4 and not any(copy() is not None for copy in copies)
        except Exception:
            # This JAX takes hostcb's objects for something else.
            return False
        finally:
            self.ends = None


# After so many trials without success programs are dispatched in Python; one may fail by an option of JAX.
MOST_TRIALS = 3


def enable_fast_dispatch(
    own_effects: Sequence[Any], harmless: Sequence[type], program_class: type, dispatches: FastDispatches
) -> None:
    """Let programs with a token of hostcb take it, where `dispatches` allows that and this JAX reports both ends.

    The token is of one of `own_effects`. They may have other effects of the classes `harmless`.
    """
    if _unknown is not None:
        return
    plain, plain_shard, trial = _FAST_PATH.value, _SHARD.value, _Trial()
    # For one device, and for several: the results of the trials.
    trials: dict[bool, list[bool]] = {True: [], False: []}

    def program_of(executable: Any, effects: Any) -> Any:
        """Return the program of an executable if it has a token of hostcb and harmless effects alone, or None."""
        executor = getattr(executable, "unsafe_call", None)
        if not isinstance(executor, EXECUTOR.value) or len(executor.ordered_effects) != 1:
            return None
        if executor.ordered_effects[0] not in own_effects:
            return None
        if not all(each in own_effects or isinstance(each, tuple(harmless)) for each in effects):
            return None
        return program_among(executor, program_class)

    def ends_with_zeros(executable: Any) -> bool:
        """Whether its program is one of pure callbacks on a CPU device; see `_runtime.postponed`."""
        executor = getattr(executable, "unsafe_call", None)
        if not isinstance(executor, EXECUTOR.value) or program_among(executor, program_class) is None:
            return False
        devices = executor._local_devices
        return len(devices) == 1 and devices[0].platform == "cpu"

    def fast_path_data(
        executable: Any, out_tree: Any, args_flat: Any, out_flat: Any, effects: Any, *others: Any, **named: Any
    ) -> Any:
        if trial.ends is not None:
            return trial.data(plain(executable, out_tree, args_flat, out_flat, effects, *others, **named))
        program = program_of(executable, effects)
        if program is None:
            # At the end of such a dispatch the error of a failed callback replaces the results, which are zeros until
            # then: no class of the user may see these.
            if ends_with_zeros(executable) and not all(map(_is_plain, _classes_of(out_tree))):
                return None
            return plain(executable, out_tree, args_flat, out_flat, effects, *others, **named)
        executor = executable.unsafe_call
        devices = tuple(executor._local_devices)
        if mesh_is_set() or not dispatches.takes_fast(program, devices, functools.partial(modules_of, executor)):
            return None
        token = dispatches.fast_token(devices)
        tried = trials[len(devices) == 1]
        if True not in tried and len(tried) < MOST_TRIALS:
            tried.append(trial.works(token))
        if True not in tried:
            return None
        without_effect = copy.copy(executable)
        without_effect._unsafe_call = copy.copy(executor)
        without_effect._unsafe_call.ordered_effects = []
        without_effect._unsafe_call.has_unordered_effects = False
        data = plain(without_effect, out_tree, args_flat, out_flat, effects, *others, **named)
        if data is None:
            return None
        return _with_ends(
            data,
            _Ends(
                token,
                functools.partial(dispatches.begin_fast, program, devices),
                functools.partial(dispatches.end_fast, program),
            ),
        )

    def shard_array(xs: Any, shardings: Any, layouts: Any, copy_semantics: Any) -> Any:
        if len(layouts) == 1 and isinstance(layouts[0], _Ends):
            return layouts[0].begin(xs[0])
        return plain_shard(xs, shardings, layouts, copy_semantics)

    _FAST_PATH.put(fast_path_data)
    _SHARD.put(shard_array)
