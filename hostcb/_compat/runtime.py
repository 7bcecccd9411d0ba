"""JAX's clients, meshes and options."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax

from .registry import Cost, called_with, private

logger = logging.getLogger("hostcb")

_OLD_DEVICES = "After clear_backends(), order and threads of the devices of before are kept; do not use it."

_for_meshes = functools.partial(
    private,
    without="JAX that runs in a callback could take the mesh of the program for its own.",
    promises=("H5",),
    cost=Cost.SOME,
)
_MESH = _for_meshes(
    "jax._src.mesh:get_concrete_mesh",
    "Tells whether jax.set_mesh chose a mesh for the program.",
    signature=called_with(0),
)
_USE_MESH = _for_meshes(
    "jax._src.sharding_impls:_internal_use_concrete_mesh",
    "Leaves that mesh while callbacks run.",
    signature=called_with(1),
)
_NO_MESH = _for_meshes("jax._src.mesh:empty_concrete_mesh", "Does the same.")
_NO_ABSTRACT_MESH = _for_meshes("jax._src.mesh:empty_abstract_mesh", "Does the same.")
_BACKENDS_EXIST = private(
    "jax._src.xla_bridge:backends_are_initialized",
    "Says whether JAX has made its clients.",
    "If JAX refuses the native extension, JAX may not start its CPU devices; set HOSTCB_NATIVE=0 in the environment.",
    ("H24",),
    Cost.COMFORT,
    called_with(0),
)
_CPU_FACTORY = private(
    "jax._src.xla_bridge:_backend_factories",
    "Tells when JAX starts its CPU devices, and so when their number is final.",
    "A callback that runs JAX itself may deadlock on several CPU devices; set PJRT_NPROC in the environment.",
    ("H9",),
    Cost.COMFORT,
    attributes=("factory",),
    key="cpu",
)
_CLIENTS = private(
    "jax._src.xla_bridge:_backends", "Tells that JAX has replaced its clients.", _OLD_DEVICES, ("H9",), Cost.COMFORT
)
_CLEAR = private(
    "jax._src.xla_bridge:_clear_backends",
    "Tells that JAX has forgotten its clients.",
    "hostcb learns of clear_backends() only when JAX clears its caches next.",
    ("H9",),
    Cost.COMFORT,
    called_with(0),
)
_CACHES = private(
    "jax._src.util:register_cache",
    "Tells the same when JAX clears its caches next.",
    "hostcb learns of clear_backends() from one function of JAX alone.",
    ("H9",),
    Cost.COMFORT,
    called_with(2),
)
_OPTIONS = private(
    "jax:config._value_holders",
    "Lets jax.config.update reach the options of hostcb.",
    "jax.config.update does not know the options of hostcb; set them by environment variables or absl flags.",
    ("H16",),
    Cost.COMFORT,
    attributes=("__setitem__",),
)

_leave = [entry for entry in (_MESH, _USE_MESH, _NO_MESH, _NO_ABSTRACT_MESH) if entry.lost]
_concrete_mesh = _MESH.value
_abstract_mesh = jax.sharding.get_abstract_mesh
_none, _no_abstract = _NO_MESH.value, _NO_ABSTRACT_MESH.value


def without_mesh() -> contextlib.AbstractContextManager[None]:
    """Leave the mesh that `jax.set_mesh` chose for the program: a callback in this thread does not run on that mesh."""
    return _empty_mesh() if mesh_is_set() else contextlib.nullcontext()


def mesh_is_set() -> bool:
    """Return whether `jax.set_mesh` chose a mesh for the programs of this thread."""
    concrete, abstract = _concrete_mesh(), _abstract_mesh()
    # Each pure callback asks, and to compare is quicker than to multiply the sizes of the axes.
    return not ((concrete is _none or concrete.empty) and (abstract is _no_abstract or abstract.empty))


if _leave:

    def without_mesh() -> contextlib.AbstractContextManager[None]:
        """Refuse a program if a mesh is set, since hostcb cannot leave the mesh with this JAX."""
        if mesh_is_set():
            raise _leave[0].refusal("a host callback where jax.set_mesh has chosen a mesh")
        return contextlib.nullcontext()

    def mesh_is_set() -> bool:
        """Return whether a mesh is set, as far as this JAX knows."""
        return not jax.sharding.get_abstract_mesh().empty


@contextlib.contextmanager
def _empty_mesh() -> Iterator[None]:
    with _USE_MESH.value(_NO_MESH.value), jax.sharding.use_abstract_mesh(_NO_ABSTRACT_MESH.value):
        yield


def forced_cpu_devices() -> int:
    """The number of CPU devices that flags and options ask for now."""
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    option = getattr(jax.config, "jax_num_cpu_devices", -1)
    return max(int(flag.group(1)) if flag else 1, option)


def while_cpu_client_is_made(context: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Let JAX make each of its CPU clients in a new `context`; never, if this JAX lacks the table of its factories."""
    if not _CPU_FACTORY.holds:
        return
    registration = _CPU_FACTORY.value
    plain = registration.factory

    @functools.wraps(plain)
    def making(*args: Any, **kwargs: Any) -> Any:
        with context():
            return plain(*args, **kwargs)

    registration.factory = making


def backends_exist() -> bool:
    """Whether JAX has already made its clients, so that a change of their environment variables is too late."""
    try:
        return bool(_BACKENDS_EXIST.value())
    except Exception:
        # This JAX lacks the function, or something that the function reads.
        return True


class _Clearing:
    """Calls functions after `jax.extend.backend.clear_backends`, for which JAX has no hook.

    That function first forgets JAX's clients, and then clears JAX's caches. This object is registered as one of these
    caches. It watches both steps, in case a release of JAX changes one of them, and calls each function only once.
    """

    def __init__(self) -> None:
        self._functions: list[Callable[[], None]] = []
        self._clients = _CLIENTS.value
        self._installed = False

    def tell(self, function: Callable[[], None]) -> None:
        if not self._installed:
            self._installed = True
            self._install()
        self._functions.append(function)

    def _install(self) -> None:
        if _CLIENTS.lost:
            return
        if _CACHES.holds:
            _CACHES.value(self, "what hostcb knows of devices")
        if _CLEAR.holds:
            plain = _CLEAR.value

            def clearing(*args: Any, **kwargs: Any) -> Any:
                result = plain(*args, **kwargs)
                self.cache_clear()
                return result

            _CLEAR.put(clearing)

    # The methods that JAX calls on a cache.

    def cache_clear(self) -> None:
        # JAX replaces this dictionary when it clears its backends, and at no other time.
        clients = _CLIENTS.now()
        if clients is self._clients:
            return
        self._clients = clients
        for function in self._functions:
            try:
                function()
            except Exception:
                # An exception here would stop JAX before it has cleared all caches, which refer to the old clients.
                logger.exception("%s failed after JAX had cleared its backends", function)

    def cache_info(self) -> None:
        """Return nothing: JAX expects this method of a cache."""

    def cache_keys(self) -> list[Any]:
        return []


_clearing = _Clearing()


def on_backends_cleared(function: Callable[[], None]) -> None:
    """Call `function` whenever JAX has forgotten its clients and all of their devices.

    `function` must not ask JAX for devices: JAX's caches return the old devices until `function` has returned.
    """
    _clearing.tell(function)


def clearing_is_told() -> bool:
    """Whether the functions of `on_backends_cleared` are called; if not, hostcb's caches may hold old devices."""
    return _CLIENTS.holds


class FlagHolder(Protocol):
    def _set(self, value: Any) -> None: ...


def register_config_option(name: str, holder: FlagHolder) -> None:
    """Let `jax.config.update(name, value)` set hostcb's flag, as it once set the flag of JAX's host_callback."""
    if _OPTIONS.holds:
        _OPTIONS.value[name] = holder
