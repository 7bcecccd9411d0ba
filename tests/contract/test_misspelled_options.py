"""Arguments that a public function does not take, and texts made while JAX traces, are refused with what was meant."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hostcb

hcb: Any = hostcb
X = np.arange(3, dtype=np.float32)
LIKE = jax.ShapeDtypeStruct((3,), np.float32)
GONE = "has no option 'callback_flavor': hostcb has one implementation of callbacks: remove the option."


def tapped(value: Any, transforms: Any) -> None:
    """It does nothing."""


def same(x: Any) -> Any:
    return x


MISSPELLED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no name": (lambda: hcb.barrier_wait(timeout="x"), TypeError, "barrier_wait: timeout"),
    "printed option": (lambda: hcb.id_print(X, treshold=3), TypeError,
                       "id_print has no option 'treshold'; did you mean threshold? Rename the label if it is one."),
    "printed devices": (lambda: hcb.id_print(X, tap_with_devices=True), TypeError, "did you mean tap_with_device?"),
    "flavor of a print": (lambda: hcb.id_print(X, callback_flavor=None), TypeError, f"id_print {GONE}"),
    "order": (lambda: hcb.debug.print("{x}", x=X, order=True), ValueError,
              "debug.print has no option 'order'; did you mean ordered?"),
    "ordered": (lambda: hcb.debug.callback(same, X, ordered="yes"), TypeError,
                "debug.callback: ordered must be True or False, got 'yes'"),
    "partitioned": (lambda: hcb.debug.print("{x}", x=X, partitioned="no"), TypeError, "partitioned must be True or"),
    "io": (lambda: hcb.io_callback(same, LIKE, X, ordered="no"), TypeError, "io_callback: ordered must be True or"),
}  # fmt: skip


@pytest.mark.contract("H2", "X4")
@pytest.mark.parametrize("slip", MISSPELLED)
def test_an_option_that_there_is_not_is_refused_with_what_was_meant(slip: str) -> None:
    call, error, words = MISSPELLED[slip]
    with pytest.raises(error) as caught:
        jax.jit(call)()
    assert words in str(caught.value) and "f-string" not in str(caught.value)
    hcb.barrier_wait()


@pytest.mark.contract("H2")
@pytest.mark.parametrize("label", ["what", "waht", "results", "thresholds", "device", "error", "index", "order"])
def test_a_label_may_have_any_other_name(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    hcb.id_print(X[0], **{label: "x"})
    hcb.barrier_wait()
    assert capsys.readouterr().out == f"{label}: x\n0.\n"


OF_TRACED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "label": (lambda x: hcb.id_print(x, what=f"step {x}"), "whose value is not known yet"),
    "printed": (lambda x: hcb.id_print(f"x is {x}"), "has the text of a traced value"),
    "in a tree": (lambda x: hcb.id_tap(tapped, {"name": f"layer {x}", "x": x}), "has the text of a traced value"),
    "argument of a print": (lambda x: hcb.debug.print("{s}", s=f"x {x}"), "has the text of a traced value"),
    "of a call": (lambda x: hcb.call(same, (f"{x}", x), result_shape=x), "has the text of a traced value"),
}


@pytest.mark.contract("H32")
@pytest.mark.parametrize("place", OF_TRACED)
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_an_f_string_of_a_traced_value_is_refused(place: str, transform: Any) -> None:
    program, words = OF_TRACED[place]
    with pytest.raises((TypeError, ValueError), match=words):
        transform(lambda x: (program(x), x)[1])(X[0] if transform is jax.grad else X)
    hcb.barrier_wait()


@pytest.mark.contract("H1", "H3")
def test_a_text_of_the_programs_own_is_passed_as_it_is() -> None:
    texts: list[Any] = []
    own = "RayTracer(8 bounces)"
    jax.jit(lambda x: hcb.id_tap(lambda value, _: texts.append(value["name"]), {"name": own, "x": x})["x"])(X)
    hcb.barrier_wait()
    assert texts == [own]


@pytest.mark.contract("X4")
def test_a_missing_argument_of_a_format_is_an_exception_of_a_public_module() -> None:
    for text, of in (("{} {y}", KeyError), ("{} {}", IndexError)):
        with pytest.raises(of) as caught:
            hcb.debug.print(text, X)
        assert type(caught.value).__module__ == "hostcb.debug"
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), of)
