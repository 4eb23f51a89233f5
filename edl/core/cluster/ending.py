"""End the runs of a cluster's jobs: tell hosts to end them, free their devices, order stops."""

from __future__ import annotations

from edl.core.cluster.draft import Draft
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.orders import StopRun
from edl.core.cluster.records import JobAssignment
from edl.core.cluster.view import JobView
from edl.core.records import JobState


def end_runs(draft: Draft) -> None:
    """Tell hosts to end the runs that do not go on there, and free the devices of ended ones."""
    for host, name, entry in draft.table.all_entries():
        job = draft.jobs.get(name)
        if job is None or not _goes_on(draft, job, entry) or _is_abandoned(draft, job, host, entry):
            draft.table.end(host, name)
        draft.table.release_ended(host, name)


def stop_runs(draft: Draft) -> None:
    """Add to `draft` the orders that stop runs: those of halting jobs, and those of no job."""
    for job in draft.jobs.values():
        run, life = job.run, job.life
        if run is None or run.state.over or job.run_is_foreign:
            continue
        if run.token != life.run or not life.state.has_run:
            draft.orders.append(StopRun(job.name, run.token, False, life.reason))
        elif life.state is LifeState.HALTING:
            why = _why_not_saved(draft, job)
            if why is not None or run.state is not JobState.STOPPING:
                reason = why or life.reason
                draft.orders.append(StopRun(job.name, run.token, why is None, reason))


def _why_not_saved(draft: Draft, job: JobView) -> str | None:
    """Return why the run of `job`, which halts, is over at once; None: it saves a checkpoint."""
    facts = draft.facts(job)
    if draft.is_late_to_stop(job):
        return f"it did not stop within {draft.settings.halt_timeout_s:g} s"
    if not facts.slots:
        return "no host was left on which it could save a checkpoint"
    if facts.is_dead:
        return "no process of it was left, so its last checkpoint may be missing"
    return None


def _goes_on(draft: Draft, job: JobView, entry: JobAssignment) -> bool:
    """Return whether a run that has devices on a host may go on to use them."""
    life, run = job.life, job.present_run
    if life.run != entry.run or not life.state.has_run:
        return False
    if run is None:
        # one that was never created and is to stop need not be waited for
        return life.state is not LifeState.HALTING
    return not run.state.over and not draft.is_late_to_stop(job)


def _is_abandoned(draft: Draft, job: JobView, host: str, entry: JobAssignment) -> bool:
    """Return whether a run is to leave a host, and no agent there can say that it has."""
    run = job.present_run
    if run is None or entry.leaving != entry.devices or host in run.agents:
        return False
    late = draft.now_s - entry.changed_s >= draft.settings.stuck_s
    return late and not run.devices.get(host)
