"""Read the nodes of the jobs of a cluster, of which there may be thousands.

What was read is kept until it changes, so a leader that looks at a large cluster again and again
looks only at what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.cluster.work_queue import WorkQueue
from edl.coordination.nodes import Values, content, record
from edl.coordination.reads import OnChange, children, get
from edl.core.cluster.job_life import JobLife
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.measured_throughput import MeasuredThroughput
from edl.core.cluster.records import Wanted
from edl.core.cluster.view import JobView

PASSES = 20  # over nodes that others change meanwhile
FEW_PASSES, PASSES_S = 5, 0.5  # after so many, and so long, others write without a pause

Answers = tuple[Any, Any, Any]
"""The answers to the reads of manifest, wanted and life of one job: (data, stat) of each."""


@dataclass(frozen=True)
class StoredJob:
    """One job of a cluster, as it was read from ZooKeeper by `ClusterStore`."""

    name: str
    order: int  # grows with each submission
    submitted_s: float  # by ZooKeeper's clock, in seconds since 1970
    manifest: JobManifest
    wanted: Wanted  # by users
    life: JobLife  # that the leader keeps; the default until it has seen the job
    life_version: int  # of the node `life`, which a write must name

    @cached_property
    def view(self) -> JobView:
        """The same job as the value that the plan of a cluster reads; its `run` is None."""
        return JobView(
            name=self.name,
            order=self.order,
            manifest=self.manifest,
            wanted=self.wanted,
            life=self.life,
            submitted_s=self.submitted_s,
        )


class OptionalNodes(NamedTuple):
    """The nodes of a job that it need not have."""

    secret: str | None  # of its runs; None before the first
    measured: MeasuredThroughput | None  # by former runs; None: nothing


class JobReader:
    """A reader of jobs that keeps what it has watched; one thread at a time calls `watched`."""

    def __init__(self, nodes: ClusterNodes, changed: Callable[[], None]) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self._changed_jobs = WorkQueue(changed)
        self._stored: dict[str, StoredJob] = {}  # as they were read last, with watches
        self._changed_optional = WorkQueue()
        self._optional: dict[str, OptionalNodes] = {}  # by job

    def read(self, names: Iterable[str]) -> tuple[StoredJob, ...]:
        """Read the jobs called `names` that exist, and return them in the order of submission."""
        return tuple(sorted(self._read_jobs(names, None), key=lambda job: job.order))

    def watched(self, names: Sequence[str]) -> tuple[StoredJob, ...]:
        """Return the jobs called `names` that exist; only those that have changed are read."""
        known = set(names)
        self._changed_jobs.keep_only(known)
        due = known - self._stored.keys() | self._changed_jobs.take() & known
        with self._changed_jobs.put_back_on_error(due):
            found = self._read_jobs(due, self._changed_jobs.wake)
        kept = {n: job for n, job in self._stored.items() if n in known and n not in due}
        self._stored = kept | {job.name: job for job in found}
        return tuple(sorted(self._stored.values(), key=lambda job: job.order))

    def _read_jobs(
        self, names: Iterable[str], wake_of: Callable[[str], Callable[[], None]] | None
    ) -> list[StoredJob]:
        """Return the jobs called `names` that exist, in any order."""
        found: list[StoredJob] = []
        rest = sorted(names)
        for _ in range(PASSES):
            wakes = [None if wake_of is None else wake_of(name) for name in rest]
            parts = [
                [get(path, wake) for path in self._job_paths(name)]
                for name, wake in zip(rest, wakes, strict=True)
            ]
            answers = self.nodes.read(*(read for part in parts for read in part))
            torn = []
            for name, part, three in zip(rest, parts, in_threes(answers), strict=True):
                if None in three:
                    continue
                if three[0][1].czxid == three[1][1].czxid == three[2][1].czxid:
                    found.append(_stored_job(name, [read.path for read in part], three))
                else:
                    torn.append(name)  # of two submissions: replaced while it was read
            if not (rest := torn):
                break
        return found

    def _job_paths(self, name: str) -> tuple[str, str, str]:
        return self.paths.manifest(name), self.paths.wanted(name), self.paths.life(name)

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        """Return the secrets of the runs of `jobs`, and what former runs have measured."""
        names = list(jobs)
        if not watch:
            found = self._read_optional(names, None)
        else:
            found = self._optional = self._watched_optional(set(names))
        return (
            {name: one.secret for name, one in found.items() if one.secret is not None},
            {name: one.measured for name, one in found.items() if one.measured is not None},
        )

    def _watched_optional(self, names: set[str]) -> dict[str, OptionalNodes]:
        """Return the optional nodes of the jobs `names` that exist; changed ones are read."""
        self._changed_optional.keep_only(names)
        due = names - self._optional.keys() | self._changed_optional.take() & names
        with self._changed_optional.put_back_on_error(due):
            found = self._read_optional(sorted(due), self._changed_optional.wake)
        kept = {n: one for n, one in self._optional.items() if n in names and n not in due}
        return kept | found

    def _read_optional(
        self, names: Sequence[str], wake_of: Callable[[str], Callable[[], None]] | None
    ) -> dict[str, OptionalNodes]:
        """Return the secrets of jobs, and what their former runs have measured, by job."""
        wakes = {name: None if wake_of is None else wake_of(name) for name in names}
        reads = [children(self.paths.job(name), wakes[name]) for name in names]
        answers = zip(names, self.nodes.read(*reads), strict=True)
        there = {name: nodes for name, nodes in answers if nodes is not None}
        secrets, measured = (
            self._of_jobs(node, [name for name, nodes in there.items() if node in nodes], wakes)
            for node in ("secret", "measured")
        )
        found = {}
        for name in there:
            steps = measured.get(name)
            found[name] = OptionalNodes(
                str(secrets[name]["secret"]) if name in secrets else None,
                MeasuredThroughput.from_json(steps) if steps else None,
            )
        return found

    def _of_jobs(
        self, node: str, names: Sequence[str], wakes: Mapping[str, OnChange]
    ) -> dict[str, Values]:
        paths = [f"{self.paths.job(name)}/{node}" for name in names]
        reads = (get(path, wakes[name]) for path, name in zip(paths, names, strict=True))
        answers = self.nodes.read(*reads)
        found = zip(names, paths, answers, strict=True)
        contents = {name: content(path, answer) for name, path, answer in found}
        return {name: values for name, values in contents.items() if values}


def in_threes(answers: Sequence[Any]) -> Iterator[Answers]:
    """Yield the first three of `answers`, the next three, and so on."""
    return zip(answers[::3], answers[1::3], answers[2::3], strict=True)


def _stored_job(name: str, paths: Sequence[str], answers: Sequence[Any]) -> StoredJob:
    """Return the job `name` from the answers to the reads of its nodes."""
    manifest, wanted, life = answers
    return StoredJob(
        name,
        order=manifest[1].czxid,
        submitted_s=manifest[1].ctime / 1000.0,
        manifest=record(JobManifest, (paths[0], manifest[0])),
        wanted=record(Wanted, (paths[1], wanted[0])),
        life=record(JobLife, (paths[2], life[0])),
        life_version=life[1].version,
    )
