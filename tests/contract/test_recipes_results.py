"""The recipes beyond what they print: results under transformations, several devices, failures and bounds."""

from __future__ import annotations

import json
import re
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.recipes import load

import hostcb as hcb


def recorded(module: Any) -> Any:
    """Bars that keep what would be drawn."""

    class Recorded(module.Bars):
        def __init__(self) -> None:
            super().__init__()
            self.drawn: list[tuple[str, int, int]] = []
            self.closed = 0

        def draw(self, label: str, done: int, total: int) -> None:
            self.drawn.append((label, done, total))

        def close(self) -> None:
            self.closed += 1

    return Recorded()


STEPS = 1000
LOOPS = {
    "jit": jax.jit,
    "grad": lambda f: jax.jit(jax.grad(f)),
    "checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
    "vmap": lambda f: jax.jit(lambda x: jax.vmap(f)(jnp.stack([x, x]))),
}


@pytest.mark.contract("H4", "H6", "H11")
@pytest.mark.parametrize("how", LOOPS)
def test_a_loop_with_a_bar_has_the_same_result(how: str) -> None:
    module = load("progress_bars")
    bars, xs = recorded(module), jnp.linspace(0, 1, STEPS)
    step = lambda carry, x: (carry + jnp.sin(carry * x) / STEPS, None)
    with_bar = LOOPS[how](lambda x: module.scan(bars, "scan", step, x, xs)[0])
    without = LOOPS[how](lambda x: jax.lax.scan(step, x, xs)[0])
    with bars:
        np.testing.assert_allclose(with_bar(1.0), without(1.0), rtol=1e-6)
    label = f"scan on {jax.devices()[0]}"
    assert bars.closed == 1 and {label} == {drawn[0] for drawn in bars.drawn}
    passes = 2 if how == "checkpoint" else 1
    assert bars.drawn == passes * [(label, done, STEPS) for done in range(0, STEPS + 1, STEPS // module.UPDATES)]


@pytest.mark.contract("H4", "H5")
def test_bars_of_nested_loops_with_traced_bounds() -> None:
    module = load("progress_bars")
    bars = recorded(module)

    @jax.jit
    def program(lower: Any, upper: Any) -> Any:
        inner = lambda _, x: module.fori_loop(bars, "inner", lower, upper, lambda i, x: x + i, x)
        return module.fori_loop(bars, "outer", 0, 2, inner, 0)

    with bars:
        assert program(3, 6) == 24
    inner, outer = (f"{name} on {jax.devices()[0]}" for name in ("inner", "outer"))
    counted = [(inner, done, 3) for done in range(4)]
    assert bars.drawn == [(outer, 0, 2), *counted, (outer, 1, 2), *counted, (outer, 2, 2)]


@pytest.mark.contract("H9")
@pytest.mark.parametrize("layout", [helpers.PMAP, helpers.SHARD_MAP], ids=helpers.named)
def test_each_device_has_a_bar(layout: helpers.Layout) -> None:
    module = load("progress_bars")
    bars = recorded(module)
    with bars:
        layout.run(lambda x: module.fori_loop(bars, "loop", 0, 5, lambda i, x: x + i, x), layout.same(np.float32(1)))
    for device in jax.devices():
        drawn = [done for label, done, _ in bars.drawn if label == f"loop on {device}"]
        assert drawn == list(range(6)), f"{device}: {drawn}"


@pytest.mark.parametrize("package", ["tqdm", "rich"])
def test_bars_of_a_package_may_be_used_again(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The second block has bars of its own, of the same compiled program."""
    module = load("progress_bars", package)
    bars = module.TqdmBars(file=sys.stderr) if package == "tqdm" else module.RichBars()
    program = jax.jit(lambda x: module.fori_loop(bars, "loop", 0, 5, lambda i, x: x + i, x))
    for _ in range(2):
        with bars:
            program(0.0)
        out, err = capsys.readouterr()
        assert out + err and not bars._bars


@pytest.mark.contract("H11")
@pytest.mark.parametrize("layout", helpers.COMPILED, ids=helpers.named)
def test_json_lines_of_each_device_are_whole_and_in_order(layout: helpers.Layout, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with load("metrics_jsonl").JsonLines(path) as lines:

        def step(x: Any, index: Any) -> Any:
            lines.tap({"step": index, "mean": jnp.mean(x)})
            return x + 1, None

        layout.run(lambda x: jax.lax.scan(step, x, jnp.arange(50))[0], layout.same(np.arange(8, dtype=np.float32)))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 50 * len(layout.callers)
    for caller in layout.callers:
        of_device = [line for line in found if line["device"] == str(jax.devices()[caller])]
        assert [(line["step"], line["mean"]) for line in of_device] == [(i, 3.5 + i) for i in range(50)]


@pytest.mark.contract("H7")
def test_a_metric_under_vmap_is_a_list(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with load("metrics_jsonl").JsonLines(path) as lines:
        helpers.finish(jax.jit(jax.vmap(lambda x: lines.tap({"x": x})))(jnp.arange(3)))
        assert json.loads(path.read_text())["x"] == [0, 1, 2], "also before the file is closed"


def test_the_cost_of_json_lines_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    median, best = load("metrics_jsonl").measure(path, steps=3, rounds=3)
    assert median > 0 and best > 0
    assert len(path.read_text().splitlines()) == 3 * 4


def test_tensorboards_files_have_all_that_was_tapped(tmp_path: Path) -> None:
    module = load("metrics_tensorboard")
    with module.TensorBoard(str(tmp_path)) as board:
        _, losses = jax.jit(lambda weights: module.train(board, weights, 20, 10))(jnp.zeros(16))
    (path,) = tmp_path.iterdir()
    scalars, histograms = events(path)
    assert scalars["loss"] == [(step, pytest.approx(float(loss))) for step, loss in enumerate(losses)]
    assert [step for step, _ in scalars["gradient"]] == list(range(20))
    assert histograms == {"weights": [0, 10]}


def events(path: Path) -> tuple[dict[str, list[Any]], dict[str, list[int]]]:
    """The scalars and the steps of histograms in a file of TensorBoard's records: length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    scalars: dict[str, list[Any]] = {}
    histograms: dict[str, list[int]] = {}
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += length + 16
        for value in event.summary.value:
            if value.HasField("histo"):
                histograms.setdefault(value.tag, []).append(event.step)
            else:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars, histograms


def test_a_training_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    module = load("checkpoints")
    start = {"weights": jnp.linspace(-1, 1, 8), "speed": jnp.zeros(8)}
    fit = jax.jit(module.train, static_argnums=(0, 4))
    with module.Checkpoints(tmp_path, keep=2) as checkpoints:
        fit(checkpoints, start, 0, 17, 5)
    assert [path.name for path in checkpoints.saved()] == [f"step-0000000{step}-cpu-0.npz" for step in (10, 15)]
    step, state = checkpoints.restore(start)
    assert step == 15
    helpers.equal(fit(None, state, step, 30, 5), fit(None, start, 0, 30, 5), "the state")
    helpers.equal(module.Checkpoints(tmp_path / "none").restore(start), (0, start), "without a checkpoint")


@pytest.mark.contract("H9")
@pytest.mark.parametrize("layout", [helpers.PMAP, helpers.SHARD_MAP], ids=helpers.named)
def test_each_device_saves_its_part(layout: helpers.Layout, tmp_path: Path) -> None:
    values = np.arange(16, dtype=np.float32)
    with (checkpoints := load("checkpoints").Checkpoints(tmp_path, keep=2)):
        step = lambda x, index: (checkpoints.tap(index, x + 1), None)
        layout.run(lambda x: jax.lax.scan(step, x, jnp.arange(3))[0], layout.split(values.reshape(8, 2)))
    assert len(checkpoints.saved()) == 2 * len(jax.devices())
    parts = [checkpoints.restore(jnp.zeros(2), device) for device in jax.devices()]
    assert [step for step, _ in parts] == [2] * len(parts)
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), values + 3)
    with pytest.raises(ValueError, match=r"has shape \(2,\) in place of \(16,\)"):
        checkpoints.restore(jnp.zeros(16))


@pytest.mark.parametrize("fails", ["write", "replace"])
def test_a_checkpoint_that_fails_is_not_there_and_the_failure_is_raised(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("checkpoints")

    def partly(*args: Any, **kwargs: Any) -> None:
        if fails == "write":
            args[0].write(b"half of it")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"), module.Checkpoints(tmp_path, pending=1) as checkpoints:
        checkpoints.tap(1, jnp.arange(3))
        hcb.barrier_wait()
        helpers.wait_until(checkpoints.saved)
        monkeypatch.setattr(*(module.np, "savez") if fails == "write" else (Path, "replace"), partly)
        # More than may wait: the taps come to their end all the same.
        jax.jit(lambda x: jax.lax.scan(lambda x, i: (checkpoints.tap(i, x), None), x, jnp.arange(2, 9)))(jnp.arange(3))
    assert [path.name for path in checkpoints.saved()] == ["step-000000001-cpu-0.npz"]


def test_few_checkpoints_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one is written, `pending` wait, and the tap of the next one waits."""
    module = load("checkpoints")
    written, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> None:
        written.set()
        assert go_on.wait(helpers.DEADLINE)

    monkeypatch.setattr(module.np, "savez", slow)
    with module.Checkpoints(tmp_path, keep=9, pending=2) as checkpoints:
        program = jax.jit(lambda x: jax.lax.scan(lambda x, i: (checkpoints.tap(i, x), None), x, jnp.arange(6))[0])
        out = program(jnp.arange(3))
        assert written.wait(helpers.DEADLINE)
        helpers.wait_until(checkpoints._pending.full)
        assert out.tolist() == [0, 1, 2], "the device has gone on"
        assert checkpoints.saved() == []
        go_on.set()
    assert len(checkpoints.saved()) == 6


@pytest.mark.contract("H4")
def test_early_stopping_stops_where_python_would() -> None:
    module = load("early_stopping")
    losses = jnp.array([5.0, 4, 6, 3, 3, 3, 2, 9, 9, 9, 1])
    step = lambda index: (index + 1, losses[index])
    index, done = module.train_until(module.Patience(3), step, 0)
    assert (int(index), done) == (10, 10), "the sixth is the best, and the next three are no better"
    index, done = module.train_in_chunks(module.Patience(3), step, 0, 2)
    assert (int(index), done) == (10, 10)
    index, done = module.train_in_chunks(module.Patience(3), step, 0, 7)
    assert (int(index), done) == (14, 14), "at the end of a chunk"


@pytest.mark.contract("X2")
def test_a_root_has_derivatives_of_its_formula() -> None:
    module = load("scipy_root")
    # x0 + x1 = a, x0 x1 = b: the roots of a quadratic equation.
    root = module.root_of(lambda x, p: jnp.array([x[0] + x[1] - p["a"], x[0] * x[1] - p["b"]]))
    smaller = lambda p: root(jnp.array([0.1, 5.0]), p)[0]
    formula = lambda p: (p["a"] - jnp.sqrt(p["a"] ** 2 - 4 * p["b"])) / 2
    at = {"a": jnp.float32(5.0), "b": jnp.float32(3.0)}
    for check in (lambda f: f, jax.grad, jax.hessian, jax.jacfwd):
        ours, theirs = (jax.jit(check(f))(at) for f in (smaller, formula))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), ours, theirs)
    batch = {"a": jnp.array([5.0, 6.0]), "b": jnp.array([3.0, 2.0])}
    np.testing.assert_allclose(jax.vmap(jax.grad(smaller))(batch)["b"], jax.vmap(jax.grad(formula))(batch)["b"], 1e-3)


@pytest.mark.contract("H15")
def test_a_root_that_does_not_exist_ends_the_program() -> None:
    root = load("scipy_root").root_of(lambda x, p: x**2 + p)
    helpers.failed("there is no root near", jax.jit(root), jnp.ones(1), jnp.ones(1))


@pytest.mark.contract("X3")
def test_a_rollout_is_that_of_the_environment() -> None:
    module = load("gymnasium_steps")
    environments = module.Environments("CartPole-v1", 3)
    actions = jax.random.bernoulli(jax.random.key(1), shape=(60, 3)).astype(int)

    @jax.jit
    def program(actions: Any) -> Any:
        first = environments.reset(7)
        return jax.lax.scan(lambda _, action: (0, environments.step(action)), 0, actions)[1], first

    (observations, rewards, over), first = program(actions)
    real = module.gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    np.testing.assert_array_equal(first, real.reset(seed=7)[0])
    assert np.asarray(over).any(), "an episode has ended, and the next one has begun"
    for step in range(60):
        observation, reward, terminated, truncated, _ = real.step(np.asarray(actions[step]))
        np.testing.assert_array_equal(observations[step], observation)
        np.testing.assert_array_equal(rewards[step], reward)
        np.testing.assert_array_equal(over[step], terminated | truncated)


@pytest.mark.contract("X3")
def test_a_policy_gradient_lengthens_the_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    load("gymnasium_steps").main()
    before, after = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert after > 1.5 * before, f"{before} steps, then {after}"


@pytest.mark.contract("X3")
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_feed_ends_with_its_iterator(count: int) -> None:
    module = load("feeding_data")
    batches = ({"x": np.full(3, i, np.float32)} for i in range(count))
    with module.Feed(batches, {"x": np.zeros(3, np.float32)}) as feed:
        seen = jax.jit(lambda s: module.fold(lambda s, batch: 10 * s + batch["x"][0] + 1, s, feed))(0.0)
    assert float(seen) == sum((i + 1) * 10 ** (count - 1 - i) for i in range(count))


@pytest.mark.contract("H15")
def test_an_exception_of_the_iterator_ends_the_program() -> None:
    module = load("feeding_data")

    def batches() -> Any:
        yield np.zeros(3, np.float32)
        raise LookupError("the second batch is lost")

    with module.Feed(batches(), np.zeros(3, np.float32)) as feed:
        program = jax.jit(lambda s: module.fold(lambda s, batch: s + batch[0], s, feed))
        helpers.failed("the second batch is lost", program, 0.0)


@pytest.mark.contract("H6", "H7")
def test_gradients_by_name_are_those_of_jax() -> None:
    module, seen = load("named_gradients"), {}

    def after(y: Any, see: Any) -> Any:
        return jnp.sum(jnp.sin(module.tap_gradient(see, "y", y)["a"]) * y["b"])

    def loss(x: Any, see: Any = seen.__setitem__) -> Any:
        return after({"a": x**2, "b": x}, see)

    x = jnp.linspace(0, 1, 4)
    helpers.finish(jax.jit(loss)(x))
    assert seen == {}, "nothing is differentiated"
    ours = helpers.finish(jax.jit(jax.grad(loss))(x))
    np.testing.assert_allclose(ours, jax.grad(lambda x: jnp.sum(jnp.sin(x**2) * x))(x), rtol=1e-6)
    np.testing.assert_allclose(seen["y"]["a"], jnp.cos(x**2) * x, rtol=1e-6)
    helpers.finish(jax.jit(jax.vmap(jax.grad(loss)))(x))
    np.testing.assert_allclose(seen["y"]["a"], jnp.cos(x**2) * x, rtol=1e-6, err_msg="under vmap")


@pytest.mark.contract("H5", "H7")
@pytest.mark.parametrize("how", ["jit", "vmap", "grad"])
def test_the_first_value_that_is_not_finite(how: str) -> None:
    finite = load("first_not_finite").Finite()

    def program(x: Any) -> Any:
        y = finite("root", jnp.sqrt(x - 2), of=x)
        return finite("inverse", {"z": 1 / (x - 1)}, of=x)["z"] + y

    # The root is not finite below 2, and at 1 both are not.
    run = jax.jit({"jit": program, "vmap": jax.vmap(program), "grad": jax.grad(program)}[how])
    value = (lambda x: jnp.array([9.0, x])) if how == "vmap" else lambda x: x
    helpers.finish(run(value(3.0)))
    assert finite.first == {}, "all are finite"
    for x in (0.0, 1.0):
        helpers.finish(run(value(x)))
    (place,) = finite.first.values()
    line = program.__code__.co_firstlineno + 1
    assert place.startswith(f"root at test_recipes_results.py:{line}, of ") and "nan" in place, place


@pytest.mark.contract("H9")
def test_each_device_has_a_first_value_that_is_not_finite(devices: list[jax.Device]) -> None:
    finite = load("first_not_finite").Finite()
    helpers.SHARD_MAP.run(lambda x: finite("log", jnp.log(x)), [np.float32(i % 2) for i in range(8)])
    hcb.barrier_wait()
    assert set(finite.first) == {device for device in devices if device.id % 2 == 0}
