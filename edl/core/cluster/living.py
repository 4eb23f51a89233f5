"""Let the events happen in the lives of a cluster's jobs that follow from goals, runs and hosts."""

from __future__ import annotations

from dataclasses import replace

from edl.core.cluster.arrival_profile import profile_end_s
from edl.core.cluster.draft import Draft
from edl.core.cluster.job_life import HostLimit, LifeEvent, LifeState
from edl.core.cluster.life_events import PendingEvent, due_event, life_after
from edl.core.cluster.records import JobAssignment
from edl.core.cluster.view import JobView, RunView
from edl.core.excerpt import excerpt


def advance_lives(draft: Draft) -> None:
    """Bring the lives of all jobs in `draft` up to date with users' wishes, runs and hosts."""
    for name in list(draft.jobs):
        if not draft.jobs[name].life.submitted_s:
            _begin(draft, draft.jobs[name])
        _note_idle(draft, draft.jobs[name])
        while (due := _due(draft, draft.jobs[name])) is not None:
            _happen(draft, draft.jobs[name], due)
    working = {
        host
        for job in draft.jobs.values()
        if job.life.state is LifeState.RUNNING and (run := job.present_run) is not None
        for host in run.agents
        if run.busy(host)
    }
    for host in draft.table.hosts:
        if host not in working:  # where a job trains, the fault may be the others'
            draft.table.take_out(host)


def _begin(draft: Draft, job: JobView) -> None:
    """Give `job`, which was just submitted, its first life in `draft`, in the state queued."""
    submitted_s = job.submitted_s or draft.now_s
    life = replace(
        job.life,
        submitted_s=submitted_s,
        since_s=submitted_s,
        counted_s=draft.now_s,
        reason="it was submitted",
    )
    draft.live_on(job, life)


def _due(draft: Draft, job: JobView) -> PendingEvent | None:
    """Return the event that must happen now in the life of `job`; None: it stays as it is."""
    return due_event(job, draft.facts(job), draft.settings, draft.now_s)


def _happen(draft: Draft, job: JobView, due: PendingEvent) -> None:
    """Put the life that `job` has after the event `due` into `draft`, and note the change."""
    life = life_after(due, job, draft.now_s)
    facts = draft.facts(job)
    if due.event is LifeEvent.TRAIN:
        start_s = max(0.0, draft.now_s - job.life.since_s)
        life = replace(life, profile_until_s=profile_end_s(job, draft.now_s), start_s=start_s)
        for host, one in draft.table.refuses(job.name, job.order).items():
            draft.table.fail(host, job.name, job.order, one.reason, True)
    elif due.event in (LifeEvent.RESUME, LifeEvent.GIVE_UP):  # the fault was the job's own
        draft.table.forgive(job.name)
    elif facts.has_others:
        for host in facts.refusals or draft.table.entries(job.name, job.life.run):
            why = facts.refusals.get(host) or (job.present_run.reason if job.present_run else "")
            draft.table.fail(host, job.name, job.order, excerpt(why), False)
    elif due.event is LifeEvent.TAKE_BACK and due.failed:
        life = replace(life, limits={**life.limits, **_limits_of_start(draft, job)})
    draft.change(job, due.event, life)


def _limits_of_start(draft: Draft, job: JobView) -> dict[str, HostLimit]:
    """Return a limit for each host on which a failed start of `job` had too few workers."""
    run = job.present_run
    if run is None:
        return {}
    entries = draft.table.entries(job.name, run.token)
    busy = {host: len(run.busy(host)) for host in entries}
    lived = any(busy.values())
    until_s = draft.now_s + draft.settings.limit_s
    return {
        host: HostLimit(count, until_s)
        for host, count in busy.items()
        if count < len(entries[host].devices)
        # If no host had a worker, only those that report why are to blame.
        and (lived or draft.cluster.host_named[host].reports_no_start(job.name, run.token))
    }


def _note_idle(draft: Draft, job: JobView) -> None:
    """Note since when devices of a run that trains have had no process, and limit the job there."""
    run = job.present_run
    if job.life.state is not LifeState.RUNNING or run is None or run.state.over:
        return
    for host, entry in draft.table.entries(job.name, run.token).items():
        since_s = draft.table.note_idle(host, job.name, _is_idle(draft, job, run, host, entry))
        limit_s = since_s + job.start_limit_s(draft.settings)
        agent, view = run.agents.get(host), draft.cluster.host_named[host]
        why = view.refusal(job.name, run.token)
        if agent is not None and agent.is_useless(len(entry.devices) - len(entry.leaving)):
            why = agent.why
        if since_s and draft.now_s < limit_s and not why:
            draft.times_s.append(limit_s)
        elif since_s or why:
            draft.table.note_idle(host, job.name, False)
            busy = 0 if why else len(run.busy(host))  # a process that starts once more is not ready
            if not busy:
                why = why or f"no worker started within {job.start_limit_s(draft.settings):g} s"
                draft.table.fail(host, job.name, job.order, excerpt(why), True)
                continue
            limit = HostLimit(busy, draft.now_s + draft.settings.limit_s)
            life = draft.jobs[job.name].life
            draft.live_on(job, replace(life, limits={**life.limits, host: limit}))


def _is_idle(draft: Draft, job: JobView, run: RunView, host: str, entry: JobAssignment) -> bool:
    """Return whether a device of a host that a run has, and keeps, is known to have no process."""
    kept = set(entry.devices) - set(entry.leaving)
    agent, view = run.agents.get(host), draft.cluster.host_named[host]
    if agent is not None:
        return bool(kept - agent.busy)
    if view.offer is None or view.report is None:
        return False
    found = view.report.jobs.get(job.name)
    return bool(kept) and (found is None or found.run != run.token or not found.processes)
