"""Decide which event of its life is due for a job of a cluster, and why.

:data:`edl.core.cluster.job_life.TRANSITIONS` says what an event leads to. The events here follow
from what users want and what a job's run has become. That a job gets slots, or loses all of them to
others, follows from the plan (:mod:`edl.core.cluster.plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from edl.core.cluster.job_life import JobLife, LifeEvent, LifeState
from edl.core.cluster.records import ClusterRecord, Goal
from edl.core.cluster.view import JobView, RunView
from edl.core.excerpt import excerpt
from edl.core.plural import counted
from edl.core.records import JobState
from edl.errors import NO_PROGRAM_EXIT, REFUSED_EXIT

# Exit codes with which a command ends that cannot start: Python's of a script that is not there and
# argparse's, a shell's of a program that is not there, and that of a worker that edl refuses.
HOPELESS = (2, NO_PROGRAM_EXIT, REFUSED_EXIT)
UNSAVED = "; it saves no checkpoint"  # before what is lost


class PendingEvent(NamedTuple):
    """An event that must happen now in the life of a job, with its reason."""

    event: LifeEvent  # the event, which leads from one state of the job to the next
    reason: str  # why it happens, in a sentence
    # whether a start or a run has come to nothing, so that the next start waits for some time
    failed: bool = False
    # whether that is a failure of the job itself, which uses up one of its retries
    counts: bool = False


@dataclass(frozen=True)
class RunHosts:
    """The slots and processes that a job's present run has, by the records of the hosts."""

    slots: int = 0  # the number of slots that the run has on hosts that are not lost
    lost: tuple[str, ...] = ()  # the names of the lost hosts on which it has slots
    has_processes: bool = False  # whether a process of it may live on a host that is not lost
    # whether no agent of it has a record, and each host that is not lost reports that no process of
    # it lives: nobody is left who could stop it
    is_dead: bool = False
    # host -> why no agent of it can live there
    refusals: Mapping[str, str] = field(default_factory=dict)
    lost_before: str = ""  # which job that must finish before it never will, and why; empty: none
    has_others: bool = False  # whether its start has failed, and other hosts have room for it
    was_tried: bool = False  # whether its job could not start on other hosts before


def due_event(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    """Return the event that must happen now in the life of `job`; None: it stays as it is."""
    return _DUE[job.life.state](job, facts, settings, now_s)


def life_after(due: PendingEvent, job: JobView, now_s: float) -> JobLife:
    changes = job.life.failed(now_s, due.counts) if due.failed else {}
    if due.event is LifeEvent.RESUME:
        changes = {"tries": 0, "failures": 0, "not_before_s": 0.0}
    run = job.present_run
    if run is not None and run.state.over:
        changes["exit_code"] = run.exit_code
    # The reason may repeat what the job's processes have written, and the record must fit into a
    # node of ZooKeeper.
    return job.life.after(due.event, excerpt(due.reason), now_s, **changes)


# --- one function for each state


def _queued(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    """Return the event that is due for a job that waits for slots; None: it waits on."""
    if job.wanted.goal is Goal.GONE:
        return PendingEvent(LifeEvent.DELETE, "it was deleted while it waited")
    if job.wanted.goal is Goal.HALT:
        return PendingEvent(LifeEvent.HALT, "it was halted while it waited")
    if facts.lost_before:
        return PendingEvent(LifeEvent.GIVE_UP, facts.lost_before)
    return None


def _starting(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    """Return the event that is due for a job that starts; None: it goes on starting."""
    run = job.present_run
    if run is not None and run.state is JobState.FAILED and not run.trains:
        return _not_started(job, run.reason, facts, run.exit_code in HOPELESS)
    if run is not None and run.state.over:
        return _ended(job, run)
    if job.wanted.goal is not Goal.RUN:
        return _stop(job)
    if facts.refusals:
        host, why = min(facts.refusals.items())
        return _not_started(job, f"host {host}: {why}", facts, False)
    if run is not None and run.trains:
        return PendingEvent(LifeEvent.TRAIN, "its first ring trains")
    if facts.slots < job.min_slots:
        why = f"{_hosts_lost(facts)} while it started, and {counted(facts.slots, 'slot')}"
        return PendingEvent(LifeEvent.TAKE_BACK, f"{why} of at least {job.min_slots} are left")
    waited_s, limit_s = now_s - job.life.since_s, job.start_limit_s(settings)
    # While its run is not read, nobody knows whether a ring trains.
    if waited_s >= limit_s and not job.is_unread:
        busy = 0 if run is None else sum(len(agent.busy) for agent in run.agents.values())
        why = f"no ring trained within {limit_s:g} s of its start: workers lived"
        return PendingEvent(
            LifeEvent.TAKE_BACK, f"{why} in {busy} of its {facts.slots} slots", True
        )
    return None


def _running(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    """Return the event that is due for a job that trains; None: it goes on."""
    run = job.present_run
    if run is None:
        return _failed(job, "its records were removed from ZooKeeper while it trained")
    if run.state.over:
        return _ended(job, run)
    return _stop(job) if job.wanted.goal is not Goal.RUN else None


def _halting(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    """Return the event that is due for a job whose run is to stop; None: it has not stopped yet."""
    run = job.present_run
    # It has not stopped while a process of it may live.
    if (run is not None and not run.state.over) or facts.has_processes:
        return None
    if run is not None and run.state is JobState.FINISHED:
        return PendingEvent(LifeEvent.FINISH, run.reason or "it has trained to the end")
    if job.wanted.goal is Goal.GONE:
        return PendingEvent(LifeEvent.DELETE, "it was deleted")
    failure = run.reason if run is not None and run.state is JobState.FAILED else None
    also = f"; its run failed while it stopped: {failure}" if failure is not None else ""
    if run is not None and run.state is JobState.STOPPED and run.reason != job.life.reason:
        also = f"; {run.reason}" if run.reason else ""
    if job.wanted.goal is Goal.HALT:
        return PendingEvent(LifeEvent.HALT, f"it was halted{also}")
    if failure is not None:
        return _failed(job, failure)
    why = job.life.reason
    if run is not None and not run.saves and job.measured.done_steps:
        why = why.partition(UNSAVED)[0]  # it says what was to be lost
        also += f"{UNSAVED}: {counted(job.measured.done_steps, 'step')} were lost"
    return PendingEvent(LifeEvent.REQUEUE, f"waits for slots again: {why}{also}")


def _halted(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    if job.wanted.goal is Goal.GONE:
        return PendingEvent(LifeEvent.DELETE, "it was deleted while it was halted")
    if job.wanted.goal is Goal.RUN:
        return PendingEvent(LifeEvent.RESUME, "it was resumed")
    return None


def _nothing(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    return None


_DUE: Mapping[
    LifeState, Callable[[JobView, RunHosts, ClusterRecord, float], PendingEvent | None]
] = {
    LifeState.QUEUED: _queued,
    LifeState.STARTING: _starting,
    LifeState.RUNNING: _running,
    LifeState.HALTING: _halting,
    LifeState.HALTED: _halted,
    LifeState.ENDED: _nothing,
}


# --- what several states have in common


def _ended(job: JobView, run: RunView) -> PendingEvent:
    """Return the event for `job`, whose run `run` is over: FINISH, RETRY or GIVE_UP."""
    if run.state is JobState.FINISHED:
        return PendingEvent(LifeEvent.FINISH, run.reason or "it has trained to the end")
    if run.state is JobState.FAILED:
        return _failed(job, run.reason or f"its run has failed with exit code {run.exit_code}")
    why = f"its run was stopped, and not by the cluster: {run.reason or 'no reason is known'}"
    return PendingEvent(LifeEvent.RETRY, f"{why}; `edl halt` halts a job", failed=True)


def _failed(job: JobView, reason: str) -> PendingEvent:
    """Return the event for `job`, whose run has failed: RETRY, or GIVE_UP without retries left."""
    failures, retries = job.life.failures + 1, job.manifest.retries
    if failures > retries:
        times = "" if failures == 1 else f" {failures} times, the last time"
        return PendingEvent(LifeEvent.GIVE_UP, f"it has failed{times}: {reason}", True, True)
    why = f"its run has failed, {failures} of {retries} retries used: {reason}"
    return PendingEvent(LifeEvent.RETRY, why, True, True)


def _not_started(job: JobView, reason: str, facts: RunHosts, is_hopeless: bool) -> PendingEvent:
    """Return the event for `job`, whose run has ended, or is to end, before its first step."""
    # It may be the fault of these hosts; but what starts on none of a thousand is not tried on all.
    if facts.has_others and not facts.was_tried:
        why = f"it could not start, and is tried on other hosts: {reason}"
        return PendingEvent(LifeEvent.TAKE_BACK, why, True)
    if is_hopeless and job.life.failures < job.manifest.retries:
        why = f"its command cannot start, so it is not tried again: {reason}"
        return PendingEvent(LifeEvent.GIVE_UP, why, True, True)
    return _failed(job, reason or "its run has failed")


def _stop(job: JobView) -> PendingEvent:
    """Return the event that begins to stop the run of `job` because a user wants it."""
    deleted = job.wanted.goal is Goal.GONE
    return PendingEvent(LifeEvent.STOP, "it is being deleted" if deleted else "it is being halted")


def _hosts_lost(facts: RunHosts) -> str:
    """Return a clause like "host a was lost"; without lost hosts, that slots were taken back."""
    lost = facts.lost
    if not lost:
        return "slots were taken back"
    return f"host {lost[0]} was lost" if len(lost) == 1 else f"hosts {', '.join(lost)} were lost"
