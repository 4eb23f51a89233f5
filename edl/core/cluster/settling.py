"""Bring the devices of a cluster's jobs nearer to the policy's decision, as far as it is safe.

Each function does what can be done now. What has to wait for a host, an agent or a run is left to a
later plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from edl.core.cluster.draft import Draft
from edl.core.cluster.job_life import LifeEvent, LifeState, run_token
from edl.core.cluster.orders import CreateRun, PlaceRun
from edl.core.cluster.run_devices import next_devices
from edl.core.cluster.stable_placing import trimmed
from edl.core.cluster.view import JobView, RunView
from edl.core.plural import by_host, counted
from edl.core.records import JobState


def give_back(draft: Draft) -> None:
    """Begin to stop jobs that the policy gives no slots; take devices back from the others."""
    for job in list(draft.jobs.values()):
        if job.life.state is not LifeState.RUNNING:
            continue
        target, run = draft.target(job), job.present_run
        if not target:
            if not draft.allocation.problem:
                why = draft.waits.get(job.name) or draft.why(job)
                draft.stop(job, f"preempted: {why.removeprefix('waits: ')}")
        elif run is not None:
            for host in draft.table.entries(job.name, run.token):
                draft.table.reclaim(host, job.name, target.get(host, 0), run)
                draft.table.release(host, job.name, run)


def take_devices(draft: Draft) -> None:
    """Assign free devices to jobs as the policy decided, start waiting jobs, and place runs."""
    for job in list(draft.jobs.values()):
        target, run = draft.target(job), job.present_run
        if job.life.state is LifeState.RUNNING and run is not None and target:
            _place(draft, job, run, target)
        elif job.life.state is LifeState.QUEUED and target:
            _start(draft, job, target)
        if draft.jobs[job.name].life.state is LifeState.STARTING:
            _create(draft, draft.jobs[job.name])


def _place(draft: Draft, job: JobView, run: RunView, target: Mapping[str, int]) -> None:
    """Assign free devices to a run, and order it to use what it may use next."""
    entries = draft.table.entries(job.name, run.token)
    for host, count in target.items():
        entry = entries.get(host)
        own = len(entry.devices) - len(entry.leaving) if entry is not None else 0
        draft.table.give(host, job.name, run.token, count - own)
    found = next_devices(job, run, target, draft.table, draft.lost, _gathers(draft, job))
    lost = sorted(draft.lost.intersection(entries))
    if lost and found.is_too_few(job.min_slots):
        slots = f"{counted(found.survivors, 'slot')} of at least {job.min_slots}"
        draft.stop(job, f"{slots} are left without {', '.join(lost)}, and no others are free")
        return
    if found.lacking:
        draft.waits[job.name] = _lacks(draft, job, found.lacking)
    elif found.without_agent:
        hosts = ", ".join(found.without_agent)
        draft.waits[job.name] = f"waits for its agent on {hosts}: {draft.why(job)}"
    batch = _batch(draft, job)
    present = {host: numbers for host, numbers in run.devices.items() if numbers}
    devices = present if found.devices is None else dict(found.devices)
    differs = (devices, batch) != (present, run.batch) or run.lacks_workers
    if differs and run.state is JobState.RUNNING:
        every = {host: devices.get(host, ()) for host in sorted({*run.devices, *devices})}
        order = PlaceRun(job.name, run.token, every, run.version, batch, draft.why(job))
        draft.orders.append(order)


def _start(draft: Draft, job: JobView, target: Mapping[str, int]) -> None:
    """Start a waiting job if all slots that the policy gives it are free, or enough of them."""
    blocked = draft.table.blocked(job.name, "")
    free = {
        host: min(count, len(draft.table.free(host)))
        for host, count in target.items()
        if host not in blocked
    }
    lacking = sum(target.values()) - sum(free.values())
    size = job.manifest.allowed_sizes.below(sum(free.values()))
    if not job.run_is_over:
        draft.waits[job.name] = "waits until its last run is over"
    elif size is None or (lacking and _gathers(draft, job)):
        draft.waits[job.name] = _lacks(draft, job, lacking)
    else:
        _start_on(draft, job, trimmed(free, size))


def _start_on(draft: Draft, job: JobView, slots: Mapping[str, int]) -> None:
    """Assign free devices to a waiting job, and give it a new run and the state STARTING."""
    number = job.life.runs + 1
    run = run_token(job.order, number)
    for host, count in slots.items():
        draft.table.give(host, job.name, run, count)
    life = job.life.after(
        LifeEvent.START,
        f"starts ({by_host(slots)}): {draft.why(job)}",
        draft.now_s,
        run=run,
        runs=number,
        started_s=job.life.started_s or draft.now_s,
    )
    draft.change(job, LifeEvent.START, life)


def _create(draft: Draft, job: JobView) -> None:
    """Add the order to create the run of `job`, which starts, unless its records exist."""
    if job.present_run is None and job.run_is_over:
        entries = draft.table.entries(job.name, job.life.run)
        devices = {host: entries[host].devices for host in sorted(entries)}
        draft.orders.append(CreateRun(job.name, job.life.run, devices, _batch(draft, job)))


def _gathers(draft: Draft, job: JobView) -> bool:
    """Return whether `job` is to wait on until all slots that the policy gives it are free."""
    changed_s = draft.allocation.changed_s.get(job.name, 0.0)
    ends_s = changed_s + draft.settings.gather_s
    draft.times_s.append(ends_s)
    return draft.now_s < ends_s


def _lacks(draft: Draft, job: JobView, count: int) -> str:
    slots = "1 slot, which is" if count == 1 else f"{count} slots, which are"
    return f"waits for {slots} being given back: {draft.why(job)}"


def _batch(draft: Draft, job: JobView) -> int | None:
    """Return the global batch that the policy has chosen for `job`, in samples; None: none."""
    limit = job.manifest.batch
    chosen = limit is not None and limit.set_by_policy
    return draft.allocation.batches.get(job.name) if chosen else None
