"""H16: the flags, by environment variable, by absl flag and by jax.config.update."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import Record
from support.subprocesses import PRELUDE, run_program

import hostcb as hcb

pytestmark = pytest.mark.contract("H16")

INLINE = "jax_host_callback_inline"
AD = "jax_host_callback_ad_transforms"
SIZE = "jax_host_callback_max_queue_byte_size"


@contextmanager
def flag(name: str, value: Any, restored: Any = False) -> Iterator[None]:
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, restored)


def bad(arg: Any, transforms: Any = None) -> Any:
    raise ValueError("the reason")


def test_inline_eager_callbacks_run_at_once_in_the_calling_thread(devices: list[jax.Device]) -> None:
    record = Record()
    with flag(INLINE, True):
        out = hcb.id_tap(record.tap, (jnp.float32(1), 2), tap_with_device=True)
        got = hcb.call(record.caller(), jnp.float32(3), result_shape=1.0)
        mapped = jax.vmap(lambda x: hcb.id_tap(record.tap, x))(jnp.arange(2.0))
        seen = list(record.all)
    assert [one.thread for one in seen] == [threading.current_thread().name] * 3, "in the calling thread, at once"
    assert float(got) == 3.0
    assert [float(x) for x in out] == [1.0, 2.0]
    assert mapped.tolist() == [0.0, 1.0]
    assert seen[0].device is devices[0]
    assert seen[2].transforms == (("batch", {"batch_dims": (0,)}),)
    assert all(type(leaf) is np.ndarray for one in seen for leaf in jax.tree.leaves(one.arg)), "NumPy arrays"


@pytest.mark.parametrize("kind", ["tap", "call"])
def test_inline_exceptions_come_through(kind: str) -> None:
    with flag(INLINE, True), pytest.raises(ValueError, match="the reason"):
        hcb.id_tap(bad, 1.0) if kind == "tap" else hcb.call(bad, 1.0, result_shape=1.0)
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as exception:
        assert "the reason" in str(exception)  # reporting it again is allowed, keeping it is not
    hcb.barrier_wait()


def test_inline_call_with_a_wrong_result() -> None:
    with flag(INLINE, True), pytest.raises(Exception, match="float32"):
        hcb.call(lambda x: np.int32(1), 1.0, result_shape=1.0)
    with suppress(hcb.CallbackException):
        hcb.barrier_wait()
    assert float(hcb.call(lambda x: x, 1.0, result_shape=1.0)) == 1.0


@pytest.mark.parametrize("layout", helpers.COMPILED, ids=helpers.named)
def test_inline_leaves_compiled_programs_alone(layout: helpers.Layout) -> None:
    record, x = Record(), np.arange(8, dtype=np.float32)
    with flag(INLINE, True):
        outs = layout.run(
            lambda x: hcb.call(record.caller(), hcb.id_tap(record.tap, x), result_shape=x) + 1, layout.same(x)
        )
        hcb.barrier_wait()
    for out in outs:
        helpers.equal(out, x + 1, "result")
    assert len(record.all) == 2 * len(layout.callers)


SHOW = """
record = []
def tap(a, t):
    record.append(threading.current_thread() is threading.main_thread())
hcb.id_tap(tap, 1.0)
print("inline" if record else "queued")
hcb.barrier_wait()
assert len(record) == 1
"""


@pytest.mark.parametrize(("text", "mode"), [("1", "inline"), ("True", "inline"), ("0", "queued"), ("", "queued")])
def test_inline_by_environment(text: str, mode: str) -> None:
    # A queued tap may have run by the time we look, but not in the main thread.
    source = SHOW.replace('"inline" if record else', '"inline" if any(record) else')
    assert run_program(source, devices=1, env={INLINE.upper(): text}).check().lines == [mode]


ABSL = """
from absl import app, flags
def main(argv):
    INSIDE
if __name__ == "__main__":
    app.run(main, argv=["program", *ARGV])
"""


@pytest.mark.parametrize(
    ("argv", "mode"),
    [(["--jax_host_callback_inline"], "inline"), (["--nojax_host_callback_inline"], "queued"), ([], "inline")],
    ids=str,
)
def test_inline_by_absl_flag_which_beats_the_environment(argv: list[str], mode: str) -> None:
    inside = "\n    ".join(SHOW.replace('"inline" if record else', '"inline" if any(record) else').strip().splitlines())
    source = ABSL.replace("INSIDE", inside).replace("ARGV", repr(argv))
    assert run_program(source, devices=1, env={INLINE.upper(): "1"}).check().lines == [mode]


def test_a_flag_that_the_program_has_defined_is_used() -> None:
    """As programs do that declare the flags of host_callback, which their JAX no longer does."""
    source = 'absl.flags.FLAGS(["program", "--jax_host_callback_inline"])' + SHOW
    declared = f"import absl.flags\nabsl.flags.DEFINE_bool({INLINE!r}, False, 'of the program')\n"
    assert run_program(source, devices=1, prelude=declared + PRELUDE).check().lines == ["inline"]


def test_queue_size_by_absl_flag() -> None:
    inside = """
    gate, seen = threading.Event(), []
    tap = lambda a, t: seen.append(gate.wait(60))
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: hcb.id_tap(tap, x), x))
    thread = threading.Thread(target=lambda: jax.block_until_ready(program(np.ones(1000, np.float32))))
    thread.start()
    thread.join(LIMIT)
    print("waits" if thread.is_alive() else "does not wait")
    gate.set()
    thread.join()
    hcb.barrier_wait()
    assert seen == [True] * 20"""
    # What need not wait gets all the time that a loaded machine may take; what has to wait shows it at once.
    for argv, limit, said in (
        (["--jax_host_callback_max_queue_byte_size=9000"], "0.5", "waits"),
        ([], "60", "does not wait"),
    ):
        source = ABSL.replace("INSIDE", inside.replace("LIMIT", limit)).replace("ARGV", repr(argv))
        ended = run_program(source, devices=1).check()
        assert ended.lines == [said], f"with {argv}: {ended}"


def test_a_queue_of_no_bytes_may_be_asked_for_by_absl_flag() -> None:
    source = ABSL.replace("INSIDE", "hcb.id_tap(print, 1.0); hcb.barrier_wait()").replace("ARGV", f"['--{SIZE}=0']")
    assert run_program(source, devices=1).check().lines == ["1.0 ()"]


def test_an_absl_flag_that_is_parsed_after_the_first_callback_is_used() -> None:
    """As in a program that taps before `app.run`."""
    source = (
        "import absl.flags\nhcb.id_tap(lambda a, t: None, 1.0); hcb.barrier_wait()\n"
        "absl.flags.FLAGS(['program', '--jax_host_callback_inline'])" + SHOW
    )
    assert run_program(source, devices=1).check().lines == ["inline"]


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_bad_queue_size_in_the_environment(text: str) -> None:
    ended = run_program("hcb.id_tap(lambda a, t: None, 1.0)", devices=1, env={SIZE.upper(): text})
    assert ended.returncode == 1, f"a queue of {text} bytes should be an error: {ended}"
    assert SIZE.upper() in ended.stderr, f"the error should name the variable: {ended}"


def test_bad_queue_size_by_absl_flag_and_by_config() -> None:
    ended = run_program(ABSL.replace("INSIDE", "pass").replace("ARGV", f"['--{SIZE}=-5']"), devices=1)
    assert ended.returncode not in (0, None), f"a negative size should be an error: {ended}"
    assert SIZE in ended.stderr + ended.stdout, f"the error should name the flag: {ended}"
    with pytest.raises(ValueError, match=SIZE):
        jax.config.update(SIZE, -1)


@pytest.mark.parametrize("text", ["perhaps", "2"])
def test_bad_truth_value_in_the_environment(text: str) -> None:
    ended = run_program("pass", devices=1, env={INLINE.upper(): text})
    assert ended.returncode == 1, f"{text!r} is no truth value: {ended}"
    assert INLINE.upper() in ended.stderr, f"the error should name the variable: {ended}"


def test_outfeed_flag_is_accepted() -> None:
    source = """
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("d")))
tap = lambda a, t, device: print(device.id, a.tolist())
jax.jit(lambda x: hcb.id_tap(tap, x, tap_with_device=True, device_index=3))(x)
hcb.barrier_wait()
"""
    for value in ("1", "0"):
        ended = run_program(source, env={"JAX_HOST_CALLBACK_OUTFEED": value}).check()
        assert ended.lines == ["3 [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]"], str(ended)


QUIET = pytest.mark.filterwarnings("ignore:The flag jax_host_callback_ad_transforms:FutureWarning")


def test_ad_transforms_by_environment() -> None:
    source = """
seen = []
jax.grad(lambda x: hcb.id_tap(lambda a, t: seen.append([name for name, _ in t]), x * x) * x)(3.0)
hcb.barrier_wait()
print(json.dumps(seen))
"""
    env = {AD.upper(): "1"}
    assert run_program(source, devices=1, env=env, warnings="ignore").json() == [[], ["jvp", "transpose"]]


def test_ad_transforms_warns() -> None:
    with flag(AD, True), pytest.warns(FutureWarning, match=AD):
        hcb.id_tap(lambda a, t: None, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hcb.id_tap(lambda a, t: None, 1.0)


@QUIET
def test_ad_transforms_of_leaves_without_tangents() -> None:
    """They are float0 arrays of the leaf's shape; each here has another size, so one in the place of another shows."""
    seen = []
    nothing = np.zeros(2, jax.dtypes.float0)

    def tap(value, transforms):
        seen.append((jax.tree.map(shown, value), [name for name, _ in transforms]))

    def shown(leaf):
        return ("float0", np.size(leaf)) if leaf.dtype == jax.dtypes.float0 else np.asarray(leaf).tolist()

    def cubed(x):
        leaves = {"a": x * x, "b": nothing, "c": jnp.full(3, 7), "d": jnp.int32(4), "e": jnp.bfloat16(2.5)}
        tapped = hcb.id_tap(tap, {**leaves, "f": jnp.complex64(1 + 2j)})
        assert tapped["b"].dtype == jax.dtypes.float0 and np.shape(tapped["b"]) == (2,)
        return tapped["a"] * x

    with flag(AD, True):
        for program in (lambda x: jax.jvp(cubed, (x,), (1.0,)), jax.grad(cubed)):
            jax.block_until_ready(jax.jit(program)(3.0))
            hcb.barrier_wait()
    values = {"a": 9.0, "b": ("float0", 2), "c": [7, 7, 7], "d": 4, "e": 2.5, "f": 1 + 2j}
    empty = {"b": ("float0", 2), "c": ("float0", 3), "d": ("float0", 1), "e": 0.0, "f": 0j}
    assert seen == [
        ((values, {**empty, "a": 6.0}), ["jvp"]),
        (values, []),
        ({**empty, "a": 3.0}, ["jvp", "transpose"]),
    ]


def test_each_setting_of_an_absl_flag_and_of_jax_counts_for_the_next_callback() -> None:
    """What JAX's own setting says comes first, and None takes it back."""
    source = f"""
absl.flags.FLAGS(["program"])
here, modes = threading.get_ident(), []
for by_absl, by_jax in ((None, None), (1, None), (0, None), (1, None), (1, False), (0, True), (0, None)):
    if by_absl is not None:
        setattr(absl.flags.FLAGS, {INLINE!r}, bool(by_absl))
    jax.config.update({INLINE!r}, by_jax)
    hcb.id_tap(lambda a, t: modes.append(threading.get_ident() == here), 1.0)
    hcb.barrier_wait(timeout=60)
print(json.dumps(modes))
"""
    found = run_program("import absl.flags\n" + source, devices=1).json()
    assert found == [False, True, False, True, False, True, False]
