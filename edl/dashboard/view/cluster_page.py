"""Turn the records of a cluster into the page of that cluster, in sections.

The jobs, the chart and the events are no sections: there may be thousands, so the page asks for
those that it shows. What a tenant may not see, its page does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from edl.cluster.lifecycle import LifeState
from edl.cluster.records import LeaseState, LeaseTable, tenant_of
from edl.cluster.status import ClusterJobStatus, ClusterStatus, HostStatus
from edl.dashboard.view.charts import natural_order
from edl.dashboard.view.page import job_counts
from edl.record import Record
from edl.text import counted

MAX_HOSTS = 200  # that are shown; those that need a look come first
MAX_HOST_JOBS = 12  # of one host


@dataclass(frozen=True)
class ClusterObservation:
    """The records of a cluster as they were read at one time, the input of its page."""

    cluster: str  # the name of the cluster
    jobs: Sequence[ClusterJobStatus]  # its jobs in the order of submission; for a tenant, its own
    zookeeper: str  # where it was read
    at_s: float  # when, in seconds since 1970
    reasons_s: float  # when the leader made the plan that the reasons of jobs are from; 0: never
    status: ClusterStatus | None = None  # None: a tenant looks, who may not see it
    leaderless_s: float = 0.0  # since when no controller leads, as far as was seen; 0: one does
    leases: LeaseTable = field(default_factory=LeaseTable)  # the hosts that an engine lends
    tenants: Sequence[str] = ()  # the names of its tenants
    # queue -> the tenant whose jobs may use it
    queue_tenants: Mapping[str, str] = field(default_factory=dict)
    viewer: str = ""  # the tenant who looks; empty: the administrator


@dataclass(frozen=True, kw_only=True)
class HostSummary(HostStatus):
    """A host as the page lists it; a lease without a host is listed as one without a name."""

    tone: Annotated[str, "`good`, `warning`, or `over`"]
    more_jobs: Annotated[
        int, "jobs there that are not in `jobs`, which has those with the most"
    ] = 0
    lease: Annotated[str, "the lease under which an engine lends it, with its state"]


@dataclass(frozen=True)
class TenantUsage(Record):
    """The jobs and slots of a tenant, summed over its queues."""

    tenant: Annotated[str, "its name; empty: the administrator"]
    queues: Annotated[tuple[str, ...], "its queues"]
    quota: Annotated[int, "the guaranteed slots of its queues"]
    slots: Annotated[int, "slots that its jobs have"]
    running: Annotated[int, "its jobs that have slots"]
    waiting: Annotated[int, "its jobs that are queued"]


@dataclass(frozen=True)
class ClusterJobSummary(Record):
    """The details of a job in its opened row, without its environment: it may hold secrets."""

    job: Annotated[str, "its name"]
    command: Annotated[tuple[str, ...], "the command of each worker"]
    cwd: Annotated[str, "the working directory of the command"]
    labels: Annotated[Mapping[str, str], "the labels that a host must have"]
    after: Annotated[tuple[str, ...], "jobs that must have finished before"]
    checkpoint: Annotated[str, "the directory of its checkpoints; empty: not given"]
    hosts: Annotated[Mapping[str, int], "host -> its slots there"]
    slot_s: Annotated[float, "for how many seconds it has had slots, times their number"]
    not_before_s: Annotated[float, "before this time it is not started again; 0: at any time"]
    run: Annotated[str, "the token of its present or last run; empty: it was never started"]


def cluster_sections(reading: ClusterObservation) -> dict[str, Any]:
    status = reading.status
    return {
        "header": cluster_header(reading),
        "hosts": None if status is None else host_views(status.hosts, reading.leases),
        "queues": None if status is None else status.queues,
        "tenants": None if status is None else tenant_uses(reading),
    }


def cluster_header(reading: ClusterObservation) -> dict[str, Any]:
    status = reading.status
    words, tone = cluster_in_words(reading)
    return {
        "cluster": reading.cluster,
        "viewer": reading.viewer,
        "words": words,
        "tone": tone,
        "leaderless_s": reading.leaderless_s,
        "reasons_s": reading.reasons_s,
        "leader": status.leader if status else "",
        "term": status.term if status else 0,
        "controllers": (status.waiting + bool(status.leader)) if status else 0,
        "policy": status.policy if status else "",
        "parameters": status.parameters if status else {},
        "problem": status.problem if status else "",
        "fleet": status.fleet if status else "",
        "slots": status.slots if status else None,
        "used": status.used if status else sum(job.slots for job in reading.jobs),
        "hosts": len(status.hosts) if status else None,
        "jobs": job_counts(reading.jobs),
        "queues": sorted({job.queue for job in reading.jobs}),
        "zookeeper": reading.zookeeper,
    }


def cluster_in_words(reading: ClusterObservation) -> tuple[str, str]:
    status = reading.status
    if status is None:
        return f"the jobs of tenant {reading.viewer}", "good"
    if not status.leader:
        return "no controller leads", "bad"
    if not status.slots:
        return "no host offers slots", "warning"
    if status.problem:
        return "the policy's decision is not used", "warning"
    return f"{status.used} of {counted(status.slots, 'slot')} in use", "good"


def host_views(hosts: Sequence[HostStatus], leases: LeaseTable) -> dict[str, Any]:
    of_host = {one.host: f"{name}, {one.state}" for name, one in leases.leases.items() if one.host}
    order = sorted(hosts, key=lambda one: (one.state == "offers", natural_order(one.host)))
    rows = [_host_view(one, of_host.get(one.host, "")) for one in order[:MAX_HOSTS]]
    known = {one.host for one in hosts}
    absent = [
        HostSummary(
            *("", str(one.state), one.slots, 0, {}, {}, "", ""),
            tone="warning",
            lease=f"{name}: {one.why}" if one.why else name,
        )
        for name, one in leases.leases.items()
        if one.host not in known and one.state is not LeaseState.ENDED
    ]
    return {"rows": [*rows, *absent[:MAX_HOSTS]], "total": len(hosts), "leases": len(absent)}


def tenant_uses(reading: ClusterObservation) -> tuple[TenantUsage, ...]:
    if not reading.tenants or reading.status is None:
        return ()
    slots: Counter[str] = Counter()
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for job in reading.jobs:
        tenant = tenant_of(job.name, reading.tenants)
        slots[tenant] += job.slots
        running[tenant] += job.state.has_run
        waiting[tenant] += job.state is LifeState.QUEUED
    found = []
    for tenant in ("", *sorted(reading.tenants)):
        own = [
            one
            for one in reading.status.queues
            if reading.queue_tenants.get(one.queue, "") == tenant
        ]
        found.append(
            TenantUsage(
                tenant=tenant,
                queues=tuple(one.queue for one in own),
                quota=sum(one.quota for one in own),
                slots=slots[tenant],
                running=running[tenant],
                waiting=waiting[tenant],
            )
        )
    return tuple(found)


def away_cluster_in_words(reason: str, since_s: float, now_s: float) -> str:
    age = counted(max(0, round(now_s - since_s)), "second")
    return (
        f"The cluster could not be read for {age}: {reason}. The page shows what was known before; "
        "running jobs train on without it."
    )


def _host_view(host: HostStatus, lease: str) -> HostSummary:
    most = sorted(host.jobs.items(), key=lambda one: (-one[1], one[0]))[:MAX_HOST_JOBS]
    tone = "good" if host.state == "offers" else "over" if host.state == "drained" else "warning"
    return HostSummary(
        **{**vars(host), "jobs": dict(most)},
        tone=tone,
        more_jobs=len(host.jobs) - len(most),
        lease=lease,
    )
