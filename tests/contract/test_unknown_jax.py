"""H21: a JAX that has a part of its private side in another way. hostcb says what is lost, and nothing fails open.

`programs/unknown_jax.py` makes every change of an entry of the registry, one at a time. A usual session has one entry
of each cost, and a thorough one all of them.
"""

from __future__ import annotations

import collections
import concurrent.futures
import difflib
import json
from typing import Any

import jax
import private_parts
import pytest
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._compat import registry
from hostcb._compat.registry import Cost, Entry, called_with, known_as, with_parameters

pytestmark = pytest.mark.contract("H21")

NAMES = [entry.name for entry in registry.entries]
# Compiled in a hurry: it is the callbacks that count.
QUICK = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
SHARES = 2
# The first entry of each cost.
USUAL = {entry.cost: entry.name for entry in reversed(registry.entries)}.values()
ENTRIES = [
    pytest.param(entry, id=entry.name, marks=[] if entry.name in USUAL else pytest.mark.thorough)
    for entry in registry.entries
]
# What JAX raises where its own refusal is what is left.
REFUSALS = ("NotImplementedError", "ValueError", "TypeError", "JaxRuntimeError")


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """The result of each change of the entries that this session tests, by the name of the entry."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item for item in items if item.function in (test_what_is_lost_is_said_once, test_nothing_fails_open)]
    names = list(dict.fromkeys(item.callspec.params["entry"].name for item in mine))

    def share(number: int) -> list[str]:
        of_share = names[number::SHARES]
        ended = run_program("unknown_jax.py", *of_share, devices=None, env={"XLA_FLAGS": QUICK}, timeout=1800)
        return ended.check().lines

    found = collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(SHARES) as pool:
        for lines in pool.map(share, range(SHARES)):
            for line in lines:
                outcome = json.loads(line)
                found[outcome["name"]].append(outcome)
    return found


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_lost_is_said_once(entry: Entry, outcomes: dict[str, list[dict[str, Any]]]) -> None:
    assert "missing" in [each["how"] for each in outcomes[entry.name]]
    for each in outcomes[entry.name]:
        assert "error" not in each, f"{each['how']}: {each['error']}"
        assert not each["others"], f"{each['how']}: import hostcb gives other warnings"
        if each["passes_on"] and each["how"] == "one more argument":
            assert not each["lost"], "hostcb passes on the arguments that it does not know"
            continue
        assert each["lost"] and each["reported"], f"{each['how']}: {each['report']}"
        assert each["alone"] or each["how"] == "missing", f"{each['how']}: hostcb has replaced it all the same"
        (warning,) = each["warnings"]
        assert f"{entry.name} " in warning and f"Lost: {', '.join(each['promises'])}." in warning, warning


@pytest.mark.parametrize("entry", ENTRIES)
def test_nothing_fails_open(entry: Entry, outcomes: dict[str, list[dict[str, Any]]]) -> None:
    (missing,) = [each for each in outcomes[entry.name] if each["how"] == "missing"]
    programs = missing["programs"]
    wrong = {name: result for name, result in programs.items() if result[0] == "wrong"}
    assert not wrong
    refused = {name: result for name, result in programs.items() if result != "right"}
    assert not [name for name in refused if name.startswith("jax_")], f"programs of JAX's own: {refused}"
    for kind, text in refused.values():
        if kind == "UnknownJaxError":
            assert entry.name in text and "python -m hostcb" in text, text
        else:
            assert kind in REFUSALS and "JAX refuses" in entry.without, f"{kind}: {text}"
    expected = {Cost.ALL: {"in_order", "pure"}, Cost.EFFECTS: {"in_order"}}.get(entry.cost, set())
    assert expected <= {*refused}, "what cannot work is refused"
    if entry.cost is Cost.COMFORT:
        assert not refused


@pytest.mark.parametrize("cost", [Cost.ALL, Cost.EFFECTS])
def test_each_function_refuses_while_it_is_traced(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a process: the function is new each time, so no callback of it is known."""
    entry = next(each for each in registry.entries if each.cost is cost)
    monkeypatch.setattr(registry, "_blocking", [entry])
    shape = jax.ShapeDtypeStruct((), "float32")
    functions = {
        "id_tap": lambda x: hcb.id_tap(lambda value, transforms: None, x),
        "call": lambda x: hcb.call(lambda value: value, x, result_shape=shape),
        "io_callback": lambda x: hcb.io_callback(lambda value: value, shape, x),
        "debug.callback": lambda x: hcb.debug.callback(lambda value: None, x),
    }
    if cost is Cost.ALL:
        functions["pure_callback"] = lambda x: hcb.pure_callback(lambda value: value, shape, x)
    for name, function in functions.items():
        with pytest.raises(hcb.UnknownJaxError, match=name):
            jax.jit(function).trace(1.0)


def test_a_jax_that_passes_one_more_argument_runs_as_before() -> None:
    source = """
import inspect, textwrap, warnings
import jax, jax.numpy as jnp, numpy as np
from jax._src.interpreters import pxla
from jax.experimental import io_callback
executor = pxla.ExecuteReplicated
plain = executor._handle_token_bufs
def handle(self, token_bufs, sharded_token, new_argument):
    assert new_argument == "new"
    return plain(self, token_bufs, sharded_token)
executor._handle_token_bufs = handle
names = vars(pxla).copy()
text = textwrap.dedent(inspect.getsource(inspect.unwrap(executor.__call__)))
exec(text.replace("sharded_runtime_token)", "sharded_runtime_token, 'new')"), names)
executor.__call__ = names["__call__"]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import hostcb as hcb
print(len(caught), "takes (self, token_bufs, sharded_token, new_argument)" in str(caught[0].message))
seen = []
def both(x):
    hcb.id_tap(lambda x, _: seen.append(x.item()), x)
    return io_callback(lambda x: seen.append("JAX") or x, x, x, ordered=True)
for step in range(2):
    jax.jit(both)(np.float32(step))
    jax.effects_barrier(), hcb.barrier_wait()
print(sorted(seen, key=str))
"""
    ended = run_program(source, prelude="", devices=1).check()
    assert ended.lines == ["1 True", "[0.0, 1.0, 'JAX', 'JAX']"], str(ended)


WITHOUT_RULE = """
import jax
from jax._src.lax.control_flow import loops
del loops._scan_known_hoisting
"""


def test_the_warning_names_the_line_that_imports_and_can_be_silenced() -> None:
    shown = run_program(f"{WITHOUT_RULE}import hostcb", prelude="", devices=1).check()
    assert "<string>:5: UnknownJaxWarning: hostcb does not know a part of JAX" in shown.stderr, str(shown)
    quiet = 'import warnings; warnings.filterwarnings("ignore", "hostcb", RuntimeWarning)'
    assert not run_program(f"{WITHOUT_RULE}{quiet}\nimport hostcb", prelude="", devices=1).check().stderr
    silenced = run_program(f"{WITHOUT_RULE}import hostcb", prelude="", devices=1, warnings="ignore:hostcb")
    assert not silenced.check().stderr


@pytest.mark.parametrize("how", ["all", "lost", "no devices"])
def test_the_doctor_says_what_was_found(how: str) -> None:
    run = 'import runpy; runpy.run_module("hostcb", run_name="__main__")'
    environment = {"JAX_PLATFORMS": "nonsense"} if how == "no devices" else {}
    program = (WITHOUT_RULE if how == "lost" else "") + run
    ended = run_program(program, "--all", prelude="", devices=2, env=environment)
    assert ended.returncode == (1 if how == "lost" else 0), str(ended)
    brief = run_program(program, prelude="", devices=2, env=environment)
    assert brief.returncode == ended.returncode
    assert set(brief.lines[:-1]) - {"devices"} <= set(ended.lines), str(brief)
    assert ("Lost: " in brief.stdout) == (how == "lost")
    for name in NAMES:
        assert f"  {name}: " in ended.stdout, f"{name} is missing"
    assert f"hostcb {hcb.__version__} with JAX" in ended.lines[0]
    assert ("cpu:0, cpu:1" in ended.stdout) == (how != "no devices"), str(ended)
    if how == "no devices":
        assert "none: JAX says: " in ended.stdout
        return
    assert "callbacks read the device's memory" in ended.stdout and ": without a copy" in ended.stdout
    said = "1 of " if how == "lost" else f"all {len(NAMES)} "
    assert f"private parts of JAX: {said}" in ended.stdout


def test_the_parts_of_jax_are_those_of_the_snapshot() -> None:
    """What the warning says is lost, and what each part needs, do not change by accident."""
    stored = private_parts.FILE.read_text(encoding="utf-8").splitlines()
    changes = "\n".join(
        difflib.unified_diff(stored, private_parts.snapshot().splitlines(), "stored", "now", lineterm="")
    )
    assert not changes, f"if this is meant, renew it: {private_parts.COMMAND}\n{changes}"


@pytest.mark.parametrize(
    ("signature", "function", "problem"),
    [
        (called_with(1, "b"), lambda a, *, b: None, None),
        (called_with(1, "b"), lambda a, *, b, c=1: None, None),
        (called_with(1, "b"), lambda a, *, b, c: None, "missing a required argument: 'c'"),
        (called_with(1, "b"), lambda a: None, "unexpected keyword argument 'b'"),
        (called_with(2), lambda a: None, "too many positional arguments"),
        (known_as("a b", "a b c"), lambda a, b, c: None, None),
        (known_as("a b"), lambda a, b, c=None: None, "takes (a, b, c)"),
        (with_parameters("a"), lambda b, a, c: None, None),
        (with_parameters("a"), lambda b: None, "takes (b)"),
        (with_parameters("a", "b"), lambda b, c: None, "takes (b, c)"),
        (called_with(0), 3, "is 3, which cannot be called"),
    ],
)
def test_how_signatures_are_compared(signature: Any, function: Any, problem: str | None) -> None:
    found = signature.problem(function)
    assert found == problem or (problem is not None and problem in found), found


@pytest.mark.parametrize(
    ("since", "until", "needed"), [("0.1", None, True), ("99.0", None, False), ("0.1", "0.2", False)]
)
def test_an_entry_that_this_jax_does_not_need_is_not_lost(since: str, until: str | None, needed: bool) -> None:
    entry = Entry("jax:nothing", "", "", ("H1",), Cost.ALL, since=since, until=until)
    entry.probe()
    assert entry.lost == needed
    assert (entry.state == "not needed any more") != needed
