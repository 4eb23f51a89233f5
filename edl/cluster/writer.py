"""Write what the leading controller decides about a cluster, fenced by its term.

The functions named ``..._write`` only describe writes. The leader puts them together into one
transaction (:meth:`ClusterWriter.commit`): a job's state and the assignments of its hosts change
together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kazoo.client import TransactionRequest

from edl.cluster.lifecycle import (
    ClusterEvent,
    ClusterEventKind,
    JobLifecycle,
    LifeResult,
    LifeState,
)
from edl.cluster.nodes import ClusterNodes, ClusterPaths
from edl.cluster.records import (
    SEPARATOR,
    AllocationRecord,
    Goal,
    HostAssignment,
    JobReasons,
    LeaseTable,
)
from edl.cluster.store import ClusterStore
from edl.cluster.view import HostView, JobView, MeasuredThroughput
from edl.errors import CoordinationError
from edl.zookeeper.access import new_secret
from edl.zookeeper.election import Leadership, Write
from edl.zookeeper.nodes import content
from edl.zookeeper.reads import children, encode, exists, get
from edl.zookeeper.session import Refused

ENDED_KEPT = 500  # the newest ended jobs that no user has deleted stay in the records
ENDED_KEPT_S = 7 * 86_400.0  # so do all others, for so long after their end
MAX_ENDED = 3000  # but no more than so many
EVENTS_KEPT = 10_000
GONE_KEPT_S = 86_400.0  # a host that offers nothing stays so long in the records
MAX_BYTES = 1_000_000  # of a transaction; ZooKeeper disconnects a client that sends 1 MB
_TRIM_S = 1.0  # of the leader's turn
_EVENTS_SPARE = 500  # so many more, before the oldest are removed: to list them is not for nothing


def life_write(paths: ClusterPaths, job: JobView, life: JobLifecycle) -> Write:
    """Return the write of a job's state; refused if that has changed since it was read."""
    return Write(paths.life(job.name), life.to_json(), job.life_version)


def assigned_write(paths: ClusterPaths, host: HostView, assigned: HostAssignment) -> Write:
    """Return the write of a host's assignment; refused if that has changed since the read."""
    return Write(paths.assigned(host.name), assigned.to_json(), host.version)


def allocation_write(paths: ClusterPaths, allocation: AllocationRecord, version: int) -> Write:
    """Return the write of the policy's decision; it is refused if the node has another version."""
    return Write(paths.allocation, allocation.to_json(), version)


def reasons_write(paths: ClusterPaths, reasons: JobReasons) -> Write:
    return Write(paths.reasons, reasons.to_json())


def leases_write(paths: ClusterPaths, table: LeaseTable, version: int) -> Write:
    """Return the write of the record of the leases; refused if the node has another version."""
    return Write(paths.leases, table.to_json(), version, create=version < 0)


def secret_write(paths: ClusterPaths, job: str) -> Write:
    return Write(paths.secret(job), {"secret": new_secret()}, create=True)


def event_write(paths: ClusterPaths, event: ClusterEvent) -> Write:
    return Write(f"{paths.events}/e-", event.to_json(), sequence=True)


def byte_count(writes: Sequence[Write]) -> int:
    return sum(len(write.path) + len(encode(write.value)) for write in writes)


def jobs_to_remove(
    jobs: Sequence[JobView], now_s: float, keep: int = ENDED_KEPT, most: int = MAX_ENDED
) -> list[JobView]:
    ended = sorted(
        (job for job in jobs if job.life.state is LifeState.ENDED),
        key=lambda job: (job.life.ended_s, job.order),
    )
    # By a user, after the end.
    deleted = {
        job.name
        for job in ended
        if job.wanted.removed
        or (job.wanted.goal is Goal.GONE and job.life.result is not LifeResult.DELETED)
    }
    others = [job for job in ended if job.name not in deleted]
    # The newest `keep` of them stay, however old; of more than `most`, these go last.
    by_themselves = [job for job in others if job.life.result is not LifeResult.DELETED]
    kept = {job.name for job in by_themselves[max(0, len(by_themselves) - keep) :]}
    old = {j.name for j in others if j.life.ended_s < now_s - ENDED_KEPT_S and j.name not in kept}
    by_worth = sorted(others, key=lambda job: job.life.result is not LifeResult.DELETED)
    surplus = {job.name for job in by_worth[: max(0, len(others) - most)]}
    # A finished job stays while one that was never started waits for it (`after`).
    living = (j for j in jobs if j.life.state is not LifeState.ENDED and not j.life.started_s)
    waited_for = {name for job in living for name in job.manifest.after}
    needed = {j.name for j in jobs if j.life.result is LifeResult.FINISHED} & waited_for
    doomed = deleted | ((old | surplus) - needed)
    return [job for job in ended if job.name in doomed]


def hosts_to_remove(hosts: Sequence[HostView], now_s: float) -> list[HostView]:
    """Return the hosts whose records are to be removed: they are gone, and no run goes on there."""
    gone = [host for host in hosts if host.offer is None and not _has_runs(host)]
    # What still lives on a machine that is only cut off does no harm: when `edl host` registers it
    # again, it ends what nobody has assigned.
    silent = [h for h in gone if 0 < h.assigned.silent_s <= now_s - GONE_KEPT_S]
    return [host for host in silent if not host.drained]  # one in repair gets no jobs


def _has_runs(host: HostView) -> bool:
    return any(not entry.ends for entry in host.assigned.jobs.values())


class ClusterWriter:
    def __init__(self, store: ClusterStore, leadership: Leadership) -> None:
        self.paths = store.paths
        self.term = leadership.term
        self._store = store
        self._nodes = store.nodes
        self._leadership = leadership

    def commit(self, writes: Sequence[Write]) -> bool:
        self._nodes.check_session()
        size = byte_count(writes)
        if size > MAX_BYTES:
            raise CoordinationError(
                f"{len(writes)} writes with {size} bytes are too many for one transaction, which "
                f"may have {MAX_BYTES}; nothing was written"
            )
        try:
            self._leadership.try_commit(writes)
        except Refused:
            return False
        return True

    def transact(
        self, what: str, writes: Sequence[Write], build: Callable[[TransactionRequest], None]
    ) -> list[Any]:
        self._nodes.check_session()
        return self._leadership.transact(what, writes, build)

    def job_secret(self, job: str) -> str:
        """Return the secret of the runs of `job`; make and write one if the job has none."""
        found = self._store.jobs.secret(job)
        if found is None:
            write = secret_write(self.paths, job)
            if not self.commit([write]):
                raise CoordinationError(f"the secret of job {job} could not be written; try again")
            found = str(write.value["secret"])
        return found

    def keep_measured(self, job: str, measured: MeasuredThroughput) -> None:
        path = self.paths.measured(job)
        is_new = self._nodes.read(exists(path))[0] is None
        if not self.commit([Write(path, measured.to_json(), create=is_new)]):
            raise CoordinationError(f"{path} could not be written; try again")

    def remove_job(self, job: JobView) -> bool:
        """Remove an ended job's records and its key; False: it has changed since it was read."""
        # The caller has removed the last run's nodes: that needs the secret, which goes here.
        path, life = self.paths.job(job.name), self.paths.life(job.name)
        about, names = self._nodes.read(get(path), children(path))
        if about is None or not names:
            return False
        key = f"{self.paths.keys}/{content(path, about).get('key', '')}"
        nodes = [f"{path}/{name}" for name in sorted(names)]
        writes = [_deletion(one, job.life_version if one == life else -1) for one in nodes]
        tenant, dot, _ = job.name.partition(SEPARATOR)
        others = [key, *([self.paths.tenant_job(tenant, job.name)] if dot else [])]
        there = self._nodes.read(*(exists(one) for one in others))
        writes += [_deletion(one) for one, stat in zip(others, there, strict=True) if stat]
        reason = (
            f"the records of job {job.name} were removed, which has {job.life.result or 'ended'}"
        )
        event = self._event(reason, job=job.name)
        return self.commit([*writes, _deletion(path), event])

    def remove_host(self, host: HostView) -> bool:
        """Remove a host that offers nothing, has no run, is not drained; False: it has changed."""
        path, assigned = self.paths.host(host.name), self.paths.assigned(host.name)
        names = self._nodes.read(children(path))[0]
        if names is None or {"offer", "drained"} & set(names) or _has_runs(host):
            return False
        nodes = [f"{path}/{name}" for name in sorted(names)]
        writes = [_deletion(one, host.version if one == assigned else -1) for one in nodes]
        event = self._event(f"host {host.name} was removed; it offers nothing", host=host.name)
        return self.commit([*writes, _deletion(path), event])

    def trim_events(self, keep: int = EVENTS_KEPT, spare: int = _EVENTS_SPARE) -> bool:
        """Remove events, the oldest first, until `keep` are left or a second has passed."""
        # Without a check of the term. To list all events takes time: only if there are many.
        stat = self._nodes.read(exists(self.paths.events))[0]
        if stat is None or stat.numChildren <= keep + spare:
            return True
        many: int = stat.numChildren - keep
        return self._store.events.trim(keep, within_s=_TRIM_S) >= many

    def _event(self, reason: str, job: str = "", host: str = "") -> Write:
        return event_write(
            self.paths, self._store.events.new(ClusterEventKind.REMOVED, reason, job, host)
        )


def _deletion(path: str, version: int = -1) -> Write:
    return Write(path, {}, version, delete=True)


# ------------------------------------------------------------
# Change a cluster for the request of a tenant: once, and only while the leader's term lasts.
#
# The leader does what a client would do, by the same code, but each transaction of that code also
# checks the term, removes the request and writes the answer. So none of the three happens alone.


class RequestLost(Exception):
    """A request was answered or removed meanwhile, or cannot be removed; nothing was written."""


class RequestNodes(ClusterNodes):
    """The nodes of a cluster, whose transactions carry out one request of a tenant."""

    def __init__(self, nodes: ClusterNodes, writer: ClusterWriter, answer: Sequence[Write]) -> None:
        super().__init__(nodes.session, nodes.paths)
        self._writer = writer
        self._answer = tuple(answer)
        self.is_answered = False  # by a transaction that was done

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        try:
            results = self._writer.transact(what, self._answer, build)
        except Refused as refused:
            index = refused.index - len(self._answer)
            if index < 0:
                raise RequestLost(f"cannot {what}: {refused.error!r}") from refused
            raise Refused(index, refused.error) from refused
        self.is_answered = True
        return results


# ------------------------------------------------------------
# Write why each job has its slots, or waits, into the node `reasons`, for people and programs.


EVERY_S = 1.0  # the shortest time between two writes
MAX_CHARACTERS = 300  # of a reason; they are cut shorter if the record would be too large
MAX_REASONS_BYTES = 500_000  # of the record: ZooKeeper takes 1 MB


def cut_reasons(reasons: Mapping[str, str], characters: int = MAX_CHARACTERS) -> Mapping[str, str]:
    """Return the beginning of each of `reasons`, by job, with at most so many `characters`."""
    return {job: why[:characters] for job, why in reasons.items()}


def fitting_write(write: Callable[[Mapping[str, str]], Write], reasons: Mapping[str, str]) -> Write:
    characters = MAX_CHARACTERS
    while True:
        fitting = write(cut_reasons(reasons, characters))
        if byte_count([fitting]) <= MAX_REASONS_BYTES or not characters:
            return fitting
        characters //= 2


class ReasonWriter:
    """A writer of the leader's reasons for each job, during one term; call `tell`."""

    def __init__(self, writer: ClusterWriter) -> None:
        self._writer = writer
        self._told: tuple[Mapping[str, str], Mapping[str, int]] | None = None
        self._at_s = 0.0

    def tell(
        self,
        reasons: Mapping[str, str],
        lives: Mapping[str, JobLifecycle],
        now_s: float,
        surplus: Mapping[str, int] = MappingProxyType({}),
    ) -> float:
        """Write `reasons` unless readers have them; return after how many seconds to call again."""
        living = {job: life for job, life in lives.items() if life.state is not LifeState.ENDED}
        cut = cut_reasons({job: why for job, why in reasons.items() if job in living})
        newest_s = max((life.since_s for life in living.values()), default=0.0)
        told = (cut, dict(surplus))
        if told == self._told and newest_s <= self._at_s:
            return float("inf")
        if 0.0 <= now_s - self._at_s < EVERY_S:
            return self._at_s + EVERY_S - now_s
        paths = self._writer.paths
        write = fitting_write(
            lambda some: reasons_write(paths, JobReasons(now_s, some, told[1])), cut
        )
        self._writer.commit([write])
        self._told, self._at_s = told, now_s
        return float("inf")
