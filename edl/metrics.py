"""Declare the metrics of a whole job that each of its agents gives, and return their values.

They are the fields of a :class:`edl.status.JobStatus`, as `edl status` shows them, and counts
of the job's events (:class:`EventCounts`), as `edl events` shows them. All agents of a job give the
same values, so take their maximum over the agents, not their sum. Only an agent that joins after
the oldest events were removed from the log has lower counts.

While an agent is not connected to ZooKeeper, it leaves out what it cannot know then: what the
leader has reported, and which workers and agents there are. What only a write to ZooKeeper changes,
such as the state of the job and its generation, keeps the value that it had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from edl.event_text import CHANGE_KINDS, kind_of_change, longest_stall
from edl.events import Event, EventKind, GenerationDetails, SwitchDetails
from edl.job.snapshot import Snapshot
from edl.metric import (
    BUILD_INFO,
    ZOOKEEPER_CONNECTED,
    Histogram,
    Sample,
    counter,
    gauge,
    histogram,
    info,
    one_of,
)
from edl.records import JobState, Stage, StepTotals, WorkerProgress
from edl.status import JobStatus

STALL_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
UNKNOWN = "unknown"  # the kind of a change whose generation event is not known (any more)
PARTS = ("detect", "wait", "shutdown", "init", "broadcast", "first_step")
STALLING = (*CHANGE_KINDS[1:], UNKNOWN)  # a start has no old workers, which it could hold up
KEPT = 100  # generations whose kind is kept until the event of their switch comes
JOB_INFO = info("edl_job_info", "The name of the job; always 1", "edl_job")
JOB_STATE = gauge("edl_job_state", "1 for the state that the job is in, 0 for the others", "state")
WORKERS = gauge("edl_workers", "Workers that are in ZooKeeper, by stage", "stage")
RING_WORKERS = gauge("edl_ring_workers", "Workers in the newest ring; 0 when the job is over")
DESIRED = gauge("edl_desired_workers", "Workers that are wanted, on all hosts together")
MIN_WORKERS = gauge("edl_min_workers", "With fewer workers the job pauses")
MAX_WORKERS = gauge("edl_max_workers", "More workers are not started")
SLOTS = gauge("edl_slots", "Slots of all hosts that have an agent")
DISABLED_SLOTS = gauge("edl_disabled_slots", "Slots in which no worker is started any more")
BORROWED = gauge("edl_borrowed_workers", "Workers that are wanted in borrowed slots")
GENERATION = gauge("edl_generation", "Number of the newest ring; it rises with each change of it")
TERM = gauge("edl_term", "Number of the newest leader's term; it rises with each new leader")
HAS_LEADER = gauge("edl_has_leader", "1 while the worker that leads is in ZooKeeper, else 0")
STEP = gauge(
    "edl_job_step",
    "Steps that the job has completed, as its leader says; lower after a return to a checkpoint",
)
EPOCH = gauge("edl_epoch", "Number of the epoch, from 0")
EPOCH_PROGRESS = gauge(
    "edl_epoch_progress_ratio", "Part of the epoch's samples that is trained, from 0 to 1"
)
REMAINING = gauge("edl_remaining_samples", "Samples to train until the end of the job, if known")
UNTRAINED = gauge(
    "edl_untrained_samples",
    "Samples that were not trained because the script left an epoch before its end",
)
SPEED = gauge("edl_samples_per_second", "Samples that all workers train in a second, over 3 s")
LAST_STEP = gauge(
    "edl_last_step_timestamp_seconds",
    "When the job completed its newest step, in seconds since 1970, by the leader's clock",
)
BATCH = gauge("edl_batch_size", "Samples of a batch of all workers together, if edl knows it")
NOISE = gauge("edl_gradient_noise_scale", "Gradient noise scale in samples, if it is measured")
STRAGGLER = gauge(
    "edl_straggler_ratio",
    "How much longer than the others' median the slowest worker computes; only while one does",
    "worker",
)
EVENTS = counter("edl_events_total", "Events of the job, as `edl events` shows them", "kind")
CHANGES = counter(
    "edl_membership_changes_total",
    "New rings by what led to them: `start` (the job's first), `join`, `leave`, `migrate` (both), "
    "`crash` (a ring broke), `rebuild` (none of these)",
    "kind",
)
STALL = histogram(
    "edl_stall_seconds",
    "How long a change of the ring held its old workers up, the longest of them; `unknown`: the "
    "event that says what led to the change was removed from the log before the agent read it",
    "kind",
)
STALL_PARTS = counter(
    "edl_stall_part_seconds_total",
    "Time of these stalls by part: `wait`, `shutdown`, `init` and `broadcast` are the stall; "
    "`detect` is before it, `first_step` after it",
    "kind",
    "part",
)
JOB_METRICS = (
    *(BUILD_INFO, JOB_INFO, JOB_STATE, WORKERS, RING_WORKERS, DESIRED, MIN_WORKERS, MAX_WORKERS),
    *(SLOTS, DISABLED_SLOTS, BORROWED, GENERATION, TERM, HAS_LEADER, STEP, EPOCH, EPOCH_PROGRESS),
    *(REMAINING, UNTRAINED, SPEED, LAST_STEP, BATCH, NOISE, STRAGGLER, EVENTS, CHANGES, STALL),
    *(STALL_PARTS, ZOOKEEPER_CONNECTED),
)


class EventCounts:
    """Counts of a job's events, as metrics: by kind, and how long changes of the ring took."""

    def __init__(self) -> None:
        # All begin at 0, because increase() of Prometheus misses a first value that is higher.
        self._events: Counter[str] = Counter(dict.fromkeys(EventKind, 0))
        self._changes: Counter[str] = Counter()
        self._stalls = {kind: Histogram(STALL_BOUNDS_S) for kind in STALLING}
        self._parts: Counter[tuple[str, str]] = Counter(
            {(kind, part): 0 for kind in STALLING for part in PARTS}
        )
        self._kinds: dict[int, str] = {}

    def add(self, event: Event) -> None:
        self._events[event.kind] += 1
        if isinstance(event.details, GenerationDetails):
            kind = kind_of_change(event.generation, event.details)
            self._changes[kind] += 1
            self._kinds[event.generation] = kind
            if len(self._kinds) > KEPT:
                self._kinds.pop(next(iter(self._kinds)))
        elif isinstance(event.details, SwitchDetails):
            self._add_stall(event.details, self._kinds.get(event.generation, UNKNOWN))

    def _add_stall(self, switch: SwitchDetails, kind: str) -> None:
        longest = longest_stall(switch)
        if longest is None:
            return
        self._stalls.setdefault(kind, Histogram(STALL_BOUNDS_S)).observe(longest.stall_s)
        for part in PARTS:
            self._parts[kind, part] += getattr(longest, f"{part}_s")

    def samples(self) -> list[Sample]:
        return [
            *(EVENTS(count, kind) for kind, count in self._events.copy().items()),
            *(CHANGES(self._changes[kind], kind) for kind in CHANGE_KINDS),
            *(STALL(values, kind) for kind, values in self._stalls.copy().items()),
            *(STALL_PARTS(spent, *labels) for labels, spent in self._parts.copy().items()),
        ]


def job_samples(status: JobStatus, counts: EventCounts, connected: bool) -> list[Sample]:
    """Return the values of the metrics of a job, without those that nobody knows."""
    found = [
        JOB_INFO(1, status.job),
        # These change only when a record of the job is written to ZooKeeper.
        *one_of(JOB_STATE, [*JobState], status.state),
        RING_WORKERS(status.world_size),
        DESIRED(sum((status.desired or status.assigned).values())),
        MIN_WORKERS(status.min_np),
        DISABLED_SLOTS(len(status.disabled_slots)),
        BORROWED(sum(status.borrowed.values())),
        GENERATION(status.generation),
        TERM(status.term),
    ]
    if status.max_np is not None:
        found.append(MAX_WORKERS(status.max_np))
    if connected:
        found += _reported(status)
    return [*found, ZOOKEEPER_CONNECTED(int(connected)), *counts.samples()]


def _reported(status: JobStatus) -> list[Sample]:
    stages = Counter(member.stage for member in status.members)
    found = [
        *(WORKERS(stages[stage], stage) for stage in Stage),
        SLOTS(sum(status.hosts.values())),
        HAS_LEADER(int(status.leader is not None)),
        STEP(status.step),
        EPOCH(status.epoch),
        UNTRAINED(status.untrained),
        SPEED(status.samples_per_s),
    ]
    if status.epoch_total:
        found.append(EPOCH_PROGRESS(status.epoch_done / status.epoch_total))
    if status.left is not None:
        found.append(REMAINING(status.left))
    if status.updated_at_s and status.step:
        found.append(LAST_STEP(status.updated_at_s - status.quiet_s))
    if status.global_batch:
        found.append(BATCH(status.global_batch))
    if status.noise_scale is not None:
        found.append(NOISE(status.noise_scale))
    if status.slowest is not None and status.others_s:
        found.append(STRAGGLER(status.slowest_s / status.others_s, status.slowest))
    return found


def scrape_targets(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    job = snapshot.job.name
    agents = [
        _target(host.address, host.metrics_port, edl_job=job, host=host.name)
        for host in snapshot.hosts
        if host.metrics_port
    ]
    workers = [
        _target(one.address, one.port, edl_job=job, host=one.host, worker=one.name)
        for one in snapshot.members
    ]
    return agents + workers


def _target(address: str, port: int, **labels: str) -> Mapping[str, Any]:
    return {"targets": [f"{address}:{port}"], "labels": labels}


# ------------------------------------------------------------
# Declare the metrics that each worker gives at its HTTP port, and return their values.
#
# All are about this one worker, except `edl_step`, `edl_steps_total` and `edl_samples_total`, which
# are about what all workers train together. `edl_step` is the job's, the two counters begin at 0
# with each worker. All workers of a ring count at the same rate: take the maximum of the rates over
# the workers of a job, not their sum.

WORKER_INFO = info(
    "edl_worker_info",
    "The job, the host and the name of this worker; always 1",
    "edl_job",
    "host",
    "worker",
)
LEADER = gauge("edl_leader", "1 on the worker that leads the job, as it knows, else 0")
WORKER_GENERATION = gauge(
    "edl_worker_generation",
    "Number of the ring in which this worker trains; 0 before its first one",
)
WORKER_STEP = gauge(
    "edl_step",
    "Steps that the job has completed, as this worker knows; 0 before its first ring",
)
STEPS = counter(
    "edl_steps_total",
    "Steps that this worker has completed together with the others since it joined",
)
SAMPLES = counter(
    "edl_samples_total",
    "Samples that all workers together have trained since this worker joined",
)
STEP_DURATION = histogram(
    "edl_step_duration_seconds",
    "Time of a step on this worker, without the first step in each ring",
)
STEP_PARTS = counter(
    "edl_step_part_seconds_total",
    "Time of all steps on this worker by part: `data` (waiting for its batch), `compute` (its own "
    "work), `reduce` (waiting for the others, and the exchange of gradients)",
    "part",
)
STEP_AGE = gauge(
    "edl_worker_last_step_age_seconds",
    "Time since this worker completed its last step, or since its start",
)
WORKER_METRICS = (
    BUILD_INFO,
    WORKER_INFO,
    LEADER,
    WORKER_GENERATION,
    WORKER_STEP,
    STEPS,
    SAMPLES,
    STEP_DURATION,
    STEP_PARTS,
    STEP_AGE,
    ZOOKEEPER_CONNECTED,
)


def worker_samples(
    version: str,  # of edl
    labels: tuple[str, str, str],  # job, host and "w3", which is empty before it is registered
    progress: WorkerProgress,
    totals: StepTotals,
    now_s: float,  # by the clock of `progress.updated_at`
    *,
    leads: bool,
    connected: bool,  # to ZooKeeper
) -> list[Sample]:
    return [
        BUILD_INFO(1, version),
        WORKER_INFO(1, *labels),
        LEADER(int(leads)),
        WORKER_GENERATION(progress.generation),
        WORKER_STEP(progress.step),
        STEPS(totals.steps),
        SAMPLES(progress.samples_total),
        STEP_DURATION(totals.durations),
        STEP_PARTS(totals.data_us / 1e6, "data"),
        STEP_PARTS(totals.compute_us / 1e6, "compute"),
        STEP_PARTS(totals.reduce_us / 1e6, "reduce"),
        STEP_AGE(max(0.0, now_s - progress.updated_at)),
        ZOOKEEPER_CONNECTED(int(connected)),
    ]
