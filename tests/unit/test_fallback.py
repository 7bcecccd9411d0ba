"""A JAX whose dispatch hostcb does not know: less is promised, and said so."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._compat import lowering, registry, waiting


@pytest.mark.contract("H5")
def test_without_the_hooks_callbacks_still_run_in_order() -> None:
    source = """
import logging
logging.basicConfig(format="%(message)s")
from jax._src.interpreters import pxla
executor, pxla.ExecuteReplicated = pxla.ExecuteReplicated, None
import hostcb as hcb
pxla.ExecuteReplicated = executor
import jax, numpy as np

seen = []
f = jax.jit(lambda x: hcb.call(lambda a: seen.append(a.item()) or a, hcb.id_tap(lambda a, t: seen.append("tap"), x),
                               result_shape=x))
for value in range(3):
    f(np.float32(value))
hcb.barrier_wait()
print(seen)
count = []
jax.pmap(lambda x: hcb.id_tap(lambda a, t, device: count.append(device.id), x, tap_with_device=True))(np.arange(8.0))
hcb.barrier_wait()
print(sorted(count))
"""
    ended = run_program(source, prelude="").check()
    assert ended.lines == ["['tap', 0.0, 'tap', 1.0, 'tap', 2.0]", str(list(range(8)))], str(ended)
    assert "UnknownJaxWarning" in ended.stderr and "Lost: H5" in ended.stderr, str(ended)


THREADS = """
import warnings
warnings.simplefilter("ignore")
import jax, numpy as np, threading
from jax._src.interpreters import pxla
BEFORE
executor, pxla.ExecuteReplicated = pxla.ExecuteReplicated, None
import hostcb as hcb
pxla.ExecuteReplicated = executor
seen = []
def program(number):
    return jax.jit(lambda x: hcb.id_tap(lambda *_: seen.append(number), x[0, 0]))
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: jax.numpy.tanh(x @ x), x))
x = jax.device_put(np.ones((300, 300), np.float32))
programs = [program(number) for number in range(6)]
try:
    for each in programs:
        each.lower(x)
except hcb.UnknownJaxError as error:
    print("refused:", "Import hostcb before the first use of JAX" in str(error))
    raise SystemExit
programs = [each.lower(x).compile() for each in programs]
for each in programs:
    # Every second one waits for its operand, and nothing waits for its dispatch.
    late = programs.index(each) % 2 == 0
    thread = threading.Thread(target=lambda: each(slow(x) if late else x))
    thread.start(), thread.join()
programs[0](slow(x))
programs[1](x)
hcb.barrier_wait()
print(seen)
"""


@pytest.mark.contract("H5")
def test_without_the_hooks_programs_of_several_threads_run_in_order() -> None:
    ended = run_program(THREADS.replace("BEFORE", ""), prelude="", devices=1).check()
    assert ended.lines == ["[0, 1, 2, 3, 4, 5, 0, 1]"], str(ended)


@pytest.mark.contract("H21")
def test_without_the_hooks_order_is_refused_where_it_would_not_be_kept() -> None:
    program = THREADS.replace("BEFORE", "jax.devices()")
    ended = run_program(program, prelude="", devices=1).check()
    assert ended.lines == ["refused: True"], str(ended)


@pytest.mark.contract("B6", "H21")
def test_without_the_types_of_buffers_their_names_are_classes_without_objects() -> None:
    source = """
import sys, warnings
warnings.simplefilter("ignore")
import jax
sys.modules["jax.experimental.buffer_callback"] = None
import hostcb as hcb
print([isinstance(each, type) for each in (hcb.Buffer, hcb.ExecutionContext, hcb.ExecutionStage)])
"""
    assert run_program(source, prelude="").check().lines == ["[True, True, True]"]


@pytest.mark.contract("H21")
def test_what_a_module_lacks_that_is_imported_later_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    late = registry.Entry("jax.nonesuch:part", "Does something.", "It is not done.", ("H4",), registry.Cost.SOME)
    monkeypatch.setattr(registry, "_warned", True)
    with pytest.warns(hcb.UnknownJaxWarning, match=r"jax\.nonesuch:part.*H4"):
        registry.probe_late(late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.probe_late(late)


@pytest.mark.contract("H13", "H21")
def test_without_jaxs_tokens_its_barrier_covers_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "runtime_tokens", None)
    waiting.cover_by_effects_barrier(jax.devices()[0], pytest.fail)
    assert waiting.covered(jax.devices()) == []


@pytest.mark.contract("X5", "H21")
def test_where_lowering_does_not_receive_the_devices_none_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering._NEEDS_DEVICES, "problem", "is missing")
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    program = jax.jit(lambda x: hcb.io_callback(lambda value: value, x, x, sharding=here))
    with pytest.raises(hcb.UnknownJaxError, match=r"io_callback.* is missing"):
        program.lower(np.float32(1))
