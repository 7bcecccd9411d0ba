"""H2: what id_print writes, to the letter."""

from __future__ import annotations

import collections
import io
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import STAGES

import hostcb as hcb

pytestmark = pytest.mark.contract("H2")


class Stream:
    """Keeps each write apart. Before the first one it is false, as an empty list is."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    def __len__(self) -> int:
        return len(self.writes)

    def write(self, text: str) -> None:
        self.writes.append(text)


F = np.float32


class Pair(NamedTuple):
    one: Any
    other: Any


EXACT = {
    "scalar": (F(3), "3.\n"),
    "int": (np.int32(5), "5\n"),
    "bool": (np.bool_(True), "True\n"),
    "tuple": ((F(3), F(9)), "( 3. 9. )\n"),
    "list": ([F(1), F(2)], "[ 1. 2. ]\n"),
    "dict": ({"b": F(2), "a": F(1)}, "{ a=1. b=2. }\n"),
    "nested": ((F(1), [F(2), {"x": (F(3),)}]), "( 1. [ 2. { x=( 3. ) } ] )\n"),
    "array": (np.arange(4, dtype=F), "[0. 1. 2. 3.]\n"),
    "matrix": (np.arange(4, dtype=np.int32).reshape(2, 2), "[[0 1]\n [2 3]]\n"),
    "empty_array": (np.zeros((0,), F), "[]\n"),
    "fractions": (np.array([0.1, 0.25], F), "[0.1  0.25]\n"),
    "none": ((None, F(1)), "( None 1. )\n"),
    "ordered_dict": (collections.OrderedDict(b=F(2), a=F(1)), "{ a=1. b=2. }\n"),
    "numbers_as_keys": ({10: F(1), 9: F(2)}, "{ 9=2. 10=1. }\n"),
    "named_tuple": (Pair(F(3), np.int32(9)), "( 3. 9 )\n"),
    "long_list": (
        [np.full(3, 0.5 + n, F) for n in range(8)],
        "[ " + "\n  ".join(f"[{n}.5 {n}.5 {n}.5]" for n in range(8)) + " ]\n",
    ),
    # 80 characters, and one more.
    "line": ([*map(np.int32, range(29))], f"[ {' '.join(map(str, range(29)))} ]\n"),
    "longer": ([*map(np.int32, (10, *range(1, 29)))], "[ " + "\n  ".join(map(str, [10, *range(1, 29)])) + " ]\n"),
}


@STAGES
@pytest.mark.parametrize("name", EXACT)
def test_exact_text(name: str, stage: Any) -> None:
    value, expected = EXACT[name]
    stream = Stream()
    out = helpers.finish(stage(lambda x: hcb.id_print(x, output_stream=stream))(value))
    assert stream.writes == [expected], f"wrote {stream.writes}, but should write {[expected]}"
    helpers.equal(jax.tree.map(np.asarray, out), jax.tree.map(np.asarray, value), "what id_print returns")


@pytest.mark.contract("H18")
def test_prints_of_the_same_labels_are_equal_in_whatever_order() -> None:
    """JAX's caches find a program by the hash and the equality of what its callbacks are made of."""
    stream = Stream()

    def parameters(**labels: Any) -> Any:
        program = jax.make_jaxpr(lambda x: hcb.id_print(x, output_stream=stream, **labels))(F(1))
        return tuple(tuple(sorted(equation.params.items())) for equation in program.jaxpr.eqns)

    known = {parameters(a=1, b="x")}
    assert parameters(b="x", a=1) in known
    assert parameters(a=2, b="x") not in known


def test_each_print_to_standard_output_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setattr("sys.stdout", stream)
    jax.jit(lambda x: hcb.id_print(x, what="x"))(F(1))
    jax.jit(lambda x: hcb.debug.print("{}", x, ordered=True))(F(2))
    hcb.barrier_wait()
    assert stream.writes == ["what: x\n1.\n", "2.0\n"]


def test_without_a_standard_output_a_print_is_lost_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python's own `print`, in a program without a console."""
    monkeypatch.setattr("sys.stdout", None)
    for way in (hcb.id_print, lambda x: hcb.debug.print("{}", x), lambda x: hcb.debug.print("{}", x, ordered=True)):
        for run in (jax.jit(way), way):
            helpers.finish(run(F(1)))


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    hcb.id_print((F(3), F(9)), what="x,x^2")
    hcb.barrier_wait()
    assert capsys.readouterr().out == "what: x,x^2\n( 3. 9. )\n"


def test_labels_are_sorted_with_device_and_transforms_among_them(devices: list[jax.Device]) -> None:
    stream = Stream()
    f = lambda x: hcb.id_print(x, what="w", alpha=1, zeta=(1, "b"), output_stream=stream, tap_with_device=True)
    helpers.finish(jax.jit(jax.vmap(f))(jax.device_put(np.arange(2, dtype=F), devices[3])))
    expected = (
        f"alpha: 1 device: {devices[3]} transforms: [('batch', {{'batch_dims': (0,)}})] what: w "
        "zeta: (1, 'b')\n[0. 1.]\n"
    )
    assert stream.writes == [expected], f"wrote {stream.writes}, but should write {[expected]}"


def test_documented_prints_under_transformations() -> None:
    stream = Stream()

    def power3(x):
        y = x * x
        hcb.id_print((x, y), what="x,x^2", output_stream=stream)
        return y * x

    helpers.finish(power3(F(3)))
    helpers.finish(jax.jvp(power3, (F(3),), (F(0.1),)))
    helpers.finish(jax.grad(power3)(3.0))
    helpers.finish(jax.vmap(power3)(np.array([2.0, 3.0], F)))
    assert stream.writes == ["what: x,x^2\n( 3. 9. )\n"] * 3 + [
        "transforms: [('batch', {'batch_dims': (0, 0)})] what: x,x^2\n( [2. 3.] [4. 9.] )\n"
    ]


@pytest.mark.parametrize(
    ("threshold", "size", "short"), [(None, 1024, False), (None, 1025, True), (6, 7, True), (6, 6, False)]
)
def test_threshold(threshold: int | None, size: int, short: bool) -> None:
    stream, value = Stream(), np.arange(size, dtype=np.int32)
    hcb.id_print(value, output_stream=stream, threshold=threshold)
    hcb.barrier_wait()
    assert stream.writes == [np.array2string(value, threshold=1024 if threshold is None else threshold) + "\n"]
    assert ("..." in stream.writes[0]) == short, "1024 elements and no more are printed in full by default"


def test_result_and_no_labels() -> None:
    stream = Stream()
    assert hcb.id_print(F(1), result=7, output_stream=stream) == 7
    hcb.barrier_wait()
    assert stream.writes == ["1.\n"]


def test_any_file_object() -> None:
    stream = io.StringIO()
    hcb.id_print(F(1), output_stream=stream, a=1)
    hcb.barrier_wait()
    assert stream.getvalue() == "a: 1\n1.\n"


@pytest.mark.parametrize("label", [[1, 2], {"a": 1}, np.arange(3)], ids=["list", "dict", "array"])
def test_labels_without_a_hash(label: Any) -> None:
    stream = Stream()
    program = jax.jit(lambda x: [hcb.id_print(x, what=label, output_stream=stream) for _ in range(2)])
    helpers.finish([program(F(1)), program(F(1))])
    assert stream.writes == [f"what: {label}\n1.\n"] * 4


def test_prints_of_many_devices_and_threads_are_never_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    """On the real standard output, whose writes another thread can come between."""
    value = np.arange(40, dtype=np.int32).reshape(4, 10)
    program = jax.pmap(lambda x: hcb.id_print((x, x), what="w", tap_with_device=True))

    def work() -> None:
        for n in range(4):
            hcb.id_print(value, what="eager")
            program(np.stack([value] * 8))

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    hcb.barrier_wait()
    out = capsys.readouterr().out
    body = np.array2string(value, threshold=1024)
    pair = f"( {body}\n  {body} )\n"
    for device in jax.devices():
        whole = f"device: {device} what: w\n{pair}"
        out, count = out.replace(whole, ""), out.count(whole)
        assert count == 12, f"{count} whole prints from {device}, but should be 12"
    assert out == f"what: eager\n{body}\n" * 12, f"prints were mixed: {out[:500]}"


def test_each_print_is_one_write() -> None:
    stream = Stream()
    program = jax.pmap(lambda x: hcb.id_print(x, what="w", output_stream=stream, tap_with_device=True))
    helpers.finish([program(np.arange(8, dtype=np.int32)) for _ in range(5)])
    assert sorted(stream.writes) == sorted(f"device: {d} what: w\n{d.id}\n" for d in jax.devices() for _ in range(5))


def test_wide_values_break_between_items() -> None:
    stream, value = Stream(), np.arange(30, dtype=np.int32)
    hcb.id_print((value, {"k": value, "a": jnp.int32(1)}), output_stream=stream)
    hcb.barrier_wait()
    text = stream.writes[0]
    body = np.array2string(value, threshold=1024)
    assert text.startswith("( ") and text.endswith(" )\n"), text
    assert text.count(body) == 2 and "a=1" in text and f"k={body}" in text, text


def test_a_stream_that_fails_is_a_failed_tap() -> None:
    class Broken:
        def write(self, text: str) -> None:
            raise OSError("disk full")

    hcb.id_print(1.0, output_stream=Broken())
    with pytest.raises(hcb.CallbackException, match="disk full"):
        hcb.barrier_wait()
    stream = Stream()
    hcb.id_print(F(1), output_stream=stream)
    hcb.barrier_wait()
    assert stream.writes == ["1.\n"], "a later print should work: the failed one must not keep the lock"


MIXED = {"b": F(2), 1: F(1), None: F(3)}
WITHOUT_ORDER: dict[str, tuple[Any, str]] = {
    "dict": (MIXED, "{ b=2. 1=1. None=3. }\n"),
    "ordered": (collections.OrderedDict(MIXED), "{ b=2. 1=1. None=3. }\n"),
    "nested": ([{"x": {"b": {2: F(3), "a": F(4)}, 1: F(1)}}], "[ { x={ b={ 2=3. a=4. } 1=1. } } ]\n"),
    "complex": ({1j: F(1), 2j: F(2)}, "{ 1j=1. 2j=2. }\n"),
    "default": (collections.defaultdict(float, {"b": F(1), "a": F(2)}), "{ a=2. b=1. }\n"),
}


@STAGES
@pytest.mark.parametrize("name", WITHOUT_ORDER)
def test_keys_that_have_no_order_are_printed_in_theirs(name: str, stage: Any) -> None:
    """No operand of the program: JAX itself refuses such dicts there."""
    value, expected = WITHOUT_ORDER[name]
    stream, returned = Stream(), []
    helpers.finish(stage(lambda x: (returned.append(hcb.id_print(value, output_stream=stream)), x)[1])(F(1)))
    assert stream.writes == [expected]
    assert type(returned[0]) is type(value)
    # A container that sorts its keys is made anew.
    assert name == "nested" or [*returned[0]] == (["a", "b"] if name == "default" else [*value])


def test_a_result_in_jit_is_returned_and_not_printed() -> None:
    stream = Stream()
    found = jax.jit(lambda x: hcb.id_print({"a": x}, result=(x + 1, x + 2), output_stream=stream))(7)
    assert [*map(int, helpers.finish(found))] == [8, 9] and stream.writes == ["{ a=7 }\n"]


@pytest.mark.parametrize("threshold", [0, 2])
def test_threshold_holds_in_containers(threshold: int) -> None:
    stream = Stream()
    helpers.finish(hcb.id_print({"a": [(np.arange(9),)]}, threshold=threshold, output_stream=stream))
    assert stream.writes == ["{ a=[ ( [0 1 2 ... 6 7 8] ) ] }\n"]


@pytest.mark.contract("H16")
@pytest.mark.filterwarnings("ignore:The flag jax_host_callback_ad_transforms:FutureWarning")
def test_transforms_without_parameters_are_printed_by_their_names() -> None:
    stream = Stream()

    def cubed(x: Any) -> Any:
        return hcb.id_print(x * x, what="square", output_stream=stream) * x

    jax.config.update("jax_host_callback_ad_transforms", True)
    try:
        helpers.finish(jax.jit(lambda x: jax.jvp(cubed, (x,), (1.0,)))(3.0))
        helpers.finish(jax.jit(jax.grad(cubed))(3.0))
        helpers.finish(jax.jit(jax.vmap(lambda x: jax.jvp(cubed, (x,), (F(1),))))(np.array([1, 3], F)))
    finally:
        jax.config.update("jax_host_callback_ad_transforms", None)
    assert stream.writes == [
        "transforms: ['jvp'] what: square\n( 9. 6. )\n",
        "what: square\n9.\n",
        "transforms: ['jvp', 'transpose'] what: square\n3.\n",
        "transforms: ['jvp', ('batch', {'batch_dims': (0, 0)})] what: square\n( [1. 9.] [2. 6.] )\n",
    ]


def test_a_write_may_itself_print_to_another_stream() -> None:
    lengths = Stream()

    class Measured(Stream):
        def write(self, text: str) -> None:
            super().write(text)
            hcb.id_print(np.int32(len(text)), output_stream=lengths)

    stream = Measured()
    program = jax.jit(lambda x: hcb.id_print(x, output_stream=stream))
    jax.block_until_ready([program(7), program(77)])
    hcb.barrier_wait()
    assert (stream.writes, lengths.writes) == (["7\n", "77\n"], ["2\n", "3\n"])


def test_a_print_of_another_device_waits_for_a_write_to_the_same_stream(devices: list[jax.Device]) -> None:
    began, gate, inside = threading.Event(), threading.Event(), []

    class Slow(Stream):
        def write(self, text: str) -> None:
            inside.append(len(self.writes))
            began.set()
            # As long as a print that does not wait for this one may take, and no more than that.
            gate.wait(0.2)
            self.writes.append(text)

    stream = Slow()
    program = jax.jit(lambda x: hcb.id_print(x, output_stream=stream))
    program(jax.device_put(np.int32(0), devices[0]))
    assert began.wait(helpers.DEADLINE)
    program(jax.device_put(np.int32(1), devices[1]))
    hcb.barrier_wait()
    assert inside == [0, 1] and sorted(stream.writes) == ["0\n", "1\n"]


@pytest.mark.contract("H18")
def test_prints_of_equal_text_are_equal_keys_of_caches() -> None:
    def parameters(function: Any) -> list[Any]:
        return [equation.params["callback"] for equation in jax.make_jaxpr(function)(1.0).eqns]

    label = lambda text: parameters(lambda x: hcb.id_print(x, what=text))
    format_of = lambda text: parameters(lambda x: hcb.debug.print(text, x=x))
    for make, text, other in ((label, "a", "b"), (format_of, "{x}", "of {x}")):
        one, same = make(text), make(text)
        assert one == same and [*map(hash, one)] == [*map(hash, same)]
        assert one != make(other)
    plain = format_of("{x}")
    with np.printoptions(precision=2):
        assert format_of("{x}") != plain
