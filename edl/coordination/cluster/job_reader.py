"""Read the nodes of the jobs of a cluster, of which there may be thousands.

Answers, reads and parsed records are kept, so a leader that looks at a large cluster again and
again reads and parses only what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import Values, content, record
from edl.coordination.reads import OnChange, Read, children, get, ignore_changes
from edl.core.cluster.job_life import JobLife
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.measured_throughput import MeasuredThroughput
from edl.core.cluster.records import Wanted
from edl.core.cluster.view import JobView

PASSES = 20  # over nodes that others change meanwhile

Answers = tuple[Any, Any, Any]
"""The answers to the reads of manifest, wanted and life of one job: (data, stat) of each."""


@dataclass(frozen=True)
class StoredJob:
    """One job of a cluster, as it was read from ZooKeeper by :class:`ClusterStore`.

    Attributes:
        name: the name of the job.
        order: a number that grows with each submission, and that no other submission has.
        submitted_s: when it was submitted, by ZooKeeper's clock, in seconds since 1970.
        manifest: what was submitted.
        wanted: what users want of it.
        life: the state that the leader keeps of it; the default until the leader has seen the job.
        life_version: the version of the node ``life``, which a write of the leader must name.
    """

    name: str
    order: int
    submitted_s: float
    manifest: JobManifest
    wanted: Wanted
    life: JobLife
    life_version: int

    @cached_property
    def view(self) -> JobView:
        """The same job as the value that the plan of a cluster reads; its ``run`` is None."""
        return JobView(
            name=self.name,
            order=self.order,
            manifest=self.manifest,
            wanted=self.wanted,
            life=self.life,
            submitted_s=self.submitted_s,
        )


class JobReader:
    """A reader of the jobs of one cluster, which keeps what it has read with a watch.

    Args:
        nodes: The nodes of the cluster.
        changed: Called when a node changes that :meth:`watched` has read; see
            :data:`edl.coordination.reads.OnChange`.
    """

    def __init__(self, nodes: ClusterNodes, changed: Callable[[], None]) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self._changed = changed
        self._reads: dict[str, tuple[Read, ...]] = {}  # those that set a watch, by job
        self._stored: dict[str, tuple[Answers, StoredJob]] = {}  # as they were read last

    def read(self, names: Iterable[str]) -> tuple[StoredJob, ...]:
        """Read the jobs called ``names`` that exist, and return them in the order of submission."""
        return self._read_jobs(
            names, lambda name: tuple(get(path) for path in self._job_paths(name))
        )

    def watched(self, names: Sequence[str]) -> tuple[StoredJob, ...]:
        """Return the jobs called ``names`` that exist; only those that have changed are read.

        They are in the order of submission.
        """
        if len(self._reads) > 2 * len(names):
            self._reads = {}
        found = self._read_jobs(names, lambda name: self._reads_of(name)[:-1])
        there = {job.name for job in found}
        self._stored = {name: kept for name, kept in self._stored.items() if name in there}
        return found

    def _reads_of(self, name: str) -> tuple[Read, ...]:
        """Return the reads that watch manifest, wanted, life and children of the job ``name``."""
        found = self._reads.get(name)
        if found is None:
            gets = (get(path, self._changed) for path in self._job_paths(name))
            found = (*gets, children(self.paths.job(name), ignore_changes))
            self._reads[name] = found
        return found

    def _read_jobs(
        self, names: Iterable[str], reads_of: Callable[[str], Sequence[Read]]
    ) -> tuple[StoredJob, ...]:
        """Return the jobs called ``names`` that exist, in the order of submission.

        A job that is replaced while it is read is read again, as its nodes are of two submissions;
        after ``PASSES`` (20) times it is left out.

        Args:
            names: The names of the jobs, in any order.
            reads_of: Returns the reads of manifest, wanted and life of a job.
        """
        found: list[StoredJob] = []
        rest = sorted(names)
        for _ in range(PASSES):
            parts = [reads_of(name) for name in rest]
            answers = self.nodes.read(*(read for part in parts for read in part))
            torn = []
            for name, part, three in zip(rest, parts, in_threes(answers), strict=True):
                if None in three:
                    continue
                if three[0][1].czxid == three[1][1].czxid == three[2][1].czxid:
                    found.append(self._parsed(name, part, three))
                else:
                    torn.append(name)
            if not (rest := torn):
                break
        return tuple(sorted(found, key=lambda job: job.order))

    def _parsed(self, name: str, reads: Sequence[Read], answers: Answers) -> StoredJob:
        """Return the job ``name``; it is parsed only if it has changed since it was read last.

        Args:
            name: The name of the job.
            reads: The reads of manifest, wanted and life, in this order.
            answers: Their answers.
        """
        kept = self._stored.get(name)
        if kept is not None and kept[0] == answers:  # mostly the same objects
            return kept[1]
        job = _stored_job(name, [read.path for read in reads], answers)
        if reads[0].wake is not None:
            self._stored[name] = answers, job
        return job

    def _job_paths(self, name: str) -> tuple[str, str, str]:
        """Return the paths of manifest, wanted and life, in this order, of the job ``name``."""
        return self.paths.manifest(name), self.paths.wanted(name), self.paths.life(name)

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        """Return the secrets of the runs of ``jobs``, and what former runs have measured.

        Args:
            jobs: The names of the jobs.
            watch: Whether what was read is kept until it changes.

        Returns:
            (the secrets, by job; the measurements, by job); a job without one is not in it.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        names = list(jobs)
        wake = ignore_changes if watch else None
        if watch:
            reads = [self._reads_of(name)[-1] for name in names]
        else:
            reads = [children(self.paths.job(name)) for name in names]
        there = list(zip(names, self.nodes.read(*reads), strict=True))
        secrets, measured = (
            self._of_jobs(node, [name for name, nodes in there if node in (nodes or ())], wake)
            for node in ("secret", "measured")
        )
        return (
            {name: str(values["secret"]) for name, values in secrets.items()},
            {name: MeasuredThroughput.from_json(values) for name, values in measured.items()},
        )

    def _of_jobs(self, node: str, names: Sequence[str], wake: OnChange) -> dict[str, Values]:
        """Return the values of the node called ``node`` of each of the jobs ``names``, by job."""
        paths = [f"{self.paths.job(name)}/{node}" for name in names]
        answers = self.nodes.read(*(get(path, wake) for path in paths))
        found = zip(names, paths, answers, strict=True)
        contents = {name: content(path, answer) for name, path, answer in found}
        return {name: values for name, values in contents.items() if values}


def in_threes(answers: Sequence[Any]) -> Iterator[Answers]:
    """Yield the first three of ``answers``, the next three, and so on.

    The number of ``answers`` must be a multiple of three; otherwise a ValueError is raised.
    """
    return zip(answers[::3], answers[1::3], answers[2::3], strict=True)


def _stored_job(name: str, paths: Sequence[str], answers: Sequence[Any]) -> StoredJob:
    """Return the job ``name`` from the answers to the reads of its nodes.

    Args:
        name: The name of the job.
        paths: The paths of manifest, wanted and life, in this order, for error messages.
        answers: The data and stat of these nodes, in the same order.
    """
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
