"""A cluster as an object for Python programs: each command about jobs is a method.

Commands about something else are methods of the object of that: ``queues``, ``tenants``, ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from edl import config
from edl.client.connection import SessionClient
from edl.client.waiting import USUAL
from edl.cluster.client import waiting
from edl.cluster.client.connection import OpenStore, connected_cluster
from edl.cluster.client.logs import LogEnd, log_ends
from edl.cluster.client.plans import measured_view, plan_now, status_of_cluster
from edl.cluster.client.waiting import JobCondition, OnStatus, ignore_status, poll_cluster
from edl.cluster.lifecycle import ClusterEvent, LifeResult, LifeState
from edl.cluster.manifest import (
    MAX_BYTES,
    MAX_PRIORITY,
    JobManifest,
    decoded_manifest,
    manifest_of_values,
    parse_manifest,
)
from edl.cluster.queues import QueueStatus, overbooked, queue_statuses
from edl.cluster.records import ClusterRecord, Goal, QueueRecord, Wanted
from edl.cluster.runs import cluster_view
from edl.cluster.status import (
    ClusterJobDetails,
    ClusterJobStatus,
    ClusterStatus,
    JobPlan,
    SchedulerHints,
    described,
    scheduler_hints,
)
from edl.cluster.store import ClusterStore, SecretStatus
from edl.cluster.submission import TenantStore, submit_job
from edl.cluster_policies import load_policy
from edl.errors import ManifestError, TimedOut, UsageError
from edl.job.placement import whole

# ------------------------------------------------------------
# Read the manifest of a job, as `edl submit` and programs give it.


AnyManifest = JobManifest | Mapping[str, Any] | str | PathLike[str]
"""A manifest; its values by key; its text, which has several lines; or the path of its file."""


def job_manifest(given: AnyManifest) -> JobManifest:
    """Return the manifest that `given` is or names, with absolute paths."""
    if isinstance(given, JobManifest):
        manifest = given
    elif isinstance(given, Mapping):
        manifest = manifest_of_values(given)
    elif isinstance(given, str) and "\n" in given:
        manifest = parse_manifest(given, "the manifest")
    else:
        return read_job_manifest(fspath(given))
    return manifest.with_absolute_paths(str(Path.cwd()), config.home_dir)


def read_job_manifest(path: str | Path) -> JobManifest:
    """Return the manifest in the file at `path`, with absolute paths."""
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            return manifest_in(file, source)
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
        raise ManifestError(source, 0, f"{what}; name the file of a job's manifest") from None


def manifest_in(file: BinaryIO, source: str) -> JobManifest:
    """Return the manifest in an open file or pipe, of which no more is read than one may have."""
    data = file.read(MAX_BYTES + 1)
    manifest = parse_manifest(decoded_manifest(data, source), source)
    return manifest.with_absolute_paths(str(Path.cwd()), config.home_dir)


class ClientPart:
    """The base of the clients of one kind of things of a cluster.

    Args:
        open_store: opens the records of the cluster.
    """

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store


# ------------------------------------------------------------
# The secrets of a cluster as an object for Python programs.


class SecretClient(ClientPart):
    """A client of the secrets that one cluster keeps: :attr:`edl.client.Cluster.secrets`."""

    def set(self, name: str, content: str | bytes) -> None:
        """Give a secret to the cluster, or replace it; jobs read it by its name.

        Args:
            name: the name of the secret.
            content: the secret.

        Raises:
            ConfigError: ``name`` cannot be the name of a secret.
            UsageError: the content is empty or has more than 64 KB, or the cluster has too many
                secrets.
        """
        with self._open() as store:
            data = content.encode() if isinstance(content, str) else bytes(content)
            store.secrets.set(name, data)

    def list(self) -> tuple[SecretStatus, ...]:
        """Return the names of the cluster's secrets, and who has set them when, sorted by name."""
        with self._open() as store:
            return store.secrets.list()

    def delete(self, name: str) -> tuple[str, ...]:
        """Remove a secret; return the names of the jobs that have not ended and ask for it.

        A job that asks for it and is to start waits until it is set again.

        Raises:
            UsageError: the cluster has no such secret.
        """
        with self._open() as store:
            store.secrets.delete(name)
            living = [job for job in store.jobs.list() if job.life.state is not LifeState.ENDED]
        return tuple(job.name for job in living if name in job.manifest.secrets)


# ------------------------------------------------------------
# The policy of a cluster as an object for Python programs.


class PolicyClient(ClientPart):
    """A client of the policy of one cluster: :attr:`edl.client.Cluster.policy`."""

    def get(self) -> ClusterRecord:
        """Return the settings of the cluster: the policy, its parameters, and the time limits."""
        with self._open() as store:
            return store.settings.get()

    def set(
        self, policy: str, parameters: Mapping[str, object] = MappingProxyType({})
    ) -> ClusterRecord:
        """Let another policy give the cluster's slots to jobs from now on; return the new settings.

        The jobs go on running.

        Args:
            policy: the name of the policy.
            parameters: the policy's parameters by name, where they are not to have their defaults;
                they replace all that were set before.

        Raises:
            UsageError: there is no such policy, it has no such parameter, or a value is not
                allowed.
        """
        with self._open() as store:
            load_policy(policy, parameters)
            return store.settings.change(
                lambda before: replace(before, policy=policy, parameters=dict(parameters))
            )

    def plan(
        self, policy: str | None = None, parameters: Mapping[str, object] | None = None
    ) -> tuple[JobPlan, ...]:
        """Return which slots each job would get if the policy were asked now; change nothing.

        The result has the jobs that have not ended, in the order of submission.

        Args:
            policy: the name of another policy; None for that of the cluster.
            parameters: the other policy's parameters by name, where they are not to have their
                defaults; None: all have them.

        Raises:
            UsageError: there is no such policy, or it has no such parameter.
        """
        with self._open() as store:
            return plan_now(store, policy, parameters)


# ------------------------------------------------------------
# The queues of a cluster as an object for Python programs.


class QueueClient(ClientPart):
    """A client of the queues of one cluster: :attr:`edl.client.Cluster.queues`."""

    def set(
        self,
        name: str,
        quota: int | None = None,
        weight: float | None = None,
        most: int | None = None,
        tenant: str | None = None,
    ) -> QueueRecord:
        """Create a queue, or change it; return it. What is not given stays as it is.

        From the first queue on, each job must name one by ``queue`` in its manifest.

        Args:
            name: the name of the queue.
            quota: its guaranteed slots; a new queue has 0.
            weight: its share, against that of other queues, of the slots that no quota needs; a new
                queue has 1.
            most: the most slots that its jobs may have together; 0 for no limit.
            tenant: the tenant whose jobs may use it; empty for no tenant.

        Raises:
            ConfigError: ``name`` cannot be the name of a queue.
            UsageError: a value is not allowed, or the cluster has too many queues.
        """

        def change(before: QueueRecord) -> QueueRecord:
            return replace(
                before,
                quota=before.quota if quota is None else whole(quota),
                weight=before.weight if weight is None else float(weight),
                most=before.most if most is None else whole(most) or None,
                tenant=before.tenant if tenant is None else tenant,
            )

        with self._open() as store:
            if tenant and tenant not in store.tenants.names():
                raise UsageError(
                    f"cluster {store.paths.name} has no tenant {tenant!r}; make it with "
                    f"`edl tenant create {tenant}`"
                )
            return store.queues.change(name, change)

    def list(self) -> tuple[QueueStatus, ...]:
        """Return the queues of the cluster by name, with their slots and jobs; empty: none."""
        with self._open() as store:
            store.nodes.check_administrator("see the queues of the cluster")
            return queue_statuses(cluster_view(store.observe(), {}))

    def delete(self, name: str) -> None:
        """Remove the queue ``name``. Without any queue, all jobs share the slots of the cluster.

        Raises:
            UsageError: the cluster has no such queue, or it has jobs that have not ended.
        """
        with self._open() as store:
            store.queues.delete(name)

    def overbooked(self) -> str:
        """Return the sentence that the quotas of all queues exceed the cluster; empty: they fit."""
        with self._open() as store:
            offers = [host.offer for host in store.hosts.list() if host.offer is not None]
            return overbooked(store.queues.records(), sum(len(one.numbers) for one in offers))


# ------------------------------------------------------------
# The hosts of a cluster as an object for Python programs, and a drain that waits for its end.


class HostClient(ClientPart):
    """A client of the hosts of one cluster: :attr:`edl.client.Cluster.hosts`."""

    def drain(self, host: str, timeout_s: float | None = None) -> None:
        """Let a host have no jobs from now on: those there shrink, or move to other hosts.

        Args:
            host: the name of the host.
            timeout_s: the time to wait until no job has anything there, in seconds; None to return
                as soon as the request is written.

        Raises:
            UsageError: the cluster has no such host.
            TimedOut: jobs have something there after ``timeout_s``; they go on leaving.
        """
        with self._open() as store:
            drain_host(store, host, timeout_s)

    def undrain(self, host: str) -> None:
        """Let a host that was drained have jobs again; ``host`` is its name.

        Raises:
            UsageError: the cluster has no such host.
        """
        with self._open() as store:
            store.hosts.set_drained(host, False)


def drain_host(store: ClusterStore, host: str, timeout_s: float | None) -> None:
    """Write that all jobs shall leave a host, and that it gets no others; wait for it if asked to.

    Args:
        store: the records of the cluster.
        host: the name of the host.
        timeout_s: how long to wait, in seconds, until no job has slots there; None: do not wait.

    Raises:
        UsageError: the cluster has no such host.
        TimedOut: jobs are still there after ``timeout_s``; they go on leaving.
    """
    store.hosts.set_drained(host, True)
    if timeout_s is None:
        return

    def jobs_there() -> list[str]:
        hosts = store.hosts.list()
        return sorted(job for one in hosts if one.name == host for job in one.assigned.jobs)

    for jobs in poll_cluster(jobs_there, timeout_s, USUAL):
        if not jobs:
            return
        there = ", ".join(jobs)
    raise TimedOut(
        there,
        f"host {host} is drained, and after {timeout_s:g} s it still has {there}; they go on "
        "leaving",
    )


# ------------------------------------------------------------
# The tenants of a cluster as an object for Python programs.


class TenantClient(ClientPart):
    """A client of the tenants of one cluster: :attr:`edl.client.Cluster.tenants`."""

    def create(self, name: str) -> str:
        """Make a tenant, who may submit, see and steer own jobs only; return its secret.

        The secret is one word, which no other call tells again. Commands and programs of the tenant
        take it as they take that of a cluster.

        Raises:
            UsageError: the name is not allowed, or the cluster has such a tenant.
        """
        with self._open() as store:
            return store.tenants.create(name)

    def list(self) -> tuple[str, ...]:
        """Return the names of the cluster's tenants, sorted."""
        with self._open() as store:
            store.nodes.check_administrator("see the tenants of the cluster")
            return store.tenants.names()

    def delete(self, name: str) -> int:
        """Remove a tenant without jobs and secrets; its own secret opens nothing any more.

        Returns:
            How many nodes of its inbox could not be removed, because the tenant has made others
            below them. Then its name stays taken; a repeated call tries again.

        Raises:
            UsageError: there is no such tenant, or it has jobs, ended ones included, secrets, or
                queues.
        """
        with self._open() as store:
            return store.tenants.delete(name)


STATES: tuple[str, ...] = (*LifeState, *LifeResult)

"""The words that :meth:`Cluster.list` takes as a state: ``finished`` is a job that has ended so."""


class Cluster(SessionClient[ClusterStore]):
    """A client of the cluster ``name``, or of the only one that this user knows if it is None.

    Each call opens a ZooKeeper session and closes it; as a context manager the cluster keeps one
    session open for all calls. An object must not be shared between threads.

    Args:
        name: the name of the cluster; None for EDL_CLUSTER, or else the only cluster in this
            ZooKeeper whose secret is known here.
        zookeeper: the ZooKeeper servers, "host:port,host:port"; None for EDL_ZOOKEEPER, or else the
            local server of this user.
        secret: the secret of the cluster; None for the one in ``secret_file``.
        secret_file: a file, or a pipe, with the secret of the cluster, which other users cannot
            read; None for EDL_SECRET or EDL_SECRET_FILE, or the secret in this user's state
            directory.

    Attributes:
        by: who asks, for the event log of the cluster; empty: as before, at first this user on
            this machine.
        hosts: drains hosts.
        policy: the policy of the cluster, and what it would decide now.
        queues: the queues.
        secrets: the secrets that jobs read by their names.
        tenants: the tenants.

    Besides the errors that are listed with it, each call may raise UnknownCluster, AccessDenied,
    ZooKeeperUnreachable, and CoordinationError if ZooKeeper goes away during the call. All errors
    are EdlErrors. What a call changes is written when it returns; the same call again changes
    nothing more.
    """

    def __init__(
        self,
        name: str | None = None,
        zookeeper: str | None = None,
        *,
        secret: str | None = None,
        secret_file: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(name, zookeeper, secret=secret, secret_file=secret_file)
        self.by = ""
        self.hosts = HostClient(self._store)
        self.policy = PolicyClient(self._store)
        self.queues = QueueClient(self._store)
        self.secrets = SecretClient(self._store)
        self.tenants = TenantClient(self._store)

    @property
    def name(self) -> str:
        """The name of the cluster that this object is a client of, looked up in ZooKeeper."""
        with self._store() as store:
            return store.paths.name

    @property
    def uid(self) -> str:
        """A text that no other cluster has, also no former or later one of the name."""
        with self._store() as store:
            return store.nodes.uid()

    # --- jobs ---

    def submit(self, manifest: AnyManifest, key: str | None = None) -> str:
        """Submit a job, unless that was done with the same key, and return its name.

        Args:
            manifest: the manifest; its values by key; its text; or the path of its file.
            key: a text that the caller has chosen for this submission. Without it, a call that is
                repeated because its answer was lost may find that the name is taken.

        Raises:
            ManifestError: the manifest cannot be read, or a value is not allowed.
            UsageError: a job of that name has not ended, another manifest was submitted with the
                key, the cluster has as many jobs as it may have, or it has queues and not the one
                that the manifest names.
            CoordinationError: the job may have been submitted or not: try again with the same key.
        """
        asked = job_manifest(manifest)
        with self._store() as store:
            if isinstance(store, TenantStore):
                return store.jobs.submit(asked, key)
            return submit_job(store, asked, key)

    def list(
        self, queue: str | None = None, state: str | None = None
    ) -> tuple[ClusterJobStatus, ...]:
        """Return the state of each job, in the order of submission.

        Args:
            queue: the name of a queue, for the jobs of that queue only; None for all.
            state: a state, for jobs in that state only: one of ``STATES``; None for all.

        Raises:
            UsageError: there is no such state.
        """
        if state is not None and state not in STATES:
            raise UsageError(f"there is no state {state!r}; use one of {', '.join(STATES)}")
        with self._store() as store:
            said = store.leader.reasons()
            found = [described(job, said) for job in store.jobs.list()]
        return tuple(
            job
            for job in found
            if queue in (None, job.queue) and state in (None, str(job.state), job.outcome)
        )

    def has_controller(self) -> bool | None:
        """Look in ZooKeeper whether a controller of the cluster runs.

        Without one, jobs train on as they are, nothing starts or changes, and the reasons of jobs
        are those of the last plan.

        Returns:
            True or False; None if this client is a tenant's, which may not read the controllers.
        """
        with self._store() as store:
            return None if isinstance(store, TenantStore) else bool(store.leader.controllers())

    def show(self, job: str) -> ClusterJobDetails:
        """Return all that is known of the job named ``job``.

        Raises:
            UnknownJob: the cluster has no such job.
        """
        with self._store() as store:
            return waiting.details(store, job, time.time())

    def hints(self, job: str) -> SchedulerHints:
        """Return how fast a job trains, as a scheduler outside of edl needs it.

        Raises:
            UnknownJob: the cluster has no such job.
        """
        with self._store() as store:
            return scheduler_hints(measured_view(store, store.jobs.get(job)), time.time())

    def events(
        self, job: str | None = None, after: int = -1
    ) -> tuple[tuple[int, ClusterEvent], ...]:
        """Return the events of the cluster, as pairs of a number and an event, the oldest first.

        The cluster keeps its newest 10,000 events.

        Args:
            job: the name of a job, for events about that job only; None for all.
            after: only events with a greater number are returned.

        Raises:
            UnknownJob: the cluster has no such job, and no event about one.
        """
        with self._store() as store:
            found = waiting.events(store, job, after)
            if job is not None and not found:
                store.jobs.get(job)
            return tuple(found)

    def logs(
        self, job: str, worker: str | None = None, last_bytes: int = 16384
    ) -> tuple[LogEnd, ...]:
        """Return the ends of the logs of a job's workers, from all hosts that have some.

        Args:
            job: the name of the job.
            worker: the name of the one worker, such as "w0"; None: all.
            last_bytes: how many bytes of each log.

        Raises:
            UnknownJob: the cluster has no such job.
            UsageError: the job has not started yet, or has no log of that worker.
        """
        with self._store() as store:
            return log_ends(store, job, worker, last_bytes)

    def wait(
        self, job: str, timeout_s: float | None = None, on_status: OnStatus = ignore_status
    ) -> ClusterJobStatus:
        """Wait until a job has ended, or a user has halted it; return its status then.

        Args:
            job: the name of the job.
            timeout_s: the time to wait, in seconds; None to wait as long as ZooKeeper answers: a
                call without an answer for 10 minutes ends.
            on_status: called with the status of the job at first, and whenever its state or the
                reason of that has changed.

        Raises:
            UnknownJob: the cluster has no such job, it was removed, or a new job has its name.
            TimedOut: the job goes on after ``timeout_s``.
        """
        with self._store() as store:
            return waiting.wait_for_job(store, job, JobCondition.ENDS, timeout_s, on_status)

    def wait_until_running(
        self, job: str, timeout_s: float | None = None, on_status: OnStatus = ignore_status
    ) -> ClusterJobStatus:
        """Wait until a job trains, or has ended or halted before that; return its status then.

        The arguments and the errors are those of :meth:`wait`.
        """
        with self._store() as store:
            return waiting.wait_for_job(store, job, JobCondition.TRAINS, timeout_s, on_status)

    def halt(self, job: str) -> Wanted:
        """Let a job stop with a checkpoint and give its slots to others; do not wait for that.

        :meth:`resume` lets it go on. The job keeps its records, the time of its submission
        included, by which waiting jobs are ordered.

        Args:
            job: the name of the job.

        Returns:
            What users want of the job after the change: its goal and its priority.

        Raises:
            UnknownJob: the cluster has no such job.
            UsageError: the job has ended, or is being deleted.
        """
        return self._want(job, lambda before: replace(before, goal=Goal.HALT))

    def resume(self, job: str) -> Wanted:
        """Let a halted job go on from its newest checkpoint as soon as it gets slots; do not wait.

        The argument, the result and the errors are those of :meth:`halt`.
        """
        return self._want(job, lambda before: replace(before, goal=Goal.RUN))

    def delete(self, job: str, submitted_s: float | None = None) -> Wanted:
        """End a job for good, or remove the records of one that has ended.

        The call does not wait for the end. A job that trains stops with a checkpoint first.
        Checkpoints and logs stay.

        Args:
            job: the name of the job.
            submitted_s: when the job was submitted, as its status says. The call may then be
                repeated: a job that was deleted before stays as it is, and so does another job that
                has got its name. None: the job that has the name, whichever it is.

        Returns:
            What users want of the job after the change: the goal GONE, and its priority.

        Raises:
            UnknownJob: the cluster has no such job, or one that was submitted at another time.
        """
        with self._store() as store:
            return store.jobs.delete(job, submitted_s)

    def priority(self, job: str, priority: int) -> Wanted:
        """Change the priority of a job; jobs of a higher one get slots first.

        Args:
            job: the name of the job.
            priority: the new priority, a whole number from -1,000,000 to 1,000,000.

        Returns:
            What users want of the job after the change: its goal and its priority.

        Raises:
            UnknownJob: the cluster has no such job.
            UsageError: the priority is out of range, or the job has ended or is being deleted.
        """
        wanted = whole(priority)
        if abs(wanted) > MAX_PRIORITY:
            raise UsageError(
                f"the priority is {wanted}; it must lie between -{MAX_PRIORITY} and {MAX_PRIORITY}"
            )
        return self._want(job, lambda before: replace(before, priority=wanted))

    # --- the cluster itself ---

    def status(self) -> ClusterStatus:
        """Return the status of the cluster: who leads, its policy, its hosts and slots.

        `edl cluster status --json` prints the result's ``to_json()``.
        """
        with self._store() as store:
            return status_of_cluster(store)

    # --- the way there ---

    def _want(self, job: str, change: Callable[[Wanted], Wanted]) -> Wanted:
        with self._store() as store:
            return store.jobs.change_wanted(job, change)

    @contextmanager
    def _store(self) -> Iterator[ClusterStore]:
        """While entered, provide the cluster's records, to read and write them."""
        with self._kept_or(self._connect()) as store:
            if self.by:
                store.events.by = self.by
            yield store

    def _connect(self) -> AbstractContextManager[ClusterStore]:
        return connected_cluster(self._name, self._zookeeper, self._given_secret())
