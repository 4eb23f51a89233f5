"""Say in words how a job is: the header of its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from edl.cluster.lifecycle import LifeState
from edl.cluster.status import ClusterJobStatus
from edl.dashboard.view.charts import (
    SpeedSample,
    ThroughputHistory,
    scaling_curve,
    step_parts,
    worker_table,
)
from edl.dashboard.view.incidents import IncidentLog, incident_views, with_incidents
from edl.dashboard.view.timeline import GenerationTimeline
from edl.events import CheckpointDetails, Event, GenerationDetails, ResumedDetails
from edl.job.profile import Curve
from edl.job.snapshot import Snapshot
from edl.learning import LearningCurve
from edl.policy.scaling_profile import ScalingProfile
from edl.record import Record
from edl.records import JobState, Stage
from edl.status import JobStatus, estimated_remaining_s, job_status
from edl.text import counted, duration_in_words, verb, workers

# --- Say what the ledger has counted of the present epoch, and what a job has lost of its work.


@dataclass(frozen=True)
class SavedWork(Record):
    """A summary of a job's checkpoints, collected from its events by `with_event`."""

    saved: int = 0  # the number of checkpoints written
    saved_at_s: float = 0.0  # when the newest was written, in seconds since 1970; 0: none was
    capture_s: float = 0.0  # for how long it stopped training, in seconds
    bytes: int = 0  # its size
    resumed: int = 0  # how often the job went on from a checkpoint
    lost_steps: int = 0  # the steps that were trained again after all workers had died, at least

    def with_event(self, event: Event) -> SavedWork:
        details = event.details
        if isinstance(details, CheckpointDetails):
            return replace(
                self,
                saved=self.saved + 1,
                saved_at_s=event.time,
                capture_s=details.capture_s,
                bytes=details.bytes,
            )
        if isinstance(details, ResumedDetails):
            lost = details.lost_steps or 0
            return replace(self, resumed=self.resumed + 1, lost_steps=self.lost_steps + lost)
        return self


@dataclass(frozen=True)
class LedgerSummary(Record):
    """The samples that the workers' ledger counts as trained, and the job's checkpoints."""

    epoch: int  # the number of the epoch, from 0
    done: int  # the samples of this epoch that are trained
    total: int  # the samples of an epoch; 0: of a stream, or the script keeps its own place
    untrained: int  # the samples of epochs that the script left before their end
    left: float | None  # the samples until the end of the job; None: not known
    saved_step: int  # the step of the newest checkpoint; -1: there is none
    work: SavedWork  # what is known of checkpoints


# --- Lay out a job's loss and learning rate over its steps, beside the changes of its ring.


MAX_CHANGES = 60


def learning_charts(curve: LearningCurve, timeline: GenerationTimeline) -> dict[str, Any]:
    first = curve.points[0].step if curve.points else 0
    changes = [
        {"step": one.step, "np": one.size, "generation": one.generation}
        for one in timeline.switches
        if one.generation > 1 and one.step >= first
    ]
    return {
        **curve.columns(),
        "is_mean": curve.trend.is_mean,
        "not_finite": [one.step for one in curve.points if one.not_finite],
        "changes": changes[-MAX_CHANGES:],
    }


# --- Decide how old the newest report of a job's leader is: by one clock, that of the reader.
#
# The leader writes the status of its job, with the time of its own clock. What a reader knows for
# certain is for how long it has not seen a new one, by a clock of its own that nobody sets. Only at
# the first look, before it has seen any report change, does the age come from both machines'
# clocks.


UNREPORTED_S = 15.0  # after which a report is old, or more:
PERIODS = 3  # of the job's status_period_s


@dataclass(frozen=True)
class LeaderReport(Record):
    """The newest report that a reader has seen, and since when."""

    written_s: float = 0.0  # by the leader's clock, in seconds since 1970; 0: none was seen
    since_s: float = 0.0  # when the reader saw it first, by a steady clock; of the first see `at`

    def at(self, written_s: float, now_s: float, steady_s: float) -> LeaderReport:
        if written_s == self.written_s:
            return self
        if not self.written_s:
            return LeaderReport(written_s, steady_s - max(0.0, now_s - written_s))
        return LeaderReport(written_s, steady_s)


@dataclass(frozen=True)
class ReportAge:
    """The age of the newest report of a job's leader."""

    age_s: float | None  # its age in seconds; None: the leader has not reported yet
    limit_s: float = UNREPORTED_S  # an older report is no sign of life

    @property
    def is_fresh(self) -> bool:
        return self.age_s is not None and self.age_s <= self.limit_s

    @property
    def is_old(self) -> bool:
        return self.age_s is not None and self.age_s > self.limit_s


def report_age(snapshot: Snapshot, newest: LeaderReport, steady_s: float) -> ReportAge:
    period_s = snapshot.job.spec.settings.status_period_s
    age_s = steady_s - newest.since_s if newest.written_s else None
    return ReportAge(age_s, max(UNREPORTED_S, PERIODS * period_s))


# --- Choose the jobs of a cluster that its page lists: by state, queue and words, page by page.


PAGE = 50
MAX_JOBS = 500  # of one answer
_ORDER = {LifeState.QUEUED: 1, LifeState.HALTED: 2, LifeState.ENDED: 3}


@dataclass(frozen=True)
class JobChoice:
    """A filter of jobs."""

    states: frozenset[str] = frozenset()  # the states to show, by `outcome`; empty: all
    queue: str = ""  # the queue to show; empty: all
    text: str = ""  # words that must all occur in a job's name, queue or reason, in any case
    limit: int = PAGE  # the largest number of jobs

    def matches(self, job: ClusterJobStatus) -> bool:
        if self.states and not self.states & {str(job.state), job.outcome}:
            return False
        if self.queue and job.queue != self.queue:
            return False
        said = f"{job.name} {job.queue} {job.reason}".lower()
        return all(word in said for word in self.text.lower().split())


@dataclass(frozen=True)
class JobPage(Record):
    """The jobs that a filter chooses, as far as they are shown."""

    jobs: Annotated[tuple[ClusterJobStatus, ...], "the first of them"]
    total: Annotated[int, "how many there are"]


def chosen_jobs(jobs: Sequence[ClusterJobStatus], choice: JobChoice) -> JobPage:
    found = sorted(filter(choice.matches, jobs), key=_place)
    return JobPage(tuple(found[: choice.limit]), len(found))


def job_counts(jobs: Sequence[ClusterJobStatus]) -> dict[str, int]:
    found = Counter(job.outcome for job in jobs)
    return dict(sorted(found.items()))


def _place(job: ClusterJobStatus) -> tuple[int, float]:
    by_priority = -float(job.priority) if job.state is LifeState.QUEUED else 0.0
    by_end = -job.ended_s if job.state is LifeState.ENDED else 0.0
    return _ORDER.get(job.state, 0), by_priority + by_end


QUIET_S = 2.0  # without a step, and five usual steps: then the job stands still


# The fields of the job's status that the header of its page has, too.
_OF_STATUS = (
    *("job", "state", "reason", "policy", "command", "leader", "term", "generation", "min_np"),
    *("max_np", "sizes", "step", "epoch", "median_step_s", "global_batch", "zookeeper"),
)


@dataclass(frozen=True)
class JobHeader(Record):
    """What the header says beside `_OF_STATUS`; times in seconds, points in time since 1970."""

    words: str  # how it is, in a few words
    tone: str  # `good`, `warning` (it stands still, or changes), `bad` or `over`
    led_s: float  # since when it leads; 0: not known
    np: int  # the workers in the newest generation
    joining: int  # the workers that prepare to join
    wanted: int  # the workers that are wanted
    samples_per_s: float | None  # of all workers together; None: the leader does not report
    goodput: float | None  # the fraction of the time that was not lost; None: no ring yet
    lost_s: float  # the seconds lost to switches, pauses and the present stand-still
    eta_s: float | None  # until the end of the training at the present speed; None: not known
    since_s: float  # see `GenerationTimeline.began_s`
    is_cut: bool  # whether the oldest events of the log are gone
    ended_s: float | None
    standing_s: float  # for how long no step has completed that should have; 0: the job trains


def job_header(
    status: JobStatus, timeline: GenerationTimeline, report: ReportAge, now_s: float
) -> JobHeader:
    standing_s = standstill_s(status, report)
    words, tone = state_in_words(status, standing_s, report)
    paused_s = max(0.0, now_s - timeline.paused_since_s) if timeline.paused_since_s else 0.0
    goodput = timeline.goodput(now_s, standing_s)
    samples_per_s = round(status.samples_per_s, 2) if report.is_fresh else None
    if status.state.over or standing_s:
        samples_per_s = 0.0
    return JobHeader(
        words=words,
        tone=tone,
        led_s=timeline.led_s if timeline.leader == status.leader else 0.0,
        np=status.world_size,
        joining=_joining(status),
        wanted=sum((status.desired or status.assigned).values()),
        samples_per_s=samples_per_s,
        goodput=None if goodput is None else round(goodput, 4),
        lost_s=round(timeline.lost_s + max(paused_s, standing_s), 3),
        eta_s=eta_s(status, standing_s) if report.is_fresh else None,
        since_s=timeline.began_s,
        is_cut=timeline.is_cut,
        ended_s=timeline.ended_s if status.state.over else None,
        standing_s=round(standing_s, 1),
    )


def standstill_s(status: JobStatus, report: ReportAge) -> float:
    """Return for how long a running job has completed no step that it should have, in seconds."""
    # While the leader does not report, workers train on without ZooKeeper.
    if status.state.over or not status.step or not report.is_fresh:
        return 0.0
    quiet_s = status.quiet_s
    return quiet_s if quiet_s >= max(QUIET_S, 5 * status.median_step_s) else 0.0


def state_in_words(status: JobStatus, standing_s: float, report: ReportAge) -> tuple[str, str]:
    state = status.state
    if state.over:
        return str(state), "bad" if state is JobState.FAILED else "over"
    if state is JobState.PAUSED:
        left, least = status.world_size, status.min_np
        return f"paused: {workers(left)} {verb(left)} left, it takes {least}", "bad"
    if state is JobState.STOPPING:
        return "stopping", "warning"
    joining = _joining(status)
    if not status.generation:
        return (
            f"starting: {workers(len(status.members))} {_prepare(len(status.members))}",
            "warning",
        )
    if status.members and all(
        one.stage in (Stage.PREPARING, Stage.READY) for one in status.members
    ):
        return f"no worker trains; {workers(joining)} {_prepare(joining)}", "bad"
    if standing_s:
        return f"no step for {standing_s:.0f} s", "warning" if standing_s < 10 else "bad"
    if report.is_old:
        age = counted(round(report.age_s or 0.0), "second")
        return f"the leader has not reported for {age}", "warning"
    if joining:
        return f"training; {workers(joining)} {verb(joining, 'joins', 'join')}", "good"
    leaving = sum(one.stage == Stage.LEAVING for one in status.members)
    if leaving:
        return f"training; {workers(leaving)} {verb(leaving, 'leaves', 'leave')}", "good"
    return "training", "good"


def eta_s(status: JobStatus, standing_s: float) -> float | None:
    """Return the seconds until a job ends at its present speed; None: nobody knows."""
    if status.state.over or standing_s:
        return None
    left_s = estimated_remaining_s(status)
    return None if left_s is None else round(left_s, 1)


def away_in_words(hosts: str, since_s: float, now_s: float) -> str:
    return (
        f"ZooKeeper at {hosts} has not answered for {duration_in_words(now_s - since_s)}. The page "
        "asks it again each second, and shows what was known before."
    )


def unreadable_in_words(reason: str, since_s: float, now_s: float) -> str:
    age = duration_in_words(now_s - since_s)
    return (
        f"The job cannot be read: {reason}. The page shows what was known {age} ago; the workers "
        "train on. If a newer edl runs the job, open the page with that one."
    )


def _joining(status: JobStatus) -> int:
    return sum(one.stage in (Stage.PREPARING, Stage.READY) for one in status.members)


def _prepare(count: int) -> str:
    return verb(count, "prepares", "prepare")


# --- Turn the records and events of a job into the sections of its page.


@dataclass(frozen=True)
class JobObservation:
    """The records of a job as they were read at one time, the input of its page."""

    snapshot: Snapshot  # its records
    learned: ScalingProfile  # what it has measured of its sizes
    profile: Curve | None  # what `edl profile` has measured; None: nothing
    zookeeper: str  # where it was read
    at_s: float  # when, in seconds since 1970
    report: ReportAge  # how old the report of its leader was


@dataclass(frozen=True)
class JobTrace:
    """The history of a job, collected from its events and from readings of its status."""

    timeline: GenerationTimeline = field(default_factory=GenerationTimeline)
    speed: ThroughputHistory = field(default_factory=ThroughputHistory)
    work: SavedWork = field(default_factory=SavedWork)
    incidents: IncidentLog = field(default_factory=IncidentLog)

    def with_events(self, events: Iterable[Event], read_s: float) -> JobTrace:
        timeline, speed, work = self.timeline, self.speed, self.work
        incidents = self.incidents
        for event in events:
            np = timeline.bands[-1].np if timeline.bands else 0
            timeline, work = timeline.with_event(event), work.with_event(event)
            incidents = incidents.with_event(event)
            details = event.details
            if isinstance(details, GenerationDetails) and details.samples_per_s > 0 and np:
                at_s = min(event.time, read_s)  # the leader's clock may be ahead
                speed = speed.with_sample(SpeedSample(at_s, details.samples_per_s, np))
        return replace(self, timeline=timeline, speed=speed, work=work, incidents=incidents)

    def with_hosts(self, snapshot: Snapshot) -> JobTrace:
        hosts = {member.name: member.host for member in snapshot.members}
        return replace(self, incidents=self.incidents.with_hosts(hosts))

    def with_outage(self, why: str, since_s: float, now_s: float) -> JobTrace:
        known = self.incidents
        # A server that is started again looks overloaded: the first cause counts.
        first = known.outage_why if known.outage_s >= since_s else why
        return replace(self, incidents=replace(known, outage_why=first, outage_s=now_s))

    def cut(self, at_s: float) -> JobTrace:
        """Return the trace of a job whose log has lost the events before `at_s`."""
        return replace(self, timeline=GenerationTimeline.cut(at_s), work=SavedWork())

    def with_reading(self, reading: JobObservation) -> JobTrace:
        status = job_status(reading.snapshot, reading.zookeeper)
        if status.state.over or not status.world_size or not reading.report.is_fresh:
            return self
        rate = 0.0 if standstill_s(status, reading.report) else status.samples_per_s
        sample = SpeedSample(
            reading.at_s, rate, status.world_size, step_parts(reading.learned.times)
        )
        return replace(self, speed=self.speed.with_sample(sample))


def page_sections(reading: JobObservation, trace: JobTrace) -> dict[str, Any]:
    status = job_status(reading.snapshot, reading.zookeeper)
    timeline, now = trace.timeline, reading.snapshot.status
    standing_s = standstill_s(status, reading.report)
    incidents = incident_views(trace.incidents, status, standing_s)
    header = job_header(status, timeline, reading.report, reading.at_s)
    words, tone = with_incidents(header.words, header.tone, incidents, header.joining)
    return {
        "header": {
            **{name: getattr(status, name) for name in _OF_STATUS},
            **vars(header),
            "words": words,
            "tone": tone,
        },
        "incidents": incidents,
        "timeline": timeline_section(timeline),
        "workers": worker_table(status, reading.learned.times),
        "speed": trace.speed.columns() | {"period_s": trace.speed.period_s},
        "learning": learning_charts(reading.learned.learning, timeline),
        "ledger": LedgerSummary(
            epoch=now.epoch,
            done=now.epoch_done,
            total=now.epoch_total,
            untrained=now.untrained,
            left=now.left,
            saved_step=reading.snapshot.job.saved_step,
            work=trace.work,
        ),
        "scaling": scaling_curve(
            reading.snapshot, reading.learned, reading.profile, header.samples_per_s
        ),
    }


def timeline_section(timeline: GenerationTimeline) -> dict[str, Any]:
    return {
        "bands": timeline.bands,
        "marks": timeline.marks,
        "began_s": timeline.began_s,
        "ended_s": timeline.ended_s,
        "is_cut": timeline.is_cut,
    }
