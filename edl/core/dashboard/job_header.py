"""Say in words how a job is: the header of its page."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.dashboard.leader_report import ReportAge
from edl.core.dashboard.timeline import GenerationTimeline
from edl.core.duration import duration_in_words
from edl.core.plural import counted, verb, workers
from edl.core.record import Record
from edl.core.records import JobState, Stage
from edl.core.remaining import estimated_remaining_s
from edl.core.status import JobStatus

QUIET_S = 2.0  # without a step, and five usual steps: then the job stands still


@dataclass(frozen=True)
class JobHeader(Record):
    """The header of a job's page. Times are in seconds, points in time in seconds since 1970."""

    job: str  # the name of the job
    state: str
    words: str  # how it is, in a few words
    tone: str  # `good`, `warning` (it stands still, or changes), `bad` or `over`
    reason: str  # why, in a sentence; may be empty
    policy: str  # what the job's policy says of its size; empty: it has none
    command: tuple[str, ...]  # the command of the workers
    leader: str | None  # the worker that leads; None: none does
    term: int  # the term of the newest leader
    led_s: float  # since when it leads; 0: not known
    generation: int  # the number of the newest generation
    np: int  # the workers in that generation
    joining: int  # the workers that prepare to join
    wanted: int  # the workers that are wanted
    min_np: int  # fewer do not train
    max_np: int | None  # more are not started; None: only horovodrun knows
    sizes: str  # the numbers of workers that it may have, in words
    step: int  # complete steps
    epoch: int  # the number of the epoch, from 0
    samples_per_s: float | None  # of all workers together; None: the leader does not report
    median_step_s: float  # the usual time of a step
    global_batch: int  # samples of a batch of all workers; 0: not known
    goodput: float | None  # the fraction of the time that was not lost; None: no ring yet
    lost_s: float  # the seconds lost to switches, pauses and the present stand-still
    # the seconds until the end of the training at the present speed; None: not known
    eta_s: float | None
    # when the first generation began; 0: it has not. Of a log that was cut, from when on goodput
    # and lost time are known.
    since_s: float
    is_cut: bool  # whether the oldest events of the log are gone
    ended_s: float | None
    standing_s: float  # for how long no step has completed that should have; 0: the job trains
    zookeeper: str  # where this was read


def job_header(
    status: JobStatus, timeline: GenerationTimeline, report: ReportAge, now_s: float
) -> JobHeader:
    """Return the header of a job's page."""
    standing_s = standstill_s(status, report)
    words, tone = state_in_words(status, standing_s, report)
    paused_s = max(0.0, now_s - timeline.paused_since_s) if timeline.paused_since_s else 0.0
    goodput = timeline.goodput(now_s, standing_s)
    return JobHeader(
        job=status.job,
        state=str(status.state),
        words=words,
        tone=tone,
        reason=status.reason,
        policy=status.policy,
        command=status.command,
        leader=status.leader,
        term=status.term,
        led_s=timeline.led_s if timeline.leader == status.leader else 0.0,
        generation=status.generation,
        np=status.world_size,
        joining=_joining(status),
        wanted=sum((status.desired or status.assigned).values()),
        min_np=status.min_np,
        max_np=status.max_np,
        sizes=status.sizes,
        step=status.step,
        epoch=status.epoch,
        samples_per_s=_present_rate(status, standing_s, report),
        median_step_s=status.median_step_s,
        global_batch=status.global_batch,
        goodput=None if goodput is None else round(goodput, 4),
        lost_s=round(timeline.lost_s + max(paused_s, standing_s), 3),
        eta_s=eta_s(status, standing_s) if report.is_fresh else None,
        since_s=timeline.began_s,
        is_cut=timeline.is_cut,
        ended_s=timeline.ended_s if status.state.over else None,
        standing_s=round(standing_s, 1),
        zookeeper=status.zookeeper,
    )


def standstill_s(status: JobStatus, report: ReportAge) -> float:
    """Return for how long a running job has completed no step that it should have, in seconds."""
    # While the leader does not report, workers train on without ZooKeeper.
    if status.state.over or not status.step or not report.is_fresh:
        return 0.0
    quiet_s = status.quiet_s
    return quiet_s if quiet_s >= max(QUIET_S, 5 * status.median_step_s) else 0.0


def state_in_words(status: JobStatus, standing_s: float, report: ReportAge) -> tuple[str, str]:
    """Return how a job is, in a few words, and the tone in which to say it."""
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
    """Return sentences that ZooKeeper does not answer, and what that means for the page."""
    return (
        f"ZooKeeper at {hosts} has not answered for {duration_in_words(now_s - since_s)}. The page "
        "asks it again each second, and shows what was known before."
    )


def unreadable_in_words(reason: str, since_s: float, now_s: float) -> str:
    """Return a sentence that the records of a job cannot be read although ZooKeeper answers."""
    age = duration_in_words(now_s - since_s)
    return (
        f"The job cannot be read: {reason}. The page shows what was known {age} ago; the workers "
        "train on. If a newer edl runs the job, open the page with that one."
    )


def _joining(status: JobStatus) -> int:
    return sum(one.stage in (Stage.PREPARING, Stage.READY) for one in status.members)


def _prepare(count: int) -> str:
    return verb(count, "prepares", "prepare")


def _present_rate(status: JobStatus, standing_s: float, report: ReportAge) -> float | None:
    """Return the present throughput in samples a second; None if it is not known."""
    if status.state.over or standing_s:
        return 0.0
    return round(status.samples_per_s, 2) if report.is_fresh else None
