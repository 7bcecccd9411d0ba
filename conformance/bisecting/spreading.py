"""A prober for the search on a Dask cluster: one piece of work is what is asked of one release."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..engine.dask_pieces import PieceError
from ..engine.dask_work import Work
from ..releases.environments import Environments
from ..releases.release import Release, ReleaseError
from ..worker.stress import stress as stressed
from .candidates import Candidate
from .findings import Place
from .probing import ReleaseProber
from .samples import Sample
from .subjects import Cells, Question, Script


def ask_release(
    release: Release,
    environments: Path | None,
    question: Question,
    script: bytes,
    subjects: Sequence[str],
    runs: int,
    stress: bool,
) -> Iterator[dict[str, Any]]:
    """Each run of a subject, or the error of the release. A piece of work on a worker."""
    busy = stressed() if stress else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, busy:
        here = _moved(question, script, Path(folder))
        candidate = Candidate(Place(release.jax, release.label), release)
        try:
            for subject, sample in ReleaseProber((candidate,), Environments(environments), here)(0, subjects, runs):
                yield {"subject": subject, "sample": sample.as_json()}
        except ReleaseError as error:
            yield {"error": str(error)}


def _moved(question: Question, script: bytes, folder: Path) -> Question:
    """The question on a machine that has neither the script nor the folder of results."""
    if isinstance(question, Script):
        path = folder / question.path.name
        path.write_bytes(script)
        return replace(question, path=path)
    if isinstance(question, Cells):
        return replace(question, log=folder / "workers.log")
    return question


@dataclass(frozen=True)
class ClusterProber:
    work: Work
    candidates: Sequence[Candidate]
    environments: Path | None
    """The folder of the environments on the machine of each worker; None for its user's cache."""
    question: Question
    stress: bool

    def __call__(self, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        candidate = self.candidates[index]
        if candidate.release is None:
            raise ReleaseError(candidate.reason)
        script = self.question.path.read_bytes() if isinstance(self.question, Script) else b""
        of_release = (candidate.release, self.environments, self.question, script)
        try:
            for line in self.work.ask(ask_release, *of_release, tuple(subjects), runs, self.stress):
                if error := line.get("error"):
                    raise ReleaseError(error)
                yield line["subject"], Sample.from_json(line["sample"])
        except PieceError as error:
            raise ReleaseError(str(error)) from error
