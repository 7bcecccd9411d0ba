"""`install`, `uninstall` and `installed`: who has asked for hostcb in place of JAX's callbacks, and what follows."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax

from .. import _compat
from .._runtime.fork import in_forked_child
from .._spec.flags import parse_bool
from . import old_module
from .redirection import CODES

VARIABLE = "HOSTCB_INSTALL"


class _Switch:
    """On while the program has asked for it, or is in one of the blocks that have."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may ask while its thread changes the state. Each change can be made twice.
        self._lock = threading.RLock()
        self._by_program = False
        self._blocks = 0
        # A part of the key of JAX's caches. Made late, since programs that were compiled before it are compiled anew.
        self._cache_key: Any = None
        # Whether anything is to be undone, and whether JAX's caches know it. An interrupt may come between
        # two steps, so the next call makes each of them again.
        self._on = False
        self._told = False

    def set_program(self, wanted: bool) -> None:
        with self._lock:
            if wanted:
                _compat.exchange.check()
            self._by_program = wanted
            self._apply()

    def add_blocks(self, number: int) -> None:
        with self._lock:
            if number > 0:
                _compat.exchange.check()
            self._blocks += number
            self._apply()

    def _apply(self) -> None:
        # A signal handler may change the wish meanwhile.
        while True:
            wanted = self._wanted()
            if wanted:
                self._on = True
                _compat.exchange.make(CODES)
                old_module.place()
                self._tell_caches(True)
            elif self._on:
                _compat.exchange.undo()
                old_module.take_away()
                self._tell_caches(False)
                self._on = False
            if self._wanted() == wanted:
                return

    def _wanted(self) -> bool:
        return self._by_program or self._blocks > 0

    def _tell_caches(self, on: bool) -> None:
        """Let JAX find no program that was traced before: one that another thread is tracing now is of both kinds."""
        if self._told != on:
            if self._cache_key is None:
                self._cache_key = jax.make_user_context()
            self._cache_key.set_global(object())
            self._told = on

    def reset_after_fork(self) -> None:
        """In a forked child: the thread that held the lock may be the parent's."""
        self._lock = threading.RLock()


_switch = _Switch()
in_forked_child(_switch.reset_after_fork)


def install() -> None:
    """Let programs that name JAX's callbacks, or JAX's old host_callback, use hostcb without a change.

    From then on, in the whole process and in all threads:

    - `jax.pure_callback`, `jax.experimental.io_callback`, `jax.debug.callback`, `jax.debug.print` and
      `jax.experimental.buffer_callback.buffer_callback` go through hostcb. JAX's functions are the same objects as
      before, so this reaches a library that took them before, wherever it keeps them. Functions get `jax.Array`s, as
      JAX gives them.
    - `jax.experimental.host_callback` can be imported, in each form of `import`, and has `id_tap`, `id_print`, `call`,
      `barrier_wait`, `stop_outfeed_receiver`, `CallbackException` and `TapFunctionException`.

    JAX traces a jitted function again when it is called the next time, so one that was compiled before uses hostcb as
    well. An executable that was compiled ahead of time (`lower`, `compile`) stays as it is. JAX's own callbacks stay in
    use in `jax.debug.breakpoint`, in `jax.debug.log` and in the functions of Pallas kernels.

    A second call changes nothing. The environment variable `HOSTCB_INSTALL=1` calls this when JAX is imported, in a
    program that never names hostcb.

    Raises:
        UnknownJaxError: this JAX has one of its callbacks in a way unknown to hostcb. Then nothing is changed.

    Follows H27. Example:

        >>> import hostcb, jax
        >>> hostcb.install()
        >>> from jax.experimental import host_callback as hcb
        >>> print(jax.jit(lambda x: jax.pure_callback(lambda x: x.at[0].set(7), x, x))(jax.numpy.ones(2)))
        [7. 1.]
        >>> hostcb.uninstall()
    """
    _switch.set_program(True)


def uninstall() -> None:
    """Undo `install`: JAX's functions have their own code again, and JAX traces jitted functions again.

    A block of `installed` that is still running, in any thread, keeps hostcb installed until its end. Without `install`
    before, this changes nothing. Programs of hostcb that have been started go on.

    Follows H27.
    """
    _switch.set_program(False)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Install hostcb for a block: `with hostcb.installed(): ...`, in the whole process, as `install` does.

    JAX traces jitted functions again in each block, so a block belongs around a program and not around each call.

    Blocks may be nested and overlap in several threads. The last one uninstalls hostcb, unless `install` was called.

    Raises:
        UnknownJaxError: as `install`.

    Follows H27. Example:

        >>> import hostcb, jax
        >>> with hostcb.installed():
        ...     jax.jit(lambda x: jax.debug.print("x is {}", x, ordered=True))(1.0)
        ...     hostcb.barrier_wait()
        x is 1.0
    """
    _switch.add_blocks(1)
    try:
        yield
    finally:
        _switch.add_blocks(-1)


def install_if_asked() -> None:
    """Install hostcb if the environment asks for it. The module `hostcb` itself calls this at the end of its import.

    Where this JAX cannot be used so, one line on standard error says why, and the program goes on with JAX's own.

    Raises:
        ValueError: the variable is no truth value.
    """
    if not parse_bool(VARIABLE, os.environ.get(VARIABLE, "")):
        return
    try:
        install()
    except _compat.UnknownJaxError as error:
        reason = " ".join(str(error).split())
        print(f"hostcb: {VARIABLE} has no effect, and JAX's own callbacks stay in use: {reason}", file=sys.stderr)
