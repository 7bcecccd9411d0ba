"""H13 to H15, H32: an exception of any class is reported, whatever its class, its text or its attributes do."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from support.helpers import DEADLINE
from support.pairwise import in_turns
from support.subprocesses import run_program

import hostcb as hcb

pytestmark = pytest.mark.contract("H13", "H14", "H15", "H32")

X = np.ones(3, np.float32)


class Untouchable(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class NoVariables(ValueError):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError


class TextRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class TextIsNone(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class Odd(str):
    def strip(self, *_: Any) -> Any:
        raise RuntimeError


class TextIsOdd(Exception):
    def __str__(self) -> str:
        return Odd("odd")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__name__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class OfNameless(Exception, metaclass=Nameless):
    pass


class Empty(Exception):
    """Its truth value is that of an empty container."""

    def __len__(self) -> int:
        return 0


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit


class TwoLines(Exception):
    pass


class Sealed(Exception):
    """It takes no attribute, as the exceptions of some compiled libraries."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"{name} cannot be set")


class Unequal(Exception):
    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")

    __hash__ = None  # type: ignore[assignment]


def of_no_source() -> Exception:
    """`traceback` cannot show it: its line of source is a number."""
    error = SyntaxError("x")
    error.text, error.lineno = 3, 1  # type: ignore[assignment]
    return error


TwoLines.__qualname__ = "Two\nlines"


def circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


EXCEPTIONS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "untouchable": (Untouchable, "raised Untouchable"),
    "no variables": (lambda: NoVariables("x"), "raised NoVariables"),
    "text raises": (TextRaises, "raised TextRaises"),
    "text is none": (TextIsNone, "raised TextIsNone"),
    "text is odd": (TextIsOdd, "raised TextIsOdd"),
    "nameless": (lambda: OfNameless("x"), "raised OfNameless: x"),
    "empty": (lambda: Empty("x"), "raised Empty: x"),
    "unpicklable": (lambda: Unpicklable("x"), "raised Unpicklable: x"),
    "sealed": (lambda: Sealed("x"), "raised Sealed: x"),
    "unequal": (lambda: Unequal("x"), "raised Unequal: x"),
    "of no source": (of_no_source, "raised SyntaxError: x"),
    "two lines": (lambda: TwoLines("x"), "raised Two …"),
    "circle": (circle, "raised ValueError: first"),
    "group": (lambda: BaseExceptionGroup("both", [KeyboardInterrupt()]), "raised BaseExceptionGroup: both (1 sub-exc"),
    "controls": (lambda: ValueError("a\rb\x1b[1m\tc\x00d\u2028e"), r"raised ValueError: a\rb\x1b[1m\tc\x00d\u2028e"),
    "surrogate": (lambda: ValueError("no \udcff"), r"raised ValueError: no \udcff"),
    "other letters": (lambda: ValueError("für\xa0日本語\u3000"), "raised ValueError: für\xa0日本語"),
    "empty lines": (lambda: ValueError("\n\n \nplanted\nand more"), "raised ValueError: planted"),
    "indented": (lambda: ValueError("\r\n\t  planted"), "raised ValueError: planted"),
    "other spaces": (lambda: ValueError("\v\fplanted\n"), "raised ValueError: planted"),
    "braces": (lambda: ValueError("{x} %s"), "raised ValueError: {x} %s"),
}
KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "id_tap": lambda function, x: hcb.id_tap(lambda value, _: function(value), x),
    "call": lambda function, x: hcb.call(function, x, result_shape=x),
    "pure_callback": lambda function, x: hcb.pure_callback(function, x, x),
    "buffer_callback": lambda function, x: hcb.buffer_callback(lambda context, out, value: function(value), x)(x),
}


@in_turns(("name", "kind"), EXCEPTIONS, KINDS)
def test_the_barrier_reports_it_and_its_computation_ends(name: str, kind: str) -> None:
    made, did = EXCEPTIONS[name]
    # Each kind with every second exception outside of jit.
    staged = jax.jit if [*EXCEPTIONS].index(name) // len(KINDS) % 2 else lambda function: function

    def function(value: Any) -> Any:
        raise made()

    program = staged(lambda x: KINDS[kind](function, x))
    if kind == "id_tap":
        jax.block_until_ready(program(X))
    else:
        with pytest.raises(jax.errors.JaxRuntimeError) as ended:
            jax.block_until_ready(program(X))
        assert type(ended.value.__cause__) is type(made())
        assert did in str(ended.value).split("\n")[0]
        assert "the log of that process" not in str(ended.value)
    with pytest.raises(hcb.CallbackException) as reported:
        hcb.barrier_wait()
    (failure,) = reported.value.failures
    assert type(failure.exception) is type(made())
    # A file of the log takes it.
    assert failure.text.encode()
    assert did in failure.headline and str(reported.value).splitlines()[0] == failure.headline
    again = pickle.loads(pickle.dumps(reported.value))
    assert str(again) == str(reported.value) and again.__cause__ is not None
    hcb.barrier_wait()


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
def test_a_text_that_ends_the_process_loses_no_failure(error: str) -> None:
    source = f"""
threading.excepthook = lambda arguments: None
class Ending(Exception):
    def __str__(self):
        raise {error}
def tap(value, transforms):
    raise Ending
hcb.id_tap(tap, 1.0)
try:
    hcb.barrier_wait()
except hcb.CallbackException as reported:
    print([type(each.exception).__name__ for each in reported.failures], str(reported).splitlines()[0])
hcb.id_tap(lambda value, transforms: print("next"), 1.0)
hcb.barrier_wait()
"""
    place = f"(<string>:{lines_before(source, 'def tap')}){', on cpu:0,' if error == 'SystemExit' else ''}"
    assert run_program(source, timeout=60).check().lines == [
        f"['Ending'] id_tap: tap {place} raised Ending",
        "next",
    ]


def lines_before(source: str, found: str) -> int:
    from support.subprocesses import PRELUDE

    return (PRELUDE + source).partition(found)[0].count("\n") + 1


NAMES = {
    "surrogate": r"f_\udcff",
    "null": r"f_\x00",
    "lines": r"f\nand more",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_any_name_fails_without_a_crash(name: str) -> None:
    """Half of a surrogate pair in a text crashes jaxlib; a file of undecodable bytes has such a name."""
    source = rf"""
import tempfile
@jax.tree_util.register_pytree_node_class
class Odd:
    def __init__(self, x):
        self.x = x
    def tree_flatten(self):
        return (self.x,), None
    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)
    def __repr__(self):
        return "\udcff"
code = compile("def f(*arguments):\n    raise ValueError('\\udcff \\x00 end')", "file_\udcff.py", "exec")
space = {{}}
exec(code, space)
f = space["f"]
f.__qualname__ = f.__name__ = "{NAMES[name]}"
mapped = jax.pmap(lambda x: hcb.call(f, x, result_shape=x), devices=jax.devices()[:2])
spread = NamedSharding(Mesh(np.array(jax.devices()[:2]), "d"), P("d"))
mesh = jax.jit(lambda x: hcb.io_callback(f, x, x), in_shardings=spread)
programs = [jax.jit(lambda x: hcb.call(f, x, result_shape=x)), lambda x: hcb.call(f, x, result_shape=x),
            jax.jit(lambda x: hcb.pure_callback(f, x, x)), jax.jit(hcb.buffer_callback(f, jnp.ones(2))), mapped, mesh,
            jax.jit(lambda x: hcb.call(f, x, result_shape=Odd(x))), jax.jit(lambda x: hcb.id_tap(f, x))]
with hcb.trace(tempfile.mktemp()):
    for program in programs:
        lines = []
        try:
            jax.block_until_ready(program(jnp.ones(2)))
        except jax.errors.JaxRuntimeError as error:
            lines.append(str(error))
        try:
            hcb.barrier_wait()
        except hcb.CallbackException as error:
            lines.append(str(error).splitlines()[0])
        assert all("raised ValueError: \\udcff \\x00 end" in line for line in lines), lines
        print(len(lines))
"""
    assert run_program(source, devices=2, timeout=60).check().lines == ["2"] * 7 + ["1"]


class Exiting(Exception):
    """Its text ends the thread that asks for it."""

    def __str__(self) -> str:
        raise SystemExit


class Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("error", "good_runs"), [(Exiting, 0), (Exiting, 3), (Interrupting, 0)])
@pytest.mark.parametrize("kind", ["call", "pure_callback", "buffer_callback"])
def test_a_computation_ends_with_an_exception_whose_text_ends_the_thread(
    error: type[Exception], good_runs: int, kind: str
) -> None:
    """After good runs JAX dispatches the program in C++."""
    runs = iter(range(good_runs))

    def function(value: Any) -> Any:
        if next(runs, None) is None:
            raise error
        return None if kind == "buffer_callback" else value

    program = jax.jit(lambda x: KINDS[kind](function, x))
    for _ in range(good_runs):
        program(X)
    with pytest.raises(jax.errors.JaxRuntimeError) as ended:
        jax.block_until_ready(program(X))
    with pytest.raises(hcb.CallbackException) as reported:
        hcb.barrier_wait()
    (failure,) = reported.value.failures
    assert type(ended.value.__cause__) is type(failure.exception) is error


def test_taps_go_on_without_a_barrier_after_a_text_that_ends_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    ran, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda *_: ended.set())

    def host(value: Any, transforms: Any) -> None:
        ran.set()
        if value % 3 == 2:
            raise Exiting
        seen.append(int(value))

    program = jax.jit(lambda x: hcb.id_tap(host, x))
    for number in range(9):
        ran.clear()
        program(number)
        assert ran.wait(DEADLINE), f"tap {number} waits for a barrier"
        if number == 5:
            # The next one comes after the end of the thread, if it ends.
            ended.wait(0.3)
    with pytest.raises(hcb.CallbackException) as reported:
        hcb.barrier_wait()
    assert len(reported.value.failures) == 3 and seen == [0, 1, 3, 4, 6, 7]


class StaysHereError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("this exception stays where it is")


class CodedError(Exception):
    """It can be pickled and not made again: its constructor takes more than its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} with {code}")


class HoldsDevice(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text, jax.devices()[0], lambda: None)


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("planted")

    def __reduce__(self) -> Any:
        raise ValueError("planted")


LocalError = type("LocalError", (Exception,), {"__module__": "a module that no process finds"})
COPIED: dict[str, BaseException] = {
    type(error).__name__: error
    for error in (
        *(ValueError("why"), StaysHereError("why"), CodedError(4, "why"), LocalError("why")),
        *(HoldsDevice("why"), NoText(), KeyboardInterrupt("why")),
    )
}
WAYS: dict[str, Callable[[Any], Any]] = {
    **{f"protocol {n}": lambda e, n=n: pickle.loads(pickle.dumps(e, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@in_turns(("error", "way"), COPIED, WAYS, times=4)
def test_a_copy_of_the_barriers_exception_has_its_failures_cause_and_notes(error: str, way: str) -> None:
    for each in (KeyError(1), COPIED[error]):
        hcb.id_tap(lambda *_, each=each: (_ for _ in ()).throw(each), 1.0)
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    caught.value.add_note("a note of the program")
    copied = WAYS[way](caught.value)
    assert type(copied) is type(caught.value) and str(copied) == str(caught.value)
    assert copied.__notes__ == ["a note of the program"]
    # An exception that no other process can make travels as its text.
    assert copied.__cause__ is copied.failures[-1].exception
    assert error == "NoText" or "why" in str(copied.__cause__)
    assert type(copied.__cause__) is ValueError or error != "ValueError"
    for failure, own in zip(copied.failures, caught.value.failures, strict=True):
        for one in (failure, pickle.loads(pickle.dumps(own))):
            for name in ("callback", "text", "headline", "kind", "ended"):
                assert getattr(one, name) == getattr(own, name)
            assert str(one.device) == str(own.device)


ERRORS: dict[str, Callable[[], Any]] = {
    "shape": lambda: hcb.pure_callback(print, 1.5),
    "shape of a call": lambda: hcb.call(print, 1, result_shape="text"),
    "number": lambda: hcb.io_callback(print, None, 2**40),
    "name": lambda: hcb.debug.print("{x}"),
    "position": lambda: hcb.debug.print("{}"),
    "result in jit": lambda: jax.jit(lambda: hcb.pure_callback(lambda: 1.5, jax.ShapeDtypeStruct((), np.int32)))(),
    "result": lambda: hcb.pure_callback(lambda: 1.5, jax.ShapeDtypeStruct((), np.int32)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_can_be_pickled_and_so_can_its_cause(name: str) -> None:
    with pytest.raises(Exception) as caught:
        ERRORS[name]()
    for error in filter(None, (caught.value, caught.value.__cause__)):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    with contextlib.suppress(hcb.CallbackException):
        hcb.barrier_wait()
