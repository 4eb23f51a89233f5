"""Decide which event of its life is due for a job of a cluster, and why.

:data:`edl.cluster.lifecycle.TRANSITIONS` says what an event leads to. The events here follow
from what users want and what a job's run has become. That a job gets slots, or loses all of them to
others, follows from the plan (:mod:`edl.cluster.plan`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edl.cluster.allocate import profile_end_s
from edl.cluster.lifecycle import (
    HostLimit,
    JobLifecycle,
    LifeEvent,
    LifeResult,
    LifeState,
    run_token,
)
from edl.cluster.placing import trimmed
from edl.cluster.records import ClusterRecord, Goal, JobAssignment
from edl.cluster.view import (
    Action,
    ClusterView,
    CreateRun,
    DeviceTable,
    JobView,
    PlaceRun,
    RunView,
    StopRun,
    allocation_by,
    life_by,
    next_devices,
)
from edl.errors import NO_PROGRAM_EXIT, REFUSED_EXIT
from edl.records import JobState
from edl.text import by_host, counted, duration_in_words, excerpt

# Exit codes with which a command ends that cannot start: Python's of a script that is not there and
# argparse's, a shell's of a program that is not there, and that of a worker that edl refuses.
HOPELESS = (2, NO_PROGRAM_EXIT, REFUSED_EXIT)
UNSAVED = "; it saves no checkpoint"  # before what is lost


class PendingEvent(NamedTuple):
    """An event that must happen now in the life of a job, with its reason."""

    event: LifeEvent  # the event, which leads from one state of the job to the next
    reason: str  # why it happens, in a sentence
    failed: bool = False  # whether nothing came of a start or run: the next start waits
    counts: bool = False  # whether it is a failure of the job itself, and uses up a retry


@dataclass(frozen=True)
class RunHosts:
    """The slots and processes that a job's present run has, by the records of the hosts."""

    slots: int = 0  # the number of slots that the run has on hosts that are not lost
    lost: tuple[str, ...] = ()  # the names of the lost hosts on which it has slots
    has_processes: bool = False  # whether a process of it may live on a host that is not lost
    is_dead: bool = False  # whether nobody is left who could stop it, by agents and hosts
    refusals: Mapping[str, str] = field(default_factory=dict)  # host -> why it takes no agent
    lost_before: str = ""  # which job that must finish before it never will, and why; empty: none
    has_others: bool = False  # whether its start has failed, and other hosts have room for it
    was_tried: bool = False  # whether its job could not start on other hosts before


def due_event(
    job: JobView, facts: RunHosts, settings: ClusterRecord, now_s: float
) -> PendingEvent | None:
    """Return the event that must happen now in the life of `job`; None: it stays as it is."""
    goal, run = job.wanted.goal, job.present_run
    match job.life.state:
        case LifeState.QUEUED:
            if goal is Goal.GONE:
                return PendingEvent(LifeEvent.DELETE, "it was deleted while it waited")
            if goal is Goal.HALT:
                return PendingEvent(LifeEvent.HALT, "it was halted while it waited")
            if facts.lost_before:
                return PendingEvent(LifeEvent.GIVE_UP, facts.lost_before)
        case LifeState.HALTED:
            if goal is Goal.GONE:
                return PendingEvent(LifeEvent.DELETE, "it was deleted while it was halted")
            if goal is Goal.RUN:
                return PendingEvent(LifeEvent.RESUME, "it was resumed")
        case LifeState.STARTING:
            return _due_at_start(job, facts, settings, now_s)
        case LifeState.RUNNING:
            if run is None:
                return _failed(job, "its records were removed from ZooKeeper while it trained")
            if run.state.over:
                return _ended(job, run)
            return _stop(job) if goal is not Goal.RUN else None
        case LifeState.HALTING:
            # It has not stopped while a process of it may live.
            if (run is None or run.state.over) and not facts.has_processes:
                return _stopped(job, run)
        case LifeState.ENDED:
            pass
    return None


def _due_at_start(
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
        lost = f"hosts {', '.join(facts.lost)} were lost"
        if len(facts.lost) < 2:
            lost = f"host {facts.lost[0]} was lost" if facts.lost else "slots were taken back"
        why = f"{lost} while it started, and {counted(facts.slots, 'slot')}"
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


def _stopped(job: JobView, run: RunView | None) -> PendingEvent:
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


def _ended(job: JobView, run: RunView) -> PendingEvent:
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
    # It may be the fault of these hosts; but what starts on none of a thousand is not tried on all.
    if facts.has_others and not facts.was_tried:
        why = f"it could not start, and is tried on other hosts: {reason}"
        return PendingEvent(LifeEvent.TAKE_BACK, why, True)
    if is_hopeless and job.life.failures < job.manifest.retries:
        why = f"its command cannot start, so it is not tried again: {reason}"
        return PendingEvent(LifeEvent.GIVE_UP, why, True, True)
    return _failed(job, reason or "its run has failed")


def _stop(job: JobView) -> PendingEvent:
    deleted = job.wanted.goal is Goal.GONE
    return PendingEvent(LifeEvent.STOP, "it is being deleted" if deleted else "it is being halted")


# ------------------------------------------------------------
# Hold, in a `PlanBuilder`, what one call of the plan of a cluster has decided so far.


@dataclass(frozen=True)
class JobChange:
    job: str  # the name of the job
    event: LifeEvent  # what happened to the job, so that its state changed
    before: LifeState
    after: LifeState
    reason: str  # why, in a sentence


class PlanBuilder:
    """The builder of a plan: the lives, devices and orders that are decided so far."""

    def __init__(self, cluster: ClusterView, now_s: float) -> None:
        self.cluster, self.now_s = cluster, now_s
        self.settings = cluster.settings
        # the devices of each host, and the job and run that has each
        self.table = DeviceTable(cluster.hosts, now_s)
        # those that have been without an offer for too long
        self.lost = frozenset(
            host.name for host in cluster.hosts if host.is_lost(now_s, self.settings.lost_after_s)
        )
        # the jobs by name, with the lives that they will have
        self.jobs: dict[str, JobView] = {job.name: job for job in cluster.jobs}
        for job in cluster.jobs:
            life = life_by(now_s, job.life, self.settings.limit_s)
            if life is not job.life:
                self.live_on(job, life)
        # the policy's decision that holds now
        self.allocation = allocation_by(now_s, cluster.allocation)
        # name of a job -> why it waits, as a sentence, where that is not the policy's reason
        self.waits: dict[str, str] = {}
        # the orders to runs (to begin, change their devices, stop), in the order of their making
        self.orders: list[Action] = []
        self.changes: list[JobChange] = []  # the changes of jobs' states, in their order
        # times at which the controller is to plan again even if nothing has changed, in seconds
        # since 1970
        self.times_s: list[float] = []

    def live_on(self, job: JobView, life: JobLifecycle) -> None:
        self.jobs[job.name] = replace(job, life=life)

    def change(self, job: JobView, event: LifeEvent, life: JobLifecycle) -> None:
        change = JobChange(job.name, event, job.life.state, life.state, life.reason)
        self.changes.append(change)
        self.live_on(job, life)

    def stop(self, job: JobView, reason: str) -> None:
        if job.saves_nothing:
            trained = duration_in_words(max(0.0, self.now_s - job.life.since_s))
            steps = counted(job.measured.done_steps, "step")
            reason += f"{UNSAVED}, and loses {steps} ({trained} of training)"
        self.change(job, LifeEvent.STOP, job.life.after(LifeEvent.STOP, reason, self.now_s))

    def facts(self, job: JobView) -> RunHosts:
        slots, lost, lives = 0, [], False
        refusals: dict[str, str] = {}
        useless: dict[str, str] = {}
        run, usable = job.present_run, 0
        is_dead = run is not None and not run.agents
        for host, entry in self.table.of_job(job.name).items():
            if entry.run != job.life.run:
                continue
            if host in self.lost:
                lost.append(host)
            else:
                slots += 0 if entry.ends else len(entry.devices)
                view = self.cluster.host_named[host]
                lives = lives or not view.reports_end(job.name)
                is_dead = is_dead and view.reports_none(job.name)
                if not entry.ends and (why := view.refusal(job.name, entry.run)):
                    refusals[host] = why
                agent = run.agents.get(host) if run is not None else None
                if agent is not None and agent.is_useless(len(entry.devices)):
                    useless[host] = agent.why
                    usable -= len(entry.devices)
        if slots + usable < job.min_slots:  # else its ring begins on the other hosts
            refusals |= useless
        return RunHosts(
            slots,
            tuple(sorted(lost)),
            has_processes=lives,
            is_dead=is_dead,
            refusals=refusals,
            lost_before=self._lost_before(job),
            has_others=self._has_others(job, refusals),
            was_tried=bool(self.table.refuses(job.name, job.order)),
        )

    def _lost_before(self, job: JobView) -> str:
        """Return which job of `after` will never finish, and why, as a sentence; else empty."""
        if job.manifest.after_failed != "end" or job.life.started_s:
            return ""
        for name in job.manifest.after:
            first = self.jobs.get(name)
            if first is not None and first.life.result in (LifeResult.FAILED, LifeResult.DELETED):
                why = f"job {name}, which was to finish first (after), {first.life.result.phrase}"
                return f"{why}: {first.life.reason}"
        return ""

    def _has_others(self, job: JobView, refusals: Collection[str]) -> bool:
        run = job.present_run
        failed = run is not None and run.state is JobState.FAILED
        if job.life.state is not LifeState.STARTING or not (failed or refusals):
            return False
        used = refusals or self.table.entries(job.name, job.life.run)
        used = {*used, *self.table.refuses(job.name, job.order)}
        room = sum(
            len(host.offer.numbers)
            for host in self.cluster.hosts
            if host.offer is not None
            and host.takes_slots
            and host.name not in used
            and not self.cluster.is_closed_to(host.name, job.name)
            and job.manifest.labels.items() <= host.offer.labels.items()
        )
        return room >= job.min_slots

    def target(self, job: JobView) -> Mapping[str, int]:
        """Return how many slots the policy gives `job` on each host; empty if it gives none."""
        return self.allocation.targets.get(job.name, {})

    def why(self, job: JobView) -> str:
        """Return the policy's reason for the slots of `job`; empty if it has given none."""
        return self.allocation.reasons.get(job.name, "")

    def is_late_to_stop(self, job: JobView) -> bool:
        late = self.now_s - job.life.since_s >= self.settings.halt_timeout_s
        return job.life.state is LifeState.HALTING and late


# ------------------------------------------------------------
# End the runs of a cluster's jobs: tell hosts to end them, free their devices, order stops.


def end_runs(builder: PlanBuilder) -> None:
    for host, name, entry in builder.table.all_entries():
        job = builder.jobs.get(name)
        if (
            job is None
            or not _goes_on(builder, job, entry)
            or _is_abandoned(builder, job, host, entry)
        ):
            builder.table.end(host, name)
        builder.table.release_ended(host, name)


def stop_runs(builder: PlanBuilder) -> None:
    for job in builder.jobs.values():
        run, life = job.run, job.life
        if run is None or run.state.over or job.run_is_foreign:
            continue
        if run.token != life.run or not life.state.has_run:
            builder.orders.append(StopRun(job.name, run.token, False, life.reason))
        elif life.state is LifeState.HALTING:
            facts, why = builder.facts(job), None
            if builder.is_late_to_stop(job):
                why = f"it did not stop within {builder.settings.halt_timeout_s:g} s"
            elif not facts.slots:
                why = "no host was left on which it could save a checkpoint"
            elif facts.is_dead:
                why = "no process of it was left, so its last checkpoint may be missing"
            if why is not None or run.state is not JobState.STOPPING:
                reason = why or life.reason
                builder.orders.append(StopRun(job.name, run.token, why is None, reason))


def _goes_on(builder: PlanBuilder, job: JobView, entry: JobAssignment) -> bool:
    life, run = job.life, job.present_run
    if life.run != entry.run or not life.state.has_run:
        return False
    if run is None:
        # one that was never created and is to stop need not be waited for
        return life.state is not LifeState.HALTING
    return not run.state.over and not builder.is_late_to_stop(job)


def _is_abandoned(builder: PlanBuilder, job: JobView, host: str, entry: JobAssignment) -> bool:
    run = job.present_run
    if run is None or entry.leaving != entry.devices or host in run.agents:
        return False
    late = builder.now_s - entry.changed_s >= builder.settings.stuck_s
    return late and not run.devices.get(host)


# ------------------------------------------------------------
# Let the events happen in the lives of a cluster's jobs that follow from goals, runs and hosts.


def advance_lives(builder: PlanBuilder) -> None:
    for name in list(builder.jobs):
        if not builder.jobs[name].life.submitted_s:
            _begin(builder, builder.jobs[name])
        _note_idle(builder, builder.jobs[name])
        while True:
            job = builder.jobs[name]
            facts = builder.facts(job)
            due = due_event(job, facts, builder.settings, builder.now_s)
            if due is None:
                break
            _happen(builder, job, due, facts)
    working = {
        host
        for job in builder.jobs.values()
        if job.life.state is LifeState.RUNNING and (run := job.present_run) is not None
        for host in run.agents
        if run.busy(host)
    }
    for host in builder.table.hosts:
        if host not in working:  # where a job trains, the fault may be the others'
            builder.table.take_out(host)


def _begin(builder: PlanBuilder, job: JobView) -> None:
    submitted_s = job.submitted_s or builder.now_s
    life = replace(
        job.life,
        submitted_s=submitted_s,
        since_s=submitted_s,
        counted_s=builder.now_s,
        reason="it was submitted",
    )
    builder.live_on(job, life)


def _happen(builder: PlanBuilder, job: JobView, due: PendingEvent, facts: RunHosts) -> None:
    changes = job.life.failed(builder.now_s, due.counts) if due.failed else {}
    if due.event is LifeEvent.RESUME:
        changes = {"tries": 0, "failures": 0, "not_before_s": 0.0}
    run = job.present_run
    if run is not None and run.state.over:
        changes["exit_code"] = run.exit_code
    # The reason may repeat what the job's processes have written, and the record must fit into a
    # node of ZooKeeper.
    life = job.life.after(due.event, excerpt(due.reason), builder.now_s, **changes)
    if due.event is LifeEvent.TRAIN:
        start_s = max(0.0, builder.now_s - job.life.since_s)
        life = replace(life, profile_until_s=profile_end_s(job, builder.now_s), start_s=start_s)
        for host, one in builder.table.refuses(job.name, job.order).items():
            builder.table.fail(host, job.name, job.order, one.reason, True)
    elif due.event in (LifeEvent.RESUME, LifeEvent.GIVE_UP):  # the fault was the job's own
        builder.table.forgive(job.name)
    elif facts.has_others:
        for host in facts.refusals or builder.table.entries(job.name, job.life.run):
            why = facts.refusals.get(host) or (job.present_run.reason if job.present_run else "")
            builder.table.fail(host, job.name, job.order, excerpt(why), False)
    elif due.event is LifeEvent.TAKE_BACK and due.failed:
        life = replace(life, limits={**life.limits, **_limits_of_start(builder, job)})
    builder.change(job, due.event, life)


def _limits_of_start(builder: PlanBuilder, job: JobView) -> dict[str, HostLimit]:
    run = job.present_run
    if run is None:
        return {}
    entries = builder.table.entries(job.name, run.token)
    busy = {host: len(run.busy(host)) for host in entries}
    lived = any(busy.values())
    until_s = builder.now_s + builder.settings.limit_s
    return {
        host: HostLimit(count, until_s)
        for host, count in busy.items()
        if count < len(entries[host].devices)
        # If no host had a worker, only those that report why are to blame.
        and (lived or builder.cluster.host_named[host].reports_no_start(job.name, run.token))
    }


def _note_idle(builder: PlanBuilder, job: JobView) -> None:
    run = job.present_run
    if job.life.state is not LifeState.RUNNING or run is None or run.state.over:
        return
    for host, entry in builder.table.entries(job.name, run.token).items():
        since_s = builder.table.note_idle(host, job.name, _is_idle(builder, job, run, host, entry))
        limit_s = since_s + job.start_limit_s(builder.settings)
        agent, view = run.agents.get(host), builder.cluster.host_named[host]
        why = view.refusal(job.name, run.token)
        if agent is not None and agent.is_useless(len(entry.devices) - len(entry.leaving)):
            why = agent.why
        if since_s and builder.now_s < limit_s and not why:
            builder.times_s.append(limit_s)
        elif since_s or why:
            builder.table.note_idle(host, job.name, False)
            busy = 0 if why else len(run.busy(host))  # a process that starts once more is not ready
            if not busy:
                why = why or f"no worker started within {job.start_limit_s(builder.settings):g} s"
                builder.table.fail(host, job.name, job.order, excerpt(why), True)
                continue
            limit = HostLimit(busy, builder.now_s + builder.settings.limit_s)
            life = builder.jobs[job.name].life
            builder.live_on(job, replace(life, limits={**life.limits, host: limit}))


def _is_idle(
    builder: PlanBuilder, job: JobView, run: RunView, host: str, entry: JobAssignment
) -> bool:
    kept = set(entry.devices) - set(entry.leaving)
    agent, view = run.agents.get(host), builder.cluster.host_named[host]
    if agent is not None:
        return bool(kept - agent.busy)
    if view.offer is None or view.report is None:
        return False
    found = view.report.jobs.get(job.name)
    return bool(kept) and (found is None or found.run != run.token or not found.processes)


# ------------------------------------------------------------
# Bring the devices of a cluster's jobs nearer to the policy's decision, as far as it is safe.
#
# Each function does what can be done now. What has to wait for a host, an agent or a run is left to
# a later plan.


def give_back(builder: PlanBuilder) -> None:
    """Begin to stop jobs that the policy gives no slots; take devices back from the others."""
    for job in list(builder.jobs.values()):
        if job.life.state is not LifeState.RUNNING:
            continue
        target, run = builder.target(job), job.present_run
        if not target:
            if not builder.allocation.problem:
                why = builder.waits.get(job.name) or builder.why(job)
                builder.stop(job, f"preempted: {why.removeprefix('waits: ')}")
        elif run is not None:
            for host in builder.table.entries(job.name, run.token):
                builder.table.reclaim(host, job.name, target.get(host, 0), run)
                builder.table.release(host, job.name, run)


def take_devices(builder: PlanBuilder) -> None:
    for job in list(builder.jobs.values()):
        target, run = builder.target(job), job.present_run
        if job.life.state is LifeState.RUNNING and run is not None and target:
            _place(builder, job, run, target)
        elif job.life.state is LifeState.QUEUED and target:
            _start(builder, job, target)
        job = builder.jobs[job.name]
        if job.life.state is LifeState.STARTING and job.present_run is None and job.run_is_over:
            entries = builder.table.entries(job.name, job.life.run)
            devices = {host: entries[host].devices for host in sorted(entries)}
            order = CreateRun(job.name, job.life.run, devices, _batch(builder, job))
            builder.orders.append(order)


def _place(builder: PlanBuilder, job: JobView, run: RunView, target: Mapping[str, int]) -> None:
    entries = builder.table.entries(job.name, run.token)
    for host, count in target.items():
        entry = entries.get(host)
        own = len(entry.devices) - len(entry.leaving) if entry is not None else 0
        builder.table.give(host, job.name, run.token, count - own)
    found = next_devices(job, run, target, builder.table, builder.lost, _gathers(builder, job))
    lost = sorted(builder.lost.intersection(entries))
    if lost and (not found.survivors or found.owned < job.min_slots):
        slots = f"{counted(found.survivors, 'slot')} of at least {job.min_slots}"
        builder.stop(job, f"{slots} are left without {', '.join(lost)}, and no others are free")
        return
    if found.lacking:
        builder.waits[job.name] = _lacks(builder, job, found.lacking)
    elif found.without_agent:
        hosts = ", ".join(found.without_agent)
        builder.waits[job.name] = f"waits for its agent on {hosts}: {builder.why(job)}"
    batch = _batch(builder, job)
    present = {host: numbers for host, numbers in run.devices.items() if numbers}
    devices = present if found.devices is None else dict(found.devices)
    differs = (devices, batch) != (present, run.batch) or run.lacks_workers
    if differs and run.state is JobState.RUNNING:
        every = {host: devices.get(host, ()) for host in sorted({*run.devices, *devices})}
        order = PlaceRun(job.name, run.token, every, run.version, batch, builder.why(job))
        builder.orders.append(order)


def _start(builder: PlanBuilder, job: JobView, target: Mapping[str, int]) -> None:
    if not job.run_is_over:
        builder.waits[job.name] = "waits until its last run is over"
        return
    blocked = builder.table.blocked(job.name, "")
    free = {
        host: min(count, len(builder.table.free(host)))
        for host, count in target.items()
        if host not in blocked
    }
    lacking = sum(target.values()) - sum(free.values())
    size = job.manifest.allowed_sizes.below(sum(free.values()))
    # Fewer than the policy gives are enough only after it has waited for the others.
    if size is None or (lacking and _gathers(builder, job)):
        builder.waits[job.name] = _lacks(builder, job, lacking)
        return
    number = job.life.runs + 1
    run, slots = run_token(job.order, number), trimmed(free, size)
    for host, count in slots.items():
        builder.table.give(host, job.name, run, count)
    life = job.life.after(
        LifeEvent.START,
        f"starts ({by_host(slots)}): {builder.why(job)}",
        builder.now_s,
        run=run,
        runs=number,
        started_s=job.life.started_s or builder.now_s,
    )
    builder.change(job, LifeEvent.START, life)


def _gathers(builder: PlanBuilder, job: JobView) -> bool:
    changed_s = builder.allocation.changed_s.get(job.name, 0.0)
    ends_s = changed_s + builder.settings.gather_s
    builder.times_s.append(ends_s)
    return builder.now_s < ends_s


def _lacks(builder: PlanBuilder, job: JobView, count: int) -> str:
    slots = "1 slot, which is" if count == 1 else f"{count} slots, which are"
    return f"waits for {slots} being given back: {builder.why(job)}"


def _batch(builder: PlanBuilder, job: JobView) -> int | None:
    """Return the global batch that the policy has chosen for `job`, in samples; None: none."""
    limit = job.manifest.batch
    chosen = limit is not None and limit.set_by_policy
    return builder.allocation.batches.get(job.name) if chosen else None
