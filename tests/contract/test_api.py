"""H1 and H3: signatures, trees, results, and what is refused at once."""

from __future__ import annotations

import collections
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import STAGES, Record

import hostcb as hcb


class Point(NamedTuple):
    x: Any
    y: Any


def nothing(arg: Any, transforms: Any = None) -> None: ...


@jax.tree_util.register_pytree_node_class
class Box:
    def __init__(self, inside: Any, label: str):
        self.inside, self.label = inside, label

    def tree_flatten(self) -> Any:
        return (self.inside,), self.label

    @classmethod
    def tree_unflatten(cls, label: str, children: Any) -> Box:
        return cls(*children, label)


DOCUMENTED = {
    "id_tap": "(tap_func, arg, *, result=None, tap_with_device=False, device_index=0, on_error='barrier')",
    "id_print": "(arg, *, result=None, tap_with_device=False, device_index=0, output_stream=None, threshold=None, "
    "on_error='barrier', **kwargs)",
    "call": "(callback_func, arg, *, result_shape=None, call_with_device=False, device_index=0, vmap_method=None)",
    "barrier_wait": "(logging_name=None, *, timeout=None, raise_again=True)",
    "stop_outfeed_receiver": "()",
    "doctor": "()",
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_signatures(name: str) -> None:
    signature = inspect.signature(getattr(hcb, name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    assert shown == DOCUMENTED[name], f"{name}{shown}, but should be {name}{DOCUMENTED[name]}"


def test_public_names_are_exactly_what_the_package_exports() -> None:
    contract = {*DOCUMENTED, "CallbackException", "TapFunctionException", "UnknownJaxError", "UnknownJaxWarning"}
    exported = set(hcb.__all__)
    assert contract <= exported, f"missing in __all__: {contract - exported}"
    missing = [name for name in exported if not hasattr(hcb, name)]
    assert not missing, f"names in __all__ that do not exist: {missing}"
    # The classes of buffer callbacks are JAX's, without one.
    ours = exported - {"Buffer", "ExecutionContext", "ExecutionStage"}
    undocumented = [name for name in ours if not getattr(hcb, name).__doc__]
    assert not undocumented, f"without a docstring: {undocumented}"


def test_the_library_needs_no_other_folder_of_the_repository() -> None:
    for path in Path(hcb.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (conformance|tests|benchmarks|ci)\b", path.read_text(), re.M), path


TREES = {
    "array": np.arange(3, dtype=np.float32),
    "scalar": np.float32(1.5),
    "empty_tuple": (),
    "tuple": (np.float32(1), np.int32(2)),
    "list": [np.float32(1), [np.int32(2)]],
    "dict": {"b": np.float32(1), "a": (np.arange(2, dtype=np.int32),)},
    "none_inside": (None, np.float32(1), {"n": None}),
    "namedtuple": Point(np.float32(1), np.arange(2, dtype=np.int32)),
    "ordered_dict": collections.OrderedDict(z=np.float32(1), a=np.float32(2)),
    "box": Box((np.float32(1), np.arange(2, dtype=np.int32)), "label"),
}


@pytest.mark.contract("H1", "H3")
@STAGES
@pytest.mark.parametrize("name", TREES)
def test_any_tree_goes_to_a_tap_and_a_call_and_comes_back(name: str, stage: Any) -> None:
    tree, record = TREES[name], Record()
    program = lambda x: hcb.call(record.caller(), hcb.id_tap(record.tap, x), result_shape=tree)
    out = helpers.finish(stage(program)(tree))
    helpers.equal(out, tree, "what the call returns")
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(out))
    assert record.transforms == [(), None]
    for arg in record.args:
        helpers.equal(arg, tree, "what a callback saw")
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(arg))


@pytest.mark.contract("H1")
@STAGES
@pytest.mark.parametrize("value", [3, 2.5, True, 1j, np.int8(4)], ids=repr)
def test_python_scalars(value: Any, stage: Any) -> None:
    record = Record()
    out = helpers.finish(stage(lambda: hcb.id_tap(record.tap, value))())
    helpers.equal(np.asarray(out), np.asarray(jnp.asarray(value)), "what the tap returns")
    helpers.equal(record.args[0], np.asarray(jnp.asarray(value)), "what the callback saw")


@pytest.mark.contract("H1")
@STAGES
@pytest.mark.parametrize("result", [7.0, 0, False, (), {"a": 1.0}, (np.zeros((0,), np.float32), None)], ids=repr)
def test_result_replaces_the_value(result: Any, stage: Any) -> None:
    record = Record()
    out = stage(lambda x: hcb.id_tap(record.tap, x, result=result))(1.0)
    assert jax.tree.structure(out) == jax.tree.structure(result)
    jax.tree.map(lambda got, want: np.testing.assert_array_equal(got, want), out, result)
    hcb.barrier_wait()
    assert record.values == [1.0], "the value is tapped, the result is not sent"


@pytest.mark.contract("H1")
@STAGES
def test_the_value_of_a_tap_is_ignored(stage: Any) -> None:
    out = stage(lambda x: hcb.id_tap(lambda arg, transforms: object(), x))(1.0)
    assert float(helpers.finish(out)) == 1.0


@pytest.mark.contract("H1")
def test_keyword_arguments_are_for_id_tap_and_not_for_its_function() -> None:
    wrong: Any = hcb.id_tap
    with pytest.raises(TypeError, match=re.escape("id_tap() got an unexpected keyword argument 'what'")):
        wrong(nothing, 1.0, what="activation")


@pytest.mark.contract("H1", "H3")
def test_positional_misuse() -> None:
    misuses = [
        lambda: hcb.id_tap(nothing),
        lambda: hcb.id_tap(nothing, 1.0, 2.0),
        lambda: hcb.call(nothing, 1.0, 2.0),
        lambda: hcb.call(nothing, 1.0, what=1),
        lambda: hcb.id_print(),
    ]
    for misuse in misuses:
        with pytest.raises(TypeError):
            misuse()


class Shaped:
    shape, dtype = (2,), np.dtype("int32")


SHAPES = {
    "int": (3, ((), np.int32)),
    "float": (3.0, ((), np.float32)),
    "bool": (True, ((), np.bool_)),
    "complex": (1j, ((), np.complex64)),
    "numpy_scalar": (np.int8(1), ((), np.int8)),
    "numpy_float64": (np.float64(1), ((), np.float32)),
    "numpy_array": (np.zeros((2, 3), np.uint8), ((2, 3), np.uint8)),
    "numpy_int64_array": (np.zeros((2,), np.int64), ((2,), np.int32)),
    "jax_array": (jnp.zeros((2,)), ((2,), np.float32)),
    "struct": (jax.ShapeDtypeStruct((0, 2), np.float16), ((0, 2), np.float16)),
    "struct_with_string": (jax.ShapeDtypeStruct((1,), "bfloat16"), ((1,), jnp.bfloat16)),
    "object": (Shaped(), ((2,), np.int32)),
}


@pytest.mark.contract("H3")
@STAGES
@pytest.mark.parametrize("name", SHAPES)
def test_result_shape_by_example(name: str, stage: Any) -> None:
    example, (shape, dtype) = SHAPES[name]
    out = stage(lambda x: hcb.call(lambda _: np.ones(shape, dtype), x, result_shape=example))(1.0)
    helpers.equal(np.asarray(out), np.ones(shape, dtype), f"result for {example!r}")


@pytest.mark.contract("H3")
def test_tracer_as_result_shape() -> None:
    out = jax.jit(lambda x: hcb.call(lambda a: a + 1, x, result_shape=x))(np.arange(2.0, dtype=np.float32))
    helpers.equal(np.asarray(out), np.array([1, 2], np.float32), "result shaped like a tracer")


@pytest.mark.contract("H3")
@STAGES
@pytest.mark.parametrize("nothing_at_all", [None, (), {}, [], (None, {})], ids=repr)
def test_no_result(nothing_at_all: Any, stage: Any) -> None:
    out = stage(lambda x: hcb.call(lambda _: nothing_at_all, x, result_shape=nothing_at_all))(1.0)
    assert out == nothing_at_all


@pytest.mark.contract("H1")
def test_documentation_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of the old documentation, with their results."""

    def host_eig(m):
        return np.linalg.eigvals(m).real  # complex in any case since NumPy 2.5

    @jax.jit
    def device_fun(m):
        return hcb.call(host_eig, m, result_shape=jax.ShapeDtypeStruct(m.shape[:-1], m.dtype))

    np.testing.assert_allclose(device_fun(np.diag(np.float32([1, 2, 3]))), [1, 2, 3])

    accumulator = []

    def host_log(arg, transforms):
        accumulator.append(arg)

    def taps(c):
        hcb.id_tap(host_log, c)
        hcb.id_tap(host_log, 2.0 * c)

    jax.jit(taps)(1.0)
    jax.jit(taps)(1.0)
    hcb.barrier_wait()
    assert [float(arg) for arg in accumulator] == [1.0, 2.0, 1.0, 2.0]

    def host_sin(x, *, device):
        print(f"Invoking host_sin with {x.shape} on {device}")
        return np.sin(x)

    x = np.ones((2, 4), np.float32)
    out = jax.pmap(lambda x: hcb.call(host_sin, x, result_shape=x, call_with_device=True))(x)
    np.testing.assert_allclose(out, np.sin(x))
    printed = sorted(capsys.readouterr().out.splitlines())
    assert printed == [f"Invoking host_sin with (4,) on {device}" for device in jax.devices()[:2]]


@pytest.mark.contract("H3")
def test_callbacks_that_are_methods_builtins_and_objects() -> None:
    class Callable:
        def __call__(self, arg: Any, transforms: Any = None) -> Any:
            return arg * 2

        def method(self, arg: Any) -> Any:
            return arg * 3

        @staticmethod
        def static(arg: Any) -> Any:
            return arg * 4

    for function, factor in ((Callable(), 2), (Callable().method, 3), (Callable.static, 4), (np.negative, -1)):
        out = jax.jit(lambda x, f=function: hcb.call(f, x, result_shape=x))(np.float32(1))
        assert float(out) == factor
    seen: list[Any] = []
    assert float(helpers.finish(jax.jit(lambda x: hcb.id_tap(lambda *args: seen.append(args), x))(1.0))) == 1.0
    assert len(seen[0]) == 2, "a tap is given the value and the transforms by position"


@pytest.mark.contract("H1")
@STAGES
def test_operands_that_share_memory_or_repeat(stage: Any) -> None:
    record = Record()
    x = jnp.arange(3.0)
    out = helpers.finish(stage(lambda x: hcb.id_tap(record.tap, (x, x, x)))(x))
    for leaf in (*record.args[0], *out):
        np.testing.assert_array_equal(leaf, [0, 1, 2])
    first, second, third = record.args[0]
    first[0] = 99
    assert second[0] == third[0] == 0, "each leaf is the callback's own array"


@pytest.mark.contract("H3")
@STAGES
def test_unhashable_callable(stage: Any) -> None:
    class Unhashable:
        __hash__ = None

        def __eq__(self, other: object) -> Any:
            return np.array([True, False])

        def __call__(self, arg: Any, transforms: Any = None) -> Any:
            return arg + 1

    function = Unhashable()
    program = lambda x: hcb.call(function, hcb.call(function, x, result_shape=x), result_shape=x)
    assert float(stage(program)(jnp.float32(1))) == 3.0


@pytest.mark.contract("H1")
def test_many_operands() -> None:
    record = Record()
    values = [np.full((n % 3,), n, np.float32) for n in range(120)]
    out = helpers.finish(
        jax.jit(lambda xs: hcb.call(record.caller(), hcb.id_tap(record.tap, xs), result_shape=xs))(values)
    )
    helpers.equal(jax.tree.map(np.asarray, out), values, "120 results")
    helpers.equal(record.args[0], values, "120 operands")


@pytest.mark.contract("H1", "H4")
def test_numbers_of_a_function_that_jax_traces_and_runs_outside_jit() -> None:
    """It runs equation by equation, with the numbers as JAX wrote them into these; an array makes nothing wider."""
    record = Record()
    results = jax.checkpoint(lambda x: [hcb.id_tap(record.tap, number) for number in (1.5, 4, True)])(jnp.float32(2))
    helpers.finish(results)
    for arrays in (record.args, results):
        assert all(isinstance(each, np.ndarray | jax.Array) for each in arrays)
        assert [each.dtype.name for each in arrays] == ["float32", "int32", "bool"]
        assert [each.tolist() for each in arrays] == [1.5, 4, True]
    assert [(jnp.bfloat16(1) + each).dtype.name for each in results[:2]] == ["bfloat16"] * 2
