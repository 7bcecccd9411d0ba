"""H21, H27: what can be pickled without hostcb can be with it, and the copy needs hostcb for its callbacks alone."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.subprocesses import run_program

from hostcb._compat import registry

pytestmark = pytest.mark.contract("H21", "H27")


Outcomes = dict[str, Any]
Run = Callable[[str, str], Outcomes]

# The names of the programs with hostcb's own callbacks begin so.
OURS = "hostcb's"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What each function returns in a process that pickles it, or its copy in one that loads it."""
    pytest.importorskip("cloudpickle")
    folder = tmp_path_factory.mktemp("pickles")

    @functools.cache
    def run(dumped: str, loaded: str) -> Outcomes:
        task, how = ("load", loaded) if loaded else ("dump", dumped)
        if loaded:
            run(dumped, "")
        outcomes: Outcomes = run_program("pickled.py", task, how, str(folder / dumped)).json()
        return outcomes

    return run


def without_ours(outcomes: Outcomes) -> Outcomes:
    return {name: outcome for name, outcome in outcomes.items() if not name.startswith(OURS)}


@pytest.mark.parametrize("dumped", ["imported", "installed"])
def test_what_jax_alone_pickles_is_pickled(run: Run, dumped: str) -> None:
    assert without_ours(run(dumped, "")) == run("alone", "")


@pytest.mark.parametrize(
    ("dumped", "loaded"),
    [("imported", "alone"), ("installed", "alone"), ("alone", "imported"), ("installed", "installed")],
)
def test_copies_do_the_same_in_another_process(run: Run, dumped: str, loaded: str) -> None:
    assert without_ours(run(dumped, loaded)) == run("alone", "alone")


def test_copies_with_our_callbacks_do_the_same(run: Run) -> None:
    returned, copies = run("imported", ""), run("imported", "imported")
    names = [name for name in returned if name.startswith(OURS)]
    assert names
    assert {name: copies[name] for name in names} == {name: returned[name] for name in names}
    assert all(isinstance(returned[name], list) for name in names)


REPLACED = [entry for entry in registry.entries if inspect.isfunction(entry.value) and entry.now() is not entry.value]


@pytest.mark.parametrize("entry", REPLACED, ids=lambda entry: entry.name)
def test_a_replaced_function_looks_as_jaxs_own(entry: registry.Entry) -> None:
    replacement = entry.now()
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        assert getattr(replacement, name) == getattr(entry.value, name)
    assert inspect.signature(replacement) == inspect.signature(entry.value)
    # By reference to JAX's name, which leads to JAX's own function where hostcb is not imported.
    data = pickle.dumps(replacement)
    assert pickle.loads(data) is replacement
    assert b"hostcb" not in data


@pytest.mark.contract("H21")
@pytest.mark.parametrize("entry", REPLACED, ids=lambda entry: entry.name)
def test_a_replaced_function_has_the_names_of_its_parameters(entry: registry.Entry) -> None:
    """JAX may pass any of them by keyword."""
    theirs = [*inspect.signature(entry.value).parameters]
    ours = inspect.signature(entry.now(), follow_wrapped=False).parameters.values()
    named = [each.name for each in ours if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    assert named == theirs[: len(named)]
