"""The workflows of GitHub: they run sessions of the noxfile alone, with the supported versions and few permissions."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from subprocesses import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
NOXFILE = ast.parse((ROOT / "noxfile.py").read_text())

RUNS_NO_SESSION = {"python -m pip install nox"}


def read(path: Path) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads its key `on` as a truth value."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in found.items()}


def jobs() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for path in WORKFLOWS:
        workflow = read(path)
        for name, job in workflow["jobs"].items():
            yield f"{path.stem}: {name}", workflow, job


def steps() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each step, with the environment that it sees."""
    for name, workflow, job in jobs():
        for step in job.get("steps", ()):
            seen = workflow.get("env", {}) | job.get("env", {}) | step.get("env", {})
            yield name, step, seen | {"job": job}


def combinations(job: dict[str, Any]) -> list[dict[str, str]]:
    """The jobs of a matrix. An `include` without a value that all others have is a job of its own."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    included = matrix.pop("include", [])
    product = [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]
    return [*(product if matrix else []), *included] or [{}]


def sessions_of(noxfile: ast.Module) -> dict[str, tuple[set[str], bool]]:
    """The sessions, each with its tags and whether it has parameters."""
    found = {}
    for function in noxfile.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        words = [ast.unparse(decorator) for decorator in function.decorator_list]
        if not any(word.startswith("nox.session") for word in words):
            continue
        name, tags = function.name, set()
        for decorator in function.decorator_list:
            for keyword in getattr(decorator, "keywords", ()):
                if keyword.arg == "name":
                    name = ast.literal_eval(keyword.value)
                if keyword.arg == "tags":
                    tags = {*ast.literal_eval(keyword.value)}
        found[name] = (tags, any("nox.parametrize" in word for word in words))
    return found


def supported() -> list[tuple[str, str]]:
    value = next(
        node.value
        for node in NOXFILE.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUPPORTED"
    )
    return [*ast.literal_eval(value)]


def called() -> list[tuple[str, str]]:
    """The sessions that the workflows call, each with the job."""
    found = []
    for name, step, seen in steps():
        if (run := step.get("run")) is None or run in RUNS_NO_SESSION:
            continue
        line = re.fullmatch(r'nox -s (?:"([^"]+)"|(\S+))(?: -- .*)?', run.strip())
        assert line, f"{name} runs {run!r}, which is no session of nox: nothing shall run in CI alone"
        for combination in combinations(seen["job"]):
            session = line[1] or line[2]
            for variable, value in seen.items():
                if variable != "job":
                    session = session.replace(f"${variable}", str(value))
            for key, value in combination.items():
                session = session.replace(f"${{{{ matrix.{key} }}}}", str(value))
            found.append((name, session))
    return found


def test_each_session_that_a_workflow_calls_is_in_the_noxfile() -> None:
    known = sessions_of(NOXFILE)
    assert len(called()) > 10
    for job, session in called():
        name, _, parameters = session.partition("(")
        assert name in known, f"{job} calls `nox -s {session}`, and the noxfile has no session {name}"
        assert bool(parameters) == known[name][1], f"{job} calls `nox -s {session}`: parameters where there are none"


def test_the_workflows_call_all_sessions_that_must_pass() -> None:
    wanted = {name for name, (tags, _) in sessions_of(NOXFILE).items() if "ci" in tags}
    # The matrix of pairs stands in the decorator of the parameters.
    wanted |= {"tests"}
    assert wanted - {session.partition("(")[0] for _, session in called()} == set()


def test_the_versions_are_those_of_the_noxfile() -> None:
    pairs = [f"tests({python}-{jax})" for python, jax in supported()]
    assert [session for _, session in called() if session.startswith("tests(")] == pairs
    of_python = {python for python, _ in supported()}
    for name, step, seen in steps():
        if "setup-python" in step.get("uses", ""):
            written = step["with"]["python-version"]
            for combination in combinations(seen["job"]):
                python = combination["python"] if "matrix" in written else written
                assert python in of_python, f"{name} is on Python {python}"
    tried = read(FOLDER / "packages.yml")["jobs"]["try"]["strategy"]["matrix"]["python"]
    assert {*tried} == of_python


def test_shards_are_as_many_as_the_matrix_has() -> None:
    workflow = read(FOLDER / "conformance.yml")
    numbers = workflow["jobs"]["shard"]["strategy"]["matrix"]["number"]
    assert numbers == [*range(1, workflow["env"]["SHARDS"] + 1)]
    assert workflow["jobs"]["report"]["needs"] == ["shard", "lower"]


def test_each_action_is_pinned_by_its_commit_and_named_with_a_version() -> None:
    for path in WORKFLOWS:
        uses = re.findall(r"uses: (.+)", path.read_text())
        assert uses, f"{path.name} uses no action"
        for words in uses:
            own = words.startswith("./")
            assert own or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", words), f"{path.name}: {words}"


def test_workflows_may_read_alone() -> None:
    for path in WORKFLOWS:
        assert read(path)["permissions"] == {"contents": "read"}, f"{path.name} may do more than read"
    more = {name: job["permissions"] for name, _, job in jobs() if "permissions" in job}
    assert more == {"release: publish": {"id-token": "write"}}


def test_no_step_keeps_the_credentials_or_pastes_an_expression_into_a_shell() -> None:
    for name, step, _ in steps():
        assert "${{" not in step.get("run", ""), f"{name}: an expression becomes a part of the script: use `env`"
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False, f"{name} leaves a token in the checkout"


def test_each_job_ends_in_time_and_runs_of_one_branch_do_not_meet() -> None:
    groups = []
    for path in WORKFLOWS:
        groups.append(read(path)["concurrency"]["group"])
    assert len({*groups}) == len(groups)
    for name, _, job in jobs():
        assert "uses" in job or job["timeout-minutes"] <= 90, f"{name} has no deadline"


def test_a_release_waits_for_all_the_others_and_asks_for_no_secret() -> None:
    text = (FOLDER / "release.yml").read_text()
    release = read(FOLDER / "release.yml")["jobs"]
    assert release["publish"]["needs"] == ["tests", "conformance", "packages"]
    assert release["publish"]["environment"]["name"] == "pypi"
    for name in release["publish"]["needs"]:
        assert "workflow_call" in read(FOLDER / f"{name}.yml")["on"]
        assert release[name]["needs"] == "version"
    assert "secrets" not in text


def test_a_pre_release_of_jax_is_tried_each_week() -> None:
    tests = read(FOLDER / "tests.yml")
    assert tests["on"]["schedule"]
    assert "schedule" in tests["jobs"]["prerelease"]["if"]
    assert ("tests: prerelease", "prerelease") in called()
