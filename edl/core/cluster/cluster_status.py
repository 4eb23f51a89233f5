"""Define what is shown of a cluster, and of a plan that is not carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from edl.core.cluster.job_life import LifeState
from edl.core.cluster.plan import ClusterPlan
from edl.core.cluster.queue_status import QueueStatus, queue_statuses
from edl.core.cluster.records import ControllerRecord, HostOffer, HostReport, Wanted
from edl.core.cluster.view import ClusterView, HostView, JobRequest, JobView
from edl.core.record import Record


@dataclass(frozen=True)
class HostStatus(Record):
    """One host of a cluster as `edl cluster status` shows it."""

    host: Annotated[str, "its name"]
    state: Annotated[
        str,
        "`offers` slots, `drained`, `leaves`: it is about to end, `silent`: it has no offer now, "
        "`taken out`: several jobs could not start there, "
        "`lease ended`: the engine that lent it does so no more, or `other format`: its edl writes "
        "other records than the leader's. Only one that offers slots gets jobs",
    ]
    slots: Annotated[int, "slots that it offers"]
    used: Annotated[int, "slots that jobs have, those that are being given back included"]
    jobs: Annotated[Mapping[str, int], "job -> its slots here"]
    labels: Annotated[Mapping[str, str], "its labels"]
    kind: Annotated[str, "the kind of machine; empty: not given"]
    version: Annotated[str, "the version of edl there; empty: it has no offer now"]
    problem: Annotated[str, "which jobs could not start there, and why; empty: none"] = ""


@dataclass(frozen=True)
class ClusterStatus(Record):
    """The status of a cluster as `edl cluster status` shows it."""

    cluster: Annotated[str, "its name"]
    leader: Annotated[str, "the controller that leads; empty: none does now"]
    version: Annotated[str, "the version of edl of the newest leader; empty: there was none"]
    term: Annotated[int, "of the newest leader"]
    waiting: Annotated[int, "controllers that wait to lead"]
    policy: Annotated[str, "the policy that gives slots to jobs"]
    parameters: Annotated[Mapping[str, Any], "its parameters, where they were changed"]
    problem: Annotated[
        str, "why the policy's decision is not used, or why it cannot be asked; empty: neither"
    ]
    slots: Annotated[int, "slots that hosts offer"]
    used: Annotated[int, "slots that jobs have"]
    jobs: Annotated[Mapping[str, int], "state -> number of jobs in it"]
    hosts: Annotated[tuple[HostStatus, ...], "its hosts, see below"]
    fleet: Annotated[
        str, "how many hosts an engine lends and is asked for, as a sentence; empty: none is"
    ]
    zookeeper: Annotated[str, "where this was read"]
    queues: Annotated[tuple[QueueStatus, ...], "its queues, see below; empty: it has none"] = ()


@dataclass(frozen=True)
class JobPlan(Record):
    """One row of `edl cluster plan`: a job's state, its slots by host now and planned, and why."""

    job: Annotated[str, "its name"]
    state: Annotated[LifeState, "its state now"]
    now: Annotated[Mapping[str, int], "host -> slots that it has"]
    planned: Annotated[Mapping[str, int], "host -> slots that it is to have"]
    reason: Annotated[str, "why, or why it waits and where in the queue"]


def cluster_status(
    cluster: str,
    view: ClusterView,
    leader: ControllerRecord | None,
    controllers: int,
    zookeeper: str,
    fleet: str = "",
) -> ClusterStatus:
    """Return the status of a cluster, as `edl cluster status` prints it."""
    hosts = tuple(_host_status(host) for host in view.hosts)
    states = Counter(str(job.life.state) for job in view.jobs)
    return ClusterStatus(
        cluster=cluster,
        leader=str(leader) if leader is not None and controllers else "",
        version=leader.version if leader is not None else "",
        term=leader.term if leader is not None else 0,
        waiting=max(0, controllers - 1),
        policy=view.settings.policy,
        parameters=view.settings.parameters,
        problem=view.allocation.problem or view.allocation.held,
        slots=sum(host.slots for host in hosts),
        used=sum(host.used for host in hosts),
        jobs={state: states[state] for state in map(str, LifeState) if states[state]},
        hosts=hosts,
        fleet=fleet,
        zookeeper=zookeeper,
        queues=queue_statuses(view),
    )


def job_plans(view: ClusterView, found: ClusterPlan) -> tuple[JobPlan, ...]:
    """Return the slots of each job of `view` now and by the plan `found`, with the reason."""
    targets = (found.allocation or view.allocation).targets
    return tuple(
        JobPlan(
            job=job.name,
            state=job.life.state,
            now=slots_of(view, job.name),
            planned=dict(targets.get(job.name, {})),
            reason=found.reasons.get(job.name, ""),
        )
        for job in view.jobs
        if job.life.state is not LifeState.ENDED
    )


def slots_of(view: ClusterView, job: str) -> dict[str, int]:
    """Return how many slots `job` has on each host, without those that it is giving back."""
    found = {}
    for host in view.hosts:
        entry = host.assigned.jobs.get(job)
        if entry is not None and not entry.ends:
            found[host.name] = len(entry.devices) - len(entry.leaving)
    return {host: slots for host, slots in found.items() if slots}


def with_new_decision(view: ClusterView) -> ClusterView:
    """Return a copy of `view` for which a plan asks the policy at once; all else is the same."""
    return replace(view, allocation=replace(view.allocation, inputs=""))


def with_new_host(view: ClusterView, slots: int, labels: Mapping[str, str]) -> ClusterView:
    """Return a copy of `view` with one more host, which has no jobs and a new name ("new")."""
    name, number = "new", 1
    while name in view.host_named:
        number += 1
        name = f"new-{number}"
    paths = {path: True for job in view.jobs for path in job.manifest.required_paths}
    added = HostView(name, HostOffer(slots, labels=labels), report=HostReport(paths=paths))
    return replace(view, hosts=sorted((*view.hosts, added), key=lambda host: host.name))


def with_new_job(
    view: ClusterView, name: str, request: JobRequest, priority: int, now_s: float
) -> ClusterView:
    """Return a copy of `view` with one more job, which was submitted last."""
    order = 1 + max((job.order for job in view.jobs), default=0)
    added = JobView(name, order, request, now_s, Wanted(priority=priority))
    return replace(view, jobs=(*view.jobs, added))


def _host_status(host: HostView) -> HostStatus:
    """Return the status of a host: its state, its slots and how many of them jobs have."""
    offer = host.offer
    state = "silent" if offer is None else "offers"
    if offer is not None and (host.drained or offer.leaves):
        state = "drained" if host.drained else "leaves"
    elif offer is not None and host.assigned.out:
        state = "taken out"
    elif offer is not None and not host.lease_holds:
        state = "lease ended"
    elif offer is not None and not host.takes_slots:
        state = "other format"
    jobs = {name: len(entry.devices) for name, entry in sorted(host.assigned.jobs.items())}
    return HostStatus(
        host=host.name,
        state=state,
        slots=len(offer.numbers) if offer is not None else 0,
        used=sum(jobs.values()),
        jobs=jobs,
        labels=offer.labels if offer is not None else {},
        kind=offer.kind if offer is not None else "",
        version=offer.version if offer is not None else "",
        problem=host.assigned.out
        or "; ".join(
            f"job {job} could not start: {one.reason}"
            for job, one in host.assigned.failures.items()
            if one.blamed
        ),
    )
