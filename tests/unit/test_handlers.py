"""What the runtime calls can be recognised in the stack of its thread, with the program that waits for it (H13)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from support.helpers import DEADLINE
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._compat import python_handler
from hostcb._native.library import PYTHON_TARGET
from hostcb._runtime.dispatch.programs import Execution, Program
from hostcb._threads.running import called_by_runtime, inside_callback, inside_handler, running

MARK = "called_by_runtime"
# `running.blocked_programs` asks the local variables of a handler's frame, and those of its closure that its code uses.
NAMES = {"program", "host"}


def handlers() -> Iterator[tuple[str, set[str]]]:
    for path in Path(hcb.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and MARK in [ast.unparse(each) for each in node.decorator_list]:
                used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                yield f"{path.name}:{node.lineno} {node.name}", used | {each.arg for each in node.args.args}


@pytest.mark.contract("H13")
def test_each_handler_names_its_program() -> None:
    found = dict(handlers())
    assert len(found) > 8
    assert not [where for where, used in found.items() if not used & NAMES]


@pytest.mark.contract("D3")
def test_the_runtimes_handler_of_python_callbacks_has_an_address() -> None:
    """Without it, taps are queued in Python."""
    assert python_handler(PYTHON_TARGET)
    assert python_handler("no target of the runtime") is None


@pytest.mark.contract("H5", "H14")
def test_a_thread_is_in_a_handler_before_and_after_its_function() -> None:
    """A signal handler, or a log's handler, may run there and start a program, which must not wait for the thread."""

    @called_by_runtime
    def handler(program: None = None) -> tuple[bool, bool]:
        return inside_handler(), inside_callback()

    execution = Execution(Program(), (), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.frame, "execution", execution)
        assert handler() == (True, False)
        assert (inside_handler(), inside_callback()) == (False, False)
    with ThreadPoolExecutor(1) as pool:
        # As for a thread of the runtime, which Python did not start.
        pool.submit(setattr, running, "thread_is_pythons", False).result(DEADLINE)
        assert pool.submit(handler).result(DEADLINE) == (True, False)


HELD = """
mesh = Mesh(np.array(jax.devices()), "d")
both = jax.device_put(jnp.arange(2.0), NamedSharding(mesh, P("d")))
inner = jax.jit(lambda x: hcb.io_callback(lambda v: v, jax.ShapeDtypeStruct((2,), jnp.float32), x))

def starts_another() -> np.ndarray:
    jax.block_until_ready(inner(both))
    return np.float32(1)

def body(x):
    return x + hcb.io_callback(starts_another, jax.ShapeDtypeStruct((), jnp.float32), ordered=True)

outer = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
try:
    jax.block_until_ready(outer(both))
except jax.errors.JaxRuntimeError as error:
    print("refused:", "started from inside a call of a program that runs on several devices itself" in str(error))
try:
    hcb.barrier_wait()
except hcb.CallbackException:
    pass
"""


@pytest.mark.contract("H13", "H15")
def test_a_program_on_several_devices_inside_of_another_one_is_refused_without_operands_too() -> None:
    """Nothing of the outer callback's handler is in its arguments: no operand, and no turn."""
    ended = run_program(HELD, devices=2, timeout=60).check()
    assert ended.lines == ["refused: True"], str(ended)


@pytest.mark.contract("H7")
def test_a_tap_may_change_the_transforms_that_it_receives() -> None:
    seen: list[tuple[int, ...]] = []
    program = jax.jit(jax.vmap(lambda x: hcb.id_tap(lambda _, told: seen.append(told[0][1].pop("batch_dims")), x)))
    for _ in range(2):
        program(jax.numpy.arange(3.0))
    hcb.barrier_wait()
    assert seen == [(0,), (0,)]


@pytest.mark.contract("H15")
def test_the_error_of_an_eager_call_has_its_cause_and_no_context() -> None:
    def fails(_: object) -> None:
        raise ValueError("planted")

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        hcb.call(fails, 1.0, result_shape=jax.ShapeDtypeStruct((), "float32"))
    assert isinstance(caught.value.__cause__, ValueError) and caught.value.__context__ is None
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("X4")
def test_an_answer_that_no_policy_may_give_is_refused() -> None:
    def program(x: jax.Array) -> jax.Array:
        return hcb.id_tap(lambda *_: None, jax.numpy.sin(x)) * 2

    with pytest.raises(TypeError, match="policy"):
        jax.grad(jax.checkpoint(program, policy=lambda *_, **__: "yes"))(1.0)
