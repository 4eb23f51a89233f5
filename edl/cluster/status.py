"""Define what is shown of a cluster, and of a plan that is not carried out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from edl.cluster.candidates import (
    ThroughputPoint,
    ThroughputSource,
    batching_of,
    live_model,
    sourced_samples,
    throughput_curve,
)
from edl.cluster.lifecycle import ClusterEvent, LifeResult, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.plan import ClusterPlan
from edl.cluster.queues import QueueStatus, queue_statuses
from edl.cluster.records import ControllerRecord, Goal, HostOffer, HostReport, JobReasons
from edl.cluster.view import ClusterView, HostView, JobView
from edl.record import Record


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
    targets = (found.allocation or view.allocation).targets
    return tuple(
        JobPlan(
            job=job.name,
            state=job.life.state,
            # Without those that it is giving back.
            now={
                host.name: slots
                for host in view.hosts
                if (entry := host.assigned.jobs.get(job.name)) is not None and not entry.ends
                if (slots := len(entry.devices) - len(entry.leaving))
            },
            planned=dict(targets.get(job.name, {})),
            reason=found.reasons.get(job.name, ""),
        )
        for job in view.jobs
        if job.life.state is not LifeState.ENDED
    )


def with_new_decision(view: ClusterView) -> ClusterView:
    """Return a copy of `view` for which a plan asks the policy at once; all else is the same."""
    return replace(view, allocation=replace(view.allocation, inputs=""))


def with_new_host(view: ClusterView, slots: int, labels: Mapping[str, str]) -> ClusterView:
    name, number = "new", 1
    while name in view.host_named:
        number += 1
        name = f"new-{number}"
    added = HostView(name, HostOffer(slots, labels=labels), report=HostReport())
    return replace(view, hosts=sorted((*view.hosts, added), key=lambda host: host.name))


def _host_status(host: HostView) -> HostStatus:
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


# ------------------------------------------------------------
# Define what users are told of a job of a cluster.
#
# The records here are only made and shown; nothing of them is in ZooKeeper.


UNSEEN = "no controller of the cluster has seen it yet"


@dataclass(frozen=True)
class ClusterJobStatus(Record):
    """The state of a job of a cluster, as `edl list --json` prints it."""

    name: Annotated[str, "name of the job"]
    state: Annotated[LifeState, "`queued`, `starting`, `running`, `halting`, `halted` or `ended`"]
    reason: Annotated[
        str, "why, in a sentence; of a queued job its place in the queue, and why it waits"
    ]
    wanted: Annotated[Goal, "what users want of it: `run`, `halt` or `gone`"]
    result: Annotated[
        LifeResult | None, "how it has ended: `finished`, `failed` or `deleted`; null: it has not"
    ]
    exit_code: Annotated[int, "exit code of its last run; 0 if none has ended"]
    slots: Annotated[int, "how many slots it has now"]
    surplus: Annotated[int, "how many of these are beyond the quota of its queue"]
    min: Annotated[int, "never fewer workers"]
    max: Annotated[int, "never more workers"]
    np: Annotated[int, "how many workers it asks for"]
    priority: Annotated[int, "jobs of a higher priority come first"]
    queue: Annotated[str, "the queue that it waits in"]
    submitted_s: Annotated[float, "when it was submitted, in seconds since 1970"]
    since_s: Annotated[float, "when it entered this state; 0: no controller has seen it yet"]
    started_s: Annotated[float, "when it got its first slots; 0: never"]
    ended_s: Annotated[float, "when it ended; 0: it has not"]
    runs: Annotated[int, "number of its runs so far, the present one included"]
    failures: Annotated[int, "how many of them have failed since it was submitted or resumed"]

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the job unless a user asks for it: it ended or halted."""
        halted = self.state is LifeState.HALTED and self.wanted is Goal.HALT
        return self.state is LifeState.ENDED or halted

    @property
    def outcome(self) -> str:
        """The state of the job as one word: how it has ended if it has, else its state."""
        return str(self.result or self.state)


def described(job: JobView, reasons: JobReasons) -> ClusterJobStatus:
    manifest, life, wanted = job.manifest, job.life, job.wanted
    reason = reasons.reason(job.name, life.since_s) if life.state is not LifeState.ENDED else ""
    return ClusterJobStatus(
        name=job.name,
        state=life.state,
        reason=reason or life.reason or UNSEEN,
        wanted=wanted.goal,
        result=life.result,
        exit_code=life.exit_code,
        slots=life.slots,
        surplus=min(life.slots, reasons.surplus.get(job.name, 0)),
        min=manifest.min,
        max=manifest.max,
        np=manifest.requested_np,
        priority=wanted.priority,
        queue=manifest.queue,
        submitted_s=job.submitted_s,
        since_s=life.since_s,
        started_s=life.started_s,
        ended_s=life.ended_s,
        runs=life.runs,
        failures=life.failures,
    )


@dataclass(frozen=True)
class ClusterJobDetails(Record):
    """All that is known of a job of a cluster, as `edl show --json` prints it."""

    job: Annotated[ClusterJobStatus, "its state, with the fields above"]
    manifest: Annotated[JobManifest, "what was submitted, with absolute paths"]
    run: Annotated[str, "token of its present or last run; empty: it was never started"]
    devices: Annotated[
        Mapping[str, tuple[int, ...]], "host -> the numbers of the devices that it has there now"
    ]
    leaving: Annotated[
        Mapping[str, tuple[int, ...]], "host -> those of `devices` that it is giving back"
    ]
    not_before_s: Annotated[
        float, "before this time it is not started again, in seconds since 1970; 0: at any time"
    ]
    slot_s: Annotated[float, "for how many seconds it has had slots, times their number"]
    throughput: Annotated[
        tuple[ThroughputPoint, ...], "how fast it trains with some numbers of workers, see below"
    ]
    history: Annotated[
        tuple[ClusterEvent, ...], "its events since it was submitted, the oldest first"
    ]


# ------------------------------------------------------------
# Say what a scheduler outside of edl needs to know of a job's speed: `scheduler_hints`.
#
# The names in `SchedHints` are those of AdaptDL (`adaptdl/sched_hints.py`, `adaptdl/goodput.py`),
# whose jobs send the same object to their scheduler, so that one which reads AdaptDL's jobs reads
# these. edl's model of a step's time is Pollux', as AdaptDL's is (`step_time`): the parameters are
# the same under other names.


@dataclass(frozen=True)
class PerfParams(Record):
    """The model of a step's time; m are the samples of a worker, K the workers."""

    alpha_c: Annotated[float, "the part of the compute time without m, in seconds"]
    beta_c: Annotated[float, "seconds of computing for each of m"]
    alpha_n: Annotated[float, "seconds of the reduction between two workers on two hosts"]
    beta_n: Annotated[float, "what each further one of K adds to that"]
    alpha_r: Annotated[float, "seconds of the reduction between two workers on one host"]
    beta_r: Annotated[float, "what each further one of K adds to that"]
    gamma: Annotated[float, "how far both overlap: from 1, not at all, to 10, entirely"]


@dataclass(frozen=True)
class GradParams(Record):
    """The noise of the gradients, of which only the ratio of the two numbers is known."""

    norm: Annotated[float, "the squared norm of the gradient, as 1"]
    var: Annotated[float, "the variance of a gradient of `initBatchSize` samples, over `norm`"]


@dataclass(frozen=True)
class SchedHints(Record):
    """What AdaptDL's jobs tell their scheduler; each field says its meaning."""

    initBatchSize: Annotated[int, "smallest global batch, in samples"]
    localBszBounds: Annotated[
        tuple[int, int] | None, "smallest and largest batch of a worker; null: edl knows no bounds"
    ]
    globalBatchSize: Annotated[int | None, "global batch now; null: not known"]
    maxBatchSize: Annotated[
        int | None, "largest global batch that a scheduler may choose; null: it may choose none"
    ]
    maxProfiledReplicas: Annotated[int, "most workers with which it was measured; 0: never"]
    gradientAccumulation: Annotated[
        bool, "whether a scheduler may count on it for larger batches: false"
    ]
    gradParams: Annotated[GradParams | None, "the noise of the gradients; null: not known"]
    perfParams: Annotated[PerfParams | None, "the model of a step's time; null: nothing is known"]


@dataclass(frozen=True)
class SchedulerHints(Record):
    """What is known of a job for a scheduler outside of edl; each field says its meaning."""

    job: Annotated[str, "name of the job"]
    min: Annotated[int, "never fewer workers"]
    max: Annotated[int | None, "never more workers; null: no limit"]
    sizes: Annotated[tuple[int, ...], "the only numbers of workers that it may have; empty: any"]
    np: Annotated[int, "how many workers it asks for"]
    noise_scale: Annotated[float | None, "gradient noise scale, in samples; null: not known"]
    samples_left: Annotated[float | None, "samples to train until its end; null: not known"]
    throughput: Annotated[tuple[ThroughputPoint, ...], "how fast it trains with how many workers"]
    sched_hints: Annotated[SchedHints, "the same in the words of AdaptDL"]


def scheduler_hints(job: JobView, now_s: float) -> SchedulerHints:
    sizes, model, measured = job.manifest.allowed_sizes, live_model(job, now_s), job.measured
    noise, batch, limit = measured.noise_scale, model.smallest_batch, job.manifest.batch
    known_noise = noise if noise is not None and math.isfinite(noise) else None
    step_time = model.step_time
    sources = sourced_samples(measured, job.manifest.hints, batching_of(job))
    sizes_measured = [one.workers for one, it in sources if it is ThroughputSource.MEASURED]
    return SchedulerHints(
        job=job.name,
        min=job.min_slots,
        max=sizes.max_np,
        sizes=tuple(sizes.sizes),
        np=job.manifest.requested_np,
        noise_scale=known_noise,
        samples_left=model.left,
        throughput=throughput_curve(job, job.life.slots, now_s),
        sched_hints=SchedHints(
            initBatchSize=batch,
            localBszBounds=None,
            globalBatchSize=measured.global_batch or None,
            maxBatchSize=limit.max if limit is not None and limit.set_by_policy else None,
            maxProfiledReplicas=max(sizes_measured, default=0),
            gradientAccumulation=False,
            # For a batch of s times the smallest one b, AdaptDL's efficiency
            # (var + norm) / (var / s + norm) / s is edl's (noise scale + b) / (noise scale + s b)
            # if var / norm is the noise scale over b.
            gradParams=None if known_noise is None else GradParams(1.0, known_noise / batch),
            perfParams=PerfParams(
                alpha_c=step_time.compute_s,
                beta_c=step_time.each_sample_s,
                alpha_n=step_time.far_reduce_s,
                beta_n=step_time.each_far_worker_s,
                alpha_r=step_time.reduce_s,
                beta_r=step_time.each_worker_s,
                gamma=step_time.overlap,
            )
            if model.samples
            else None,
        ),
    )
