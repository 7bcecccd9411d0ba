"""hostcb's own frames are a library's: programs name the user's line, and JAX's tracebacks leave them out."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import source_info_util

import hostcb as hcb
from hostcb._errors import frames

PACKAGE = os.path.dirname(hcb.__file__) + os.sep
X = jnp.float32(1)


def same(x: Any) -> Any:
    return np.asarray(x)


USES: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda x: hcb.id_tap(lambda *_: None, x),
    "id_print": lambda x: hcb.id_print(x),
    "call": lambda x: hcb.call(same, x, result_shape=x),
    "pure_callback": lambda x: hcb.pure_callback(same, x, x),
    "io_callback": lambda x: hcb.io_callback(same, x, x),
    "debug.callback": lambda x: hcb.debug.callback(same, x) or x,
    "debug.callback twice": lambda x: hcb.debug.callback(ordered=True)(same, x) or x,
    "debug.print": lambda x: hcb.debug.print("{}", x) or x,
    "buffer_callback": lambda x: hcb.buffer_callback(lambda *_: None, x)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(same, x)(x),
    "vmap": lambda x: jax.vmap(lambda x: hcb.call(same, x, result_shape=x, vmap_method="sequential"))(x[None])[0],
    "jvp": lambda x: jax.jvp(lambda x: hcb.id_tap(lambda *_: None, x), (x,), (x,))[0],
}


def equations(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jex.jaxprs_in_params(equation.params):
            yield from equations(inner)


@pytest.mark.parametrize("name", USES)
def test_the_source_line_of_an_equation_is_the_users(name: str) -> None:
    for equation in equations(jax.make_jaxpr(USES[name])(X).jaxpr):
        line = source_info_util.summarize(equation.source_info)
        # Some of JAX's own rules leave no line at all.
        assert not line or __file__ in line, line
    text = jax.jit(USES[name]).lower(X).as_text(debug_info=True)
    assert os.path.basename(__file__) in text
    assert PACKAGE not in text, re.findall(re.escape(PACKAGE) + r"[^\"]*", text)


def frames_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_errors_of_jax_do_not_show_hostcb() -> None:
    """Which dispatches programs (see `_hooks`), and so is in the way of each."""
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(RuntimeError) as caught:
        jax.jit(lambda x: x + 1)(deleted)
    assert not [name for name in frames_of(caught.value) if name.startswith(PACKAGE)]


@pytest.mark.parametrize("name", ["call", "pure_callback", "io_callback", "dlpack_callback"])
def test_errors_while_tracing_do_not_show_hostcb(name: str) -> None:
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        jax.jit(jax.grad(USES[name]))(X)
    frames = frames_of(caught.value)
    assert __file__ in frames
    assert not [each for each in frames if each.startswith(PACKAGE)], frames


def test_debug_nans_points_to_the_user() -> None:
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        jax.jit(lambda x: hcb.id_tap(lambda *_: None, x) / x)(jnp.float32(0))
    frames = frames_of(caught.value)
    assert __file__ in frames
    assert not [each for each in frames if each.startswith(PACKAGE)], frames
    hcb.barrier_wait()


def test_directories_of_similar_names_are_the_users() -> None:
    from jax._src import source_info_util as private

    assert not private.is_user_filename(os.path.join(PACKAGE, "_binding.py"))
    assert private.is_user_filename(PACKAGE.rstrip(os.sep) + "_of_mine" + os.sep + "module.py")


def test_the_frames_that_are_left_keep_their_order() -> None:
    def outer() -> None:
        inner()

    def inner() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:
        outer()
    frames._shorten(caught.value, lambda name: name == __file__)
    names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_the_frames_that_are_left_keep_their_order", "outer", "inner"]
