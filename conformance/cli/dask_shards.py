"""`run --scheduler`: the shards of a run are pieces of work for a Dask cluster, and `merge` joins their results.

A worker receives the options as JSON, runs `--shard K/N` as on any machine, and sends the files of its results.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..engine.cell_runner import StoppedError
from ..engine.dask_pieces import PieceError, end
from ..engine.dask_work import Work
from ..engine.interrupts import terminated_like_interrupted
from ..engine.locking import FolderLock
from ..engine.options import IMPLEMENTATIONS, ConflictingOptionsError, RunOptions, Shard
from ..engine.preparation import refuse_full_results
from ..engine.requirements import DaskClusterError, require_distributed
from ..planning.plan_file import read_plan
from ..spec.package import PACKAGE
from .merge import read_shards, write_joined

UNUSABLE = 2

SHARDS_FOR_EACH = 2
"""So many shards for each Dask worker, so that none waits long for the others at the end."""

FILES = ("platform_file", "plan_file", "expectations")
"""The options that name files of this machine: the workers receive the text."""

FOLDER = "shards"


def run_on_cluster(options: RunOptions) -> int:
    if options.shard:
        raise ConflictingOptionsError("--scheduler makes shards of the run itself: it takes no --shard")
    require_distributed()
    folder = options.results / FOLDER
    with FolderLock(options.results) as lock, Work(str(options.scheduler), _names(options), "the cells", ()) as work:
        refuse_full_results(options)
        lock.acquire()
        folder.mkdir(parents=True, exist_ok=True)
        problems = Shards(options, folder, work).run()
        done = [one for one in sorted(folder.iterdir()) if any(one.glob("conformance-*.json"))]
        for problem in problems:
            print(f"{'PROBLEM' if done else 'ERROR'}: {problem}", file=sys.stderr)
        if not done:
            return UNUSABLE
        code = write_joined(read_shards(done), options.results)
    return max(code, 1) if problems else code


def _names(options: RunOptions) -> Sequence[str]:
    """The implementations of the cells."""
    if options.plan_file:
        return list(dict.fromkeys(cell.implementation for cell in read_plan(options.plan_file)))
    return [cell.partition("/")[0] for cell in options.cells] or options.implementations or IMPLEMENTATIONS


class Shards:
    """The shards of one run, and the folder in which their results are."""

    def __init__(self, options: RunOptions, folder: Path, work: Work) -> None:
        self._options = options
        self._folder = folder
        self._work = work
        self._problems: list[str] = []
        found = [Shard(*map(int, one.name.split("-of-"))) for one in folder.iterdir()]
        if options.resume and found:
            # The shards of the run before, of which some are missing.
            self._count, self._done = found[0].of, {shard.number for shard in found}
        else:
            self._count, self._done = SHARDS_FOR_EACH * work.workers, set[int]()
            for shard in found:
                _empty(self._place(shard))

    def run(self) -> Sequence[str]:
        """Run the shards that are not there yet; the problems."""
        shards = [Shard(number, self._count) for number in range(1, self._count + 1) if number not in self._done]
        # A thread for each shard: it waits for the worker that has it.
        with ThreadPoolExecutor(max(1, len(shards))) as threads, terminated_like_interrupted():
            waiting = [threads.submit(self._run, shard) for shard in shards]
            try:
                for one in waiting:
                    one.result()
            except KeyboardInterrupt:
                self._problems.append("the run was interrupted")
            finally:
                self._work.stop()
        return self._problems

    def _run(self, shard: Shard) -> None:
        options = dataclasses.replace(self._options, shard=shard, scheduler=None, resume=False)
        texts = {name: path.read_text("utf-8") for name in FILES if (path := getattr(self._options, name))}
        files: dict[str, str] = {}
        last = "it wrote nothing"
        try:
            for found in self._work.ask(run_shard, options.as_json(), texts):
                if "file" in found:
                    files[found["file"]] = found["text"]
                elif found["line"].strip():
                    last = found["line"]
                    print(f"shard {shard}: {last}", flush=True)
        except StoppedError:
            return
        except (PieceError, DaskClusterError) as error:
            self._problems.append(f"shard {shard}: {error}")
            return
        if not files:
            self._problems.append(f"shard {shard}: {last.removeprefix('ERROR: ')}")
            return
        # All files or none: what is here is not run again.
        new = self._folder.with_name(f"{self._place(shard).name}.new")
        new.mkdir(exist_ok=True)
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
        new.rename(self._place(shard))

    def _place(self, shard: Shard) -> Path:
        return self._folder / f"{shard.number}-of-{shard.of}"


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def run_shard(options: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Run one shard on the machine of a Dask worker: the lines that the run prints, then the files of its results."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        results = folder / "results"
        own = {**options, "results": str(results)}
        for option, text in texts.items():
            own[option] = str(folder / Path(options[option]).name)
            Path(own[option]).write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", f"{PACKAGE}.cli.shard", json.dumps(own)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield {"line": line.decode(errors="replace").rstrip()}
            process.wait()
        finally:
            end(process)
        for file in (*results.glob("conformance-*.json"), *results.glob("journal-*.jsonl")):
            yield {"file": file.name, "text": file.read_text(encoding="utf-8")}
