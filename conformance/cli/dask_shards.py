"""`run --spread ADDRESS`: the shards of a run are tasks of a Dask cluster, and `merge` joins their results.

Dask chooses the worker of each shard, and another one if that is lost.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..engine.interrupts import terminated_like_interrupted
from ..engine.machines import dask_worker
from ..engine.machines.dask_worker import Command, ShardError
from ..engine.options import FILE_ENDING, IMPLEMENTATIONS, ConflictingOptionsError, RunOptions, Shard
from ..engine.preparation import refuse_full_results
from ..engine.requirements import require_distributed
from ..engine.results_folder.locking import FolderLock
from ..planning.plan_file import read_cells
from ..spec.errors import CommandError
from ..spec.suite import versions
from .merge import read_shards, write_joined

UNUSABLE = 2

CONNECT_SECONDS = 20

SHARDS_FOR_EACH = 2
"""So many shards for each Dask worker, so that none waits long for the others at the end."""

FOLDER = "shards"


def run_on_cluster(options: RunOptions) -> int:
    if options.shard:
        raise ConflictingOptionsError("--spread makes shards of the run itself: it takes no --shard")
    require_distributed()
    folder = options.results / FOLDER
    with FolderLock(options.results) as lock, connected(str(options.spread), command_of(options)) as cluster:
        refuse_full_results(options)
        lock.acquire()
        folder.mkdir(parents=True, exist_ok=True)
        problems = Shards(options, folder, cluster).run()
        done = [one for one in sorted(folder.iterdir()) if any(one.glob("conformance-*.json"))]
        for problem in problems:
            print(f"{'PROBLEM' if done else 'ERROR'}: {problem}", file=sys.stderr)
        if not done:
            return UNUSABLE
        code = write_joined(read_shards(done), options.results)
        return max(code, 1) if problems else code


def command_of(options: RunOptions) -> Command:
    """What all shards of a run receive. The files that options name are of this machine, so their text travels."""
    cells = read_cells(options.cells)
    implementations = tuple({cell.implementation: None for cell in cells}) or options.implementations or IMPLEMENTATIONS
    files = {"cells": "".join(f"{cell.id}\n" for cell in cells)} if cells else {}
    if options.expectations:
        files["expectations"] = options.expectations.read_text("utf-8")
    if options.platform.endswith(FILE_ENDING):
        files["platform"] = Path(options.platform).read_text("utf-8")
    own = options.as_json() | {"spread": None, "resume": False}
    return Command(f"conformance-{uuid.uuid4().hex}", versions(implementations), implementations, own, files)


class Cluster:
    """A Dask cluster, as one command uses it."""

    def __init__(self, client: Any, command: Command) -> None:
        self._client = client
        self._command = command
        self._futures: list[Any] = []
        self.stopped = False

    @property
    def workers(self) -> int:
        """How many workers the cluster has now, at least one."""
        return max(1, len(self._client.nthreads()))

    def files_of(self, shard: str) -> dict[str, str]:
        """The files with the results of a shard; raises `ShardError` if it has none."""
        import distributed

        name = f"{self._command.name}-{shard}"
        future = self._client.submit(dask_worker.run_shard, self._command, shard, key=name, pure=False)
        self._futures.append(future)
        try:
            files: dict[str, str] = future.result()
        except distributed.KilledWorker as error:
            raise ShardError("Dask workers were lost again and again while they had it") from error
        except (CancelledError, OSError) as error:
            raise ShardError("it was stopped" if self.stopped else "the Dask scheduler is gone") from error
        return files

    def stop(self) -> None:
        self.stopped = True
        # A cluster that is gone by now must not cost the results that are here.
        with contextlib.suppress(Exception):
            self._client.cancel(self._futures, force=True)
            self._client.run(dask_worker.stop, self._command.name, on_error="ignore")


@contextlib.contextmanager
def connected(address: str, command: Command) -> Iterator[Cluster]:
    """The cluster of this scheduler; with the end of the block, nothing of the command goes on there."""
    import distributed

    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise CommandError(f"--spread: no Dask scheduler answers at {address}: {error}") from error
    with client:
        for worker, refusal in client.run(dask_worker.check_versions, command, on_error="return").items():
            if refusal is not None:
                raise CommandError(f"{worker}: {refusal}")
        if not client.nthreads():
            print("NOTE: the cluster has no worker yet; the cells wait for one", file=sys.stderr)
        client.subscribe_topic(command.name, lambda event: print(event[1], flush=True))
        cluster = Cluster(client, command)
        try:
            yield cluster
        finally:
            cluster.stop()


class Shards:
    """The shards of one run, and the folder in which their results are."""

    def __init__(self, options: RunOptions, folder: Path, cluster: Cluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self._problems: list[str] = []
        found = [Shard(*map(int, one.name.split("-of-"))) for one in folder.iterdir()]
        if options.resume and found:
            # The shards of the run before, of which some are missing.
            self._count, self._done = found[0].of, {shard.number for shard in found}
        else:
            self._count, self._done = SHARDS_FOR_EACH * cluster.workers, set[int]()
            for shard in found:
                shutil.rmtree(self._place(shard))

    def run(self) -> Sequence[str]:
        """Run the shards that are not there yet; the problems."""
        shards = [Shard(number, self._count) for number in range(1, self._count + 1) if number not in self._done]
        # No more at once than there are workers: Dask blames a lost worker on each shard that waits there.
        with ThreadPoolExecutor(self._cluster.workers) as threads, terminated_like_interrupted():
            waiting = [threads.submit(self._run, shard) for shard in shards]
            try:
                for one in waiting:
                    one.result()
            except KeyboardInterrupt:
                self._problems.append("the run was interrupted")
                threads.shutdown(wait=False, cancel_futures=True)
            finally:
                self._cluster.stop()
        return self._problems

    def _run(self, shard: Shard) -> None:
        try:
            files = self._cluster.files_of(str(shard))
        except ShardError as error:
            if not self._cluster.stopped:
                self._problems.append(f"shard {shard}: {error}")
            return
        # All files or none: what is here is not run again.
        new = self._folder.with_name(f"{self._place(shard).name}.new")
        new.mkdir(exist_ok=True)
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
        new.rename(self._place(shard))

    def _place(self, shard: Shard) -> Path:
        return self._folder / f"{shard.number}-of-{shard.of}"
