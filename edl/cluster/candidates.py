"""Find the jobs of a live cluster that a policy may give slots to, and say why others wait.

:func:`find_active_jobs` does so. A policy is told of each job whose user wants it to run. It is not
told of a job that would get nothing from slots now: one that waits for its next try, or for other
jobs to finish, or that needs more slots than its hosts have. So such a job holds up no other one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated

from edl.cluster.lifecycle import JobLifecycle, LifeResult, LifeState
from edl.cluster.manifest import PolicyHints
from edl.cluster.records import SEPARATOR, tenant_of
from edl.cluster.state import EXACT, ClusterJob, StepTimeError
from edl.cluster.view import (
    ClusterView,
    DeviceTable,
    JobMeasurements,
    JobView,
)
from edl.errors import some
from edl.policy.step_time import StepTime, StepTimeSample
from edl.policy.step_time_fit import fit_all
from edl.record import Record
from edl.step.batching import Batching
from edl.text import counted, verb

# ------------------------------------------------------------
# Describe a live job to cluster policies: its speed on other slots, and the work that is left.
#
# **Speed.** The measured steps of the job, and the sizes of its curve that it has not measured, are
# fitted by the model of a step's time (`step_time`). The model's result is corrected by its error
# at the measurement with the nearest number of workers, so a measured size is predicted as it was
# measured. On other slots the global batch is as the script sets it: as a rule each worker trains
# as many samples in a step as before, and all workers together train more. A job about which
# nothing is known is taken to train one sample a second on each slot, with linear speed-up, so that
# policies try more slots ("prior-driven exploration", Pollux, OSDI 2021, section 4.1).
#
# **Work left.** The samples that the job itself says are left; or those of the number of steps that
# its user has given. If neither is known, the job has as much service left as:
#
# 1. its user's duration, in slot-seconds, less what it has attained; or
# 2. what it has attained so far, and at least `LEAST_SERVICE_S` seconds on each of its fewest
#    slots. The lengths of training jobs have heavy tails: the longer a job has run, the longer it
#    goes on, and with a Pareto distribution the mean of what is left grows in proportion to the
#    age. So a policy that serves the shortest remaining time serves the job with the least attained
#    service, as Tiresias does (NSDI 2019, section 3) for the same reason.


FITTED = 20_000  # models that are kept, twice as many as a cluster may have jobs
ROUNDED_TO = 0.01  # of the logarithms of times and batches to which a model is fitted
LEAST_SERVICE_S = 60.0  # of a job that has just begun, and may be any length
LEAST_LEFT_S = 1.0  # of a job that takes longer than its user has said
UNKNOWN_SPEED = StepTime(each_sample_s=1.0)


@dataclass(frozen=True)
class LiveModel:
    """The known speed and remaining work of a live job, a `TrainingModel`."""

    samples: tuple[StepTimeSample, ...]  # the known step times; empty: its speed is not known
    left: float | None  # the samples left to train; None: not known
    left_slot_s: float  # where `left` is not known: the slot-seconds that are left
    fewest: int  # the fewest slots that the job may have, on which `left_slot_s` would be spent
    noise_scale: float | None  # the noise scale of the gradients, in samples; None: not known
    smallest_batch: int  # the smallest global batch of the job, in samples
    batching: Batching | None  # of the script; None: the cluster sets the global batch
    models: StepTimeModels = field(repr=False, compare=False)  # fits this and others together

    @cached_property
    def step_time(self) -> StepTime:
        return self.models.model(self.samples) if self.samples else UNKNOWN_SPEED

    @property
    def error(self) -> StepTimeError:
        return _fit_error(self.step_time, self.samples)

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        workers, hosts = sum(slots), len(slots)
        # The script may set another global batch: then it trains these samples in more or fewer
        # steps.
        step = self.batching.of_all(workers) if self.batching is not None else batch
        step_s = self.step_time.step_s(workers, hosts, step / workers) * batch / step
        if not self.samples:
            return step_s

        def distance(one: StepTimeSample) -> tuple[float, ...]:
            other = abs(one.hosts - hosts), abs(one.batch - step / workers)
            return abs(one.workers - workers), *other

        near = min(self.samples, key=distance)
        return step_s * near.step_s / self.step_time.step_s(near.workers, near.hosts, near.batch)

    def efficiency(self, batch: int) -> float:
        if self.noise_scale is None or self.noise_scale == float("inf"):
            return 1.0
        return (self.noise_scale + self.smallest_batch) / (self.noise_scale + batch)

    def steps_left(self, batch: int) -> float:
        if self.left is not None:
            return self.left / batch
        return self.left_slot_s / self.fewest / self.step_s((self.fewest,), batch)


def live_model(job: JobView, now_s: float, models: StepTimeModels | None = None) -> LiveModel:
    models = models or StepTimeModels()
    measured, hints = job.measured, job.manifest.hints
    batch, batching = batch_of(job), batching_of(job)
    samples = tuple(one for one, _ in sourced_samples(measured, hints, batching))
    left = measured.left
    if left is None and hints.steps is not None:
        left = max(0.0, float(hints.steps - measured.done_steps)) * batch
    limit = job.manifest.batch
    attained = job.life.attained_s(now_s)
    left_slot_s = max(attained, LEAST_SERVICE_S * job.min_slots)
    if hints.duration_s is not None:
        whole = hints.duration_s * job.manifest.requested_np
        left_slot_s = max(whole - attained, LEAST_LEFT_S)
    models.add(samples)
    return LiveModel(
        samples=samples,
        left=left,
        left_slot_s=left_slot_s,
        fewest=job.min_slots,
        noise_scale=measured.noise_scale,
        smallest_batch=limit.min if limit is not None else batch,
        batching=batching if limit is None else None,
        models=models,
    )


def is_measured(job: JobView) -> bool:
    measured, hints = job.measured, job.manifest.hints
    left = measured.left is not None or hints.steps is not None
    speed = bool(measured.steps or measured.curve or hints.samples_per_s)
    return (left and speed) or hints.duration_s is not None


def batch_of(job: JobView) -> int:
    """Return the global batch of `job` now, in samples; at least 1."""
    limit = job.manifest.batch
    return job.measured.global_batch or (limit.min if limit else job.manifest.requested_np)


def batching_of(job: JobView) -> Batching:
    if job.manifest.batch is not None:
        return Batching(global_batch=batch_of(job))
    steps = job.measured.steps
    # A script that reads its own data: as many samples of a worker as were measured last.
    return job.measured.batching or Batching(max(1, round(steps[-1].batch)) if steps else 1)


class ThroughputSource(StrEnum):
    """The source of a job's known throughput with one number of workers."""

    MEASURED = "measured"  # by the job itself, in this run or a former one
    FORMER_JOB = "former job"  # by a job that had the name before
    SUPPLIED = "supplied"  # by its manifest
    ASSUMED = "assumed"  # by the model of a step's time


def sourced_samples(
    measured: JobMeasurements, hints: PolicyHints, batching: Batching
) -> tuple[tuple[StepTimeSample, ThroughputSource], ...]:
    found = [(one, ThroughputSource.MEASURED) for one in measured.steps]
    for curve, source in (
        (measured.curve, ThroughputSource.FORMER_JOB),
        (hints.samples_per_s, ThroughputSource.SUPPLIED),
    ):
        known = {one.workers for one, _ in found}
        for np, rate in sorted(curve.items()):
            if np not in known and np > 0 and rate > 0:
                batch = batching.of_all(np)
                found.append((StepTimeSample(np, 1, batch / np, batch / rate), source))
    return tuple(found)


class StepTimeModels:
    def __init__(self) -> None:
        self._added: dict[tuple[StepTimeSample, ...], None] = {}

    def add(self, samples: tuple[StepTimeSample, ...]) -> None:
        self._added[samples] = None

    def model(self, samples: tuple[StepTimeSample, ...]) -> StepTime:
        # Each mean of a job differs a little from its last one: rounded, most models are known.
        key = _rounded(samples)
        found = _FITTED.get(key)
        if found is None:
            asked = dict.fromkeys(_rounded(one) for one in (*self._added, samples) if one)
            new = [one for one in asked if one not in _FITTED]
            fitted = dict(zip(new, fit_all(new), strict=True))
            self._added = {}
            found = fitted[key]
            _FITTED.update(fitted)
            if len(_FITTED) > FITTED:  # without the older half
                for old in list(_FITTED)[: FITTED // 2]:
                    _FITTED.pop(old, None)
        return found


_FITTED: dict[tuple[StepTimeSample, ...], StepTime] = {}


@lru_cache(maxsize=FITTED)
def _rounded(samples: tuple[StepTimeSample, ...]) -> tuple[StepTimeSample, ...]:
    return tuple(
        StepTimeSample(
            one.workers,
            one.hosts,
            one.batch if float(one.batch).is_integer() else _rounded_value(one.batch),
            _rounded_value(one.step_s),
        )
        for one in samples
    )


def _rounded_value(value: float) -> float:
    return math.exp(round(math.log(value) / ROUNDED_TO) * ROUNDED_TO)


@lru_cache(maxsize=4096)
def _fit_error(step_time: StepTime, samples: tuple[StepTimeSample, ...]) -> StepTimeError:
    free = len(samples) - step_time.fitted
    if free <= 0:
        return EXACT
    residuals = [
        math.log(one.step_s / step_time.step_s(one.workers, one.hosts, one.batch))
        for one in samples
    ]
    return StepTimeError(math.sqrt(sum(one * one for one in residuals) / free), len(samples))


HAS_SLOTS = (LifeState.STARTING, LifeState.RUNNING)
# Jobs that wait, of one priority and the same labels, that a policy chooses among: the first ones.
# It bounds what one decision costs, so queues share it; Slurm's backfill looks at as many
# (bf_max_job_test).
MAX_ASKED = 500
MIN_ASKED = 50  # of each queue, however many there are


@dataclass(frozen=True)
class ActiveJob:
    job: JobView  # the job as the leader has read it: its manifest, life, run and measurements
    limits: Mapping[str, int]  # host -> the most slots that it may have there, above 0
    present: Mapping[str, int]  # host -> slots there by the last decision, at most the limit
    why_fixed: str  # why the slots `present` may not be changed, a sentence; else empty
    most: int  # the most slots that a policy may give it, on all hosts together
    hosts: tuple[str, ...]  # the hosts that count and have the labels that it asks for
    labels: str  # these labels as a text, "key=value,..."; empty if all hosts have them
    requested: int = 0  # by a policy of fixed sizes; 0: as its manifest requests

    @property
    def is_fixed(self) -> bool:
        return bool(self.why_fixed)

    @property
    def size(self) -> int:
        return sum(self.present.values())

    @property
    def group(self) -> tuple[int, int, str]:
        """The jobs that a policy is asked about together; lower groups are served first."""
        return -self.job.wanted.priority, len(self.hosts), self.labels

    def cluster_job(self, now_s: float, models: StepTimeModels | None = None) -> ClusterJob:
        job, sizes = self.job, self.job.manifest.allowed_sizes
        batch, limit = batch_of(job), job.manifest.batch
        chosen = limit is not None and limit.set_by_policy
        return ClusterJob(
            name=job.name,
            arrival_s=job.life.submitted_s,
            requested_slots=sizes.fit(min(self.requested or job.manifest.requested_np, self.most)),
            min_slots=job.min_slots,
            max_slots=self.most,
            batch=batch,
            batches=(limit.min, limit.max) if chosen and limit is not None else (batch, batch),
            model=live_model(job, now_s, models),
            attained_slot_s=job.life.attained_s(now_s),
            # A job that has lost slots is changed once more, whatever its manifest says.
            preemptible=not self.is_fixed
            and (job.manifest.preemptible is not False or bool(self.present)),
            steps=job.measured.steps,
            noise_scale=job.measured.noise_scale,
            weight=job.manifest.weight,
            sizes=sizes,
            start_s=job.life.start_s,
            is_measured=is_measured(job),
            lost_s=max(0.0, now_s - job.life.since_s) if job.saves_nothing else 0.0,
        )


def hosts_with_slots(cluster: ClusterView, table: DeviceTable) -> dict[str, int]:
    """Return how many slots a policy can count on, by host; hosts without any are left out."""
    settings, found = cluster.settings, {}
    for host in cluster.hosts:
        lost = host.is_lost(table.now_s, settings.lost_after_s)
        # Until it is lost, a silent host counts with the slots that jobs keep there.
        silent = host.offer is None and not host.drained and not lost
        if host.takes_slots or silent:
            found[host.name] = table.capacity(host.name, settings.stuck_s)
    return {host: slots for host, slots in found.items() if slots}


def find_active_jobs(
    cluster: ClusterView, table: DeviceTable
) -> tuple[list[ActiveJob], dict[str, str]]:
    nodes = hosts_with_slots(cluster, table)
    choices = _HostChoices(cluster, table, nodes)
    count = len(cluster.queues)
    most = MAX_ASKED if count < 2 else max(MIN_ASKED, MAX_ASKED // count)
    waiting: Counter[tuple[object, ...]] = Counter()
    queue: tuple[object, ...]
    found, obstacles = [], {}
    for job in cluster.jobs:
        if not job.wants_slots:
            continue
        queue = (job.wanted.priority, *job.manifest.labels.items())
        queue = (job.manifest.queue, *queue) if cluster.queues else queue
        waits = job.life.state is LifeState.QUEUED
        one = obstacle(job, cluster, table.now_s)
        if one is None and waits and waiting[queue] >= most:
            one = f"waits: {most} jobs like it come first"
        found_one = one or _active(job, cluster, table, choices)
        if isinstance(found_one, ActiveJob):
            found.append(found_one)
            waiting[queue] += waits
        else:
            obstacles[job.name] = found_one
    return _within_hosts(found, nodes, table), obstacles


def obstacle(job: JobView, cluster: ClusterView, now_s: float) -> str | None:
    """Return why a queued job would get nothing from slots now; None if nothing is in its way."""
    if job.life.state is not LifeState.QUEUED:
        return None
    if job.unreadable:
        return f"waits: {job.unreadable}"
    if job.run_is_foreign:
        hint = f"stop it with `edl stop {job.name}`, or delete this job"
        return f"waits: a job of this name, which the cluster has not started, runs; {hint}"
    # When it first started, the others had finished; their records may be removed by now.
    for name in () if job.life.started_s else job.manifest.after:
        first = cluster.by_name.get(name)
        if first is None:
            return f"waits for job {name}, which is not there; submit it, or delete this job"
        failed = first.life.result in (LifeResult.FAILED, LifeResult.DELETED)
        is_passed = failed and job.manifest.after_failed == "start"
        if not is_passed and first.life.result is not LifeResult.FINISHED:
            return f"waits for job {name}, which is {first.life.result or first.life.state}"
    missing = [name for name in job.manifest.secrets if name not in cluster.secrets]
    if missing:
        return f"waits for the secret {missing[0]}: `edl secret set {missing[0]}`"
    wait_s = job.life.not_before_s - now_s
    if wait_s > 0:
        return f"waits {wait_s:.0f} s for its next try: {job.life.reason}"
    return None


@dataclass(frozen=True)
class _HostChoice:
    limits: Mapping[str, int]  # host -> the most slots that it may have there, above 0
    hosts: tuple[str, ...]  # the hosts that have its labels, and on which it has not failed
    labels: str  # a text that only jobs with the same hosts have; empty if they are all
    room: int  # the slots that it could have, on all hosts together


class _HostChoices:
    def __init__(self, cluster: ClusterView, table: DeviceTable, nodes: Mapping[str, int]) -> None:
        self.nodes = nodes
        self._cluster = cluster
        self._table = table
        self._kept: dict[tuple[object, ...], _HostChoice] = {}
        self._silent = [host for host in cluster.hosts if host.offer is None]

    def of(self, job: JobView) -> _HostChoice:
        tenant = tenant_of(job.name, self._cluster.tenants)
        key = tenant, tuple(job.manifest.labels.items())
        found = self._kept.get(key)
        if found is None:
            name = tenant and f"{tenant}{SEPARATOR}"  # no job is called so
            found = self._kept[key] = self._choose(replace(job, name=name, life=JobLifecycle()))
        if job.manifest.labels and any(job.name in host.assigned.jobs for host in self._silent):
            return self._choose(job)  # it may use that host, whose labels are not known now
        # Not that one if other limits hold where it has devices, or has failed to start.
        refuses = self._table.refuses(job.name, job.order)
        names = {*job.life.limits, *self._table.of_job(job.name), *refuses}
        own = {host: self.nodes[host] for host in names if host in self.nodes}
        limits = _limits(job, self._cluster, self._table, own)
        if all(found.limits.get(host) == limits.get(host) for host in own):
            return found
        return self._choose(job)

    def _choose(self, job: JobView) -> _HostChoice:
        """Compute the hosts that `job` can use, and return them as a new object; keep nothing."""
        limits = _limits(job, self._cluster, self._table, self.nodes)
        closed = (host for host in self.nodes if self._cluster.is_closed_to(host, job.name))
        without = {*self._table.refuses(job.name, job.order), *closed}
        labelled = [host for host in self.nodes if has_labels(job, self._cluster, host)]
        hosts = tuple(host for host in labelled if host in limits or host not in without)
        labels = ",".join(f"{key}={value}" for key, value in sorted(job.manifest.labels.items()))
        if others := ",".join(host for host in labelled if host not in hosts):
            labels = f"{labels} without {others}".strip()
        if len(hosts) == len(self.nodes):
            labels = ""
        return _HostChoice(limits, hosts, labels, sum(limits.values()))


def _active(
    job: JobView, cluster: ClusterView, table: DeviceTable, choices: _HostChoices
) -> ActiveJob | str:
    choice = choices.of(job)
    limits, room = choice.limits, choice.room
    sizes = job.manifest.allowed_sizes
    most = sizes.below(room)
    if most is None:
        if why := _closed(job, cluster, choice):
            return why
        total = sum(choices.nodes.values())
        why = f"waits: it needs {counted(job.min_slots, 'slot')}"
        if room == total:
            why += f", and the cluster has {total}; {cluster.more_hosts}"
        else:
            where = "on hosts with its labels on which it may start"
            why += f", and there are {room} {where}, of {total} in the cluster"
        for host, one in table.refuses(job.name, job.order).items():
            why += f"; it could not start on host {host}: {one.reason}"
        return why
    had = _had(job, cluster, table)
    present = {host: min(count, limits[host]) for host, count in had.items() if host in limits}
    if had and not present:  # it was to move, and its new hosts fail: it still trains on the old
        entries = table.entries(job.name, job.life.run)
        had = {host: len(entry.devices) for host, entry in entries.items()}
        present = {host: min(count, limits[host]) for host, count in had.items() if host in limits}
    size = sum(present.values())
    intact = size == sum(had.values()) > 0 and sizes.allows(size)
    life, manifest = job.life, job.manifest
    trained_s = table.now_s - life.since_s if life.state is LifeState.RUNNING else 0.0
    if intact and life.state is LifeState.RUNNING and trained_s < manifest.snooze_s:
        most = min(most, size)
    changed_s = cluster.allocation.changed_s.get(job.name, life.since_s)
    return ActiveJob(
        job=job,
        limits=limits,
        present=present,
        why_fixed=_why_fixed(job, table.now_s - changed_s) if intact else "",
        most=most,
        hosts=choice.hosts,
        labels=choice.labels,
    )


def _why_fixed(job: JobView, unchanged_s: float) -> str:
    """Return why a job keeps the slots that it has, as a sentence; empty if it need not."""
    manifest = job.manifest
    if job.life.state is LifeState.STARTING:
        return "keeps its slots while it starts"
    if job.is_unread:
        return f"keeps its slots: {job.unreadable}"
    if manifest.preemptible is False:
        return "keeps its slots: it may not be preempted"
    if unchanged_s < manifest.cool_down_s:
        return f"keeps its slots for {manifest.cool_down_s:g} s after a change (cool_down_s)"
    return ""


def _within_hosts(
    active: list[ActiveJob], nodes: Mapping[str, int], table: DeviceTable
) -> list[ActiveJob]:
    had: Counter[str] = Counter()
    for one in active:
        had.update(one.present)
    for host, slots in nodes.items():
        if had[host] <= slots:
            continue
        # Each keeps only slots that belong to it already: others were not given back. Where the
        # host offers too few for these, the jobs that were submitted last have fewer.
        for at, one in enumerate(active):
            entry = table.entries(one.job.name, one.job.life.run).get(host)
            own = len(entry.devices) - len(entry.leaving) if entry is not None else 0
            count = min(one.present.get(host, 0), own, slots)
            slots -= count
            if count < one.present.get(host, 0):
                present = {**one.present, host: count}
                present = {name: number for name, number in present.items() if number}
                active[at] = replace(one, present=present, why_fixed="")
    return active


def _limits(
    job: JobView, cluster: ClusterView, table: DeviceTable, nodes: Mapping[str, int]
) -> dict[str, int]:
    life = job.life
    own = table.entries(job.name, life.run) if life.state.has_run else {}
    # those that still have something of a former run
    blocked: set[str] = set()
    if life.state is not LifeState.HALTING:
        blocked = table.blocked(job.name, life.run if life.state.has_run else "")
    failed = table.refuses(job.name, job.order)
    found = {}
    for host, slots in nodes.items():
        limit = life.limits.get(host)
        if limit is not None and limit.until_s > table.now_s:
            slots = min(slots, limit.most)
        is_open = host not in blocked and host not in failed
        is_open = is_open and (host in own or not cluster.is_closed_to(host, job.name))
        if slots and is_open and has_labels(job, cluster, host):
            found[host] = slots
    return found


def has_labels(job: JobView, cluster: ClusterView, host: str) -> bool:
    view = cluster.host_named[host]
    wanted = job.manifest.labels
    # silent: its labels are not known
    if view.offer is None:
        return not wanted or job.name in view.assigned.jobs
    return all(view.offer.labels.get(key) == value for key, value in wanted.items())


def _had(job: JobView, cluster: ClusterView, table: DeviceTable) -> Mapping[str, int]:
    if job.life.state not in HAS_SLOTS:
        return {}
    last = cluster.allocation
    target = last.profiled.get(job.name, last.targets.get(job.name))
    if target is not None and job.life.state is LifeState.RUNNING:
        return target
    entries = table.entries(job.name, job.life.run)
    return {host: len(entry.devices) - len(entry.leaving) for host, entry in entries.items()}


def _closed(job: JobView, cluster: ClusterView, choice: _HostChoice) -> str:
    """Return the sentence that says which hosts run no jobs of its tenant; empty: all do."""
    hosts = [
        host.name
        for host in cluster.hosts
        if host.takes_slots
        and host.name not in choice.limits
        and cluster.is_closed_to(host.name, job.name)
        and has_labels(job, cluster, host.name)
    ]
    if not hosts:
        return ""
    tenant = tenant_of(job.name, cluster.tenants)
    return (
        f"waits: it needs {counted(job.min_slots, 'slot')}, and there are {choice.room} on hosts "
        f"that run jobs of tenant {tenant}; {verb(len(hosts), 'host', 'hosts')} {some(hosts)} "
        f"{verb(len(hosts), 'names', 'name')} no user for it: `edl host --user {tenant}=USER`"
    )


# ------------------------------------------------------------
# Say how fast a job of a cluster trains with some numbers of workers, and how that is known.


@dataclass(frozen=True)
class ThroughputPoint(Record):
    """The throughput of a job with one number of workers; each field says its meaning."""

    np: Annotated[int, "number of workers"]
    hosts: Annotated[int, "number of hosts that they are on"]
    samples_per_s: Annotated[
        float | None, "of all together; null: nothing is known of the job's speed"
    ]
    source: Annotated[
        ThroughputSource,
        "`measured` by the job itself, measured by a `former job` of its name, `supplied` by its "
        "manifest, or `assumed` by the model from these",
    ]


def throughput_curve(job: JobView, slots: int, now_s: float) -> tuple[ThroughputPoint, ...]:
    batch, found = batch_of(job), {}
    for one, source in sourced_samples(job.measured, job.manifest.hints, batching_of(job)):
        measured = one.workers * one.batch / one.step_s
        found[one.workers] = ThroughputPoint(one.workers, one.hosts, measured, source)
    model, sizes = live_model(job, now_s), job.manifest.allowed_sizes
    shown = {job.min_slots, job.manifest.requested_np, sizes.max_np or job.min_slots, slots}
    for np in shown - {0, *found}:
        # Where nothing is known, only the ratio of the assumed ones counts.
        rate = batch / model.step_s((np,), batch) if model.samples else None
        found[np] = ThroughputPoint(np, 1, rate, ThroughputSource.ASSUMED)
    return tuple(found[np] for np in sorted(found))
