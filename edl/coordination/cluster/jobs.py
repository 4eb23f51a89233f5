"""Read the jobs of a cluster, and change what users want of them.

``submission`` submits jobs, and ``writer`` writes their states and removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edl.coordination.access import Access
from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.job_reader import JobReader, StoredJob
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import Values, content
from edl.coordination.reads import children, exists, get
from edl.core.cluster.events import ClusterEvent, ClusterEventKind
from edl.core.cluster.goals import check_change, deleted, describe_change
from edl.core.cluster.job_life import JobLife
from edl.core.cluster.measured_throughput import MeasuredThroughput
from edl.core.cluster.records import Wanted
from edl.errors import UnknownCluster, UnknownJob


def check_submission(job: StoredJob, submitted_s: float) -> None:
    """Raise an UnknownJob if `job` was submitted at another time than `submitted_s`."""
    if job.submitted_s != submitted_s:
        raise UnknownJob(job.name, (job.name,))


class ClusterJobs:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents, reader: JobReader) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events
        self._reader = reader

    # --- reading

    def list(self) -> tuple[StoredJob, ...]:
        """Read the jobs of the cluster, ended ones too, in the order of submission."""
        names = self._nodes.read(children(self._paths.jobs))[0]
        if names is None:
            raise self._nodes.unknown()
        return self._reader.read(names)

    def get(self, name: str) -> StoredJob:
        """Read the job called `name`, which may have ended, and return it."""
        found = self._reader.read([name])
        if not found:
            raise self._nodes.unknown_job(name)
        return found[0]

    def has(self, name: str) -> bool:
        """Return whether the cluster has a job called `name`, also an ended one."""
        return self._nodes.read(exists(self._paths.manifest(name)))[0] is not None

    def full_name(self, job: str) -> str:
        """Return the name under which the cluster has the job that a user calls `job`."""
        return job

    def log_access(self, job: str) -> Access:
        """Return the name and the secret that sign requests for the logs of `job`."""
        access = self._nodes.session.access
        assert access is not None
        return access

    def secret(self, job: str) -> str | None:
        """Return the secret of the runs of `job`; None before its first run, or without it."""
        path = self._paths.secret(job)
        secret = content(path, self._nodes.read(get(path))[0]).get("secret")
        return None if secret is None else str(secret)

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        """Return the secrets of the runs of `jobs`, and what former runs have measured."""
        return self._reader.secrets_and_measured(jobs, watch)

    # --- what users want

    def change_wanted(self, job: str, change: Callable[[Wanted], Wanted]) -> Wanted:
        """Change what users want of `job`, log it, and return what is wanted afterwards."""
        return self._change_wanted(job, lambda before, _: change(before))

    def delete(self, job: str, submitted_s: float | None = None) -> Wanted:
        """Let `job` end for good or, if it has ended, let its records be removed."""

        # Without `submitted_s`, a repeated call removes the records of the job that the first one
        # has ended, or ends another job that has got its name.
        def change(before: Wanted, life: JobLife) -> Wanted:
            if submitted_s is not None:
                check_submission(self.get(job), submitted_s)
            return deleted(before, life, once=submitted_s is not None)

        return self._change_wanted(job, change)

    def _change_wanted(self, job: str, change: Callable[[Wanted, JobLife], Wanted]) -> Wanted:
        """Change what users want of `job`, as `change_wanted` does."""
        wanted, life = self._paths.wanted(job), self._paths.life(job)

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before, state = Wanted.from_json(found[wanted]), JobLife.from_json(found.get(life, {}))
            after = change(before, state)
            check_change(job, state, before, after)
            reason = describe_change(before, after)
            event = self._events.new(ClusterEventKind.WANTED, reason, job=job)
            return {wanted: after.to_json()}, event

        try:
            return Wanted.from_json(self._nodes.change_together((wanted, life), changed)[wanted])
        except UnknownCluster:
            raise self._nodes.unknown_job(job) from None
