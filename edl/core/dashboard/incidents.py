"""Fold the events of a job into its incidents: what happened, why, what to do, what followed.

Several events tell of one incident: the end of a process, its eviction, the ring that is built
without it, and the worker that takes its place. :class:`IncidentLog` brings them together. It is
bounded: the newest :data:`MOST_INCIDENTS` are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from edl.core.dashboard import incident_causes as causes
from edl.core.dashboard.full_disk import CANNOT, FullDisk, folder_of, is_full
from edl.core.dashboard.incident import LOST, Incident
from edl.core.dashboard.tense import tenses
from edl.core.duration import duration_in_words
from edl.core.event_explanations import EXPLANATIONS, Severity
from edl.core.event_text import LAST_WORDS, without_step_s
from edl.core.events import (
    CheckpointDetails,
    CheckpointFailedDetails,
    Details,
    Event,
    EventKind,
    EvictedDetails,
    GenerationDetails,
    JobFailedDetails,
    LeaderDetails,
    LogFailedDetails,
    LogResumedDetails,
    LossSpikeDetails,
    ResumedDetails,
    SlowWorkerDetails,
    StalledDetails,
    SwitchDetails,
    WorkerFailedDetails,
    WorkerFrozenDetails,
    ZookeeperBackDetails,
)
from edl.core.learning_curve import short
from edl.core.plural import counted, workers
from edl.core.record import Record

MOST_INCIDENTS = 40
MOST_SAVED = 100  # checkpoints whose steps are known
MOST_HOSTS = 400  # workers whose hosts are known
SILENT = "stopped answering"  # in what is said of a worker that is frozen or cut off
NONE_LEFT = "No worker was left that could go on; others were started."
LOSS_NOW = "At step "  # begins what is said of a loss that was told of before
TOGETHER_S = 20.0  # losses of workers at most so far apart are one incident
SEEN_S = 30.0  # by which the clocks of the page and of a worker may differ
SAME_S = 600.0  # further events about the same worker, or further failures of the same kind


@dataclass(frozen=True)
class IncidentLog(Record):
    """The incidents of a job, the oldest first."""

    incidents: tuple[Incident, ...] = ()  # the newest incidents
    hosts: Mapping[str, str] = field(default_factory=dict)  # worker -> its host, as far as is known
    members: tuple[str, ...] = ()  # the workers of the newest generation, in rank order
    leader: str = ""  # the worker that leads; empty: not known
    former: str = ""  # the worker that led before; empty: not known, or none did
    led_s: float = 0.0  # since when `leader` leads, in seconds since 1970
    # why ZooKeeper did not answer lately, as the page has seen; empty: not known
    outage_why: str = ""
    outage_s: float = 0.0  # when the page saw that last, in seconds since 1970
    trained: int = 0  # the newest generation that has completed a step after its switch
    step: int = 0  # the newest complete step that an event has told of
    saved: tuple[int, ...] = ()  # the steps of the newest checkpoints, the oldest first
    count: int = 0  # how many incidents there were

    def with_hosts(self, hosts: Mapping[str, str]) -> IncidentLog:
        """Return the log with the hosts of more workers, by their names."""
        known = {**self.hosts, **hosts}
        if known == self.hosts:
            return self
        return replace(self, hosts=dict(list(known.items())[-MOST_HOSTS:]))

    def with_event(self, event: Event) -> IncidentLog:
        """Return the log with what `event` tells; events come in the order of the job's log."""
        return self._folded(event).trained_to(event)

    def trained_to(self, event: Event) -> IncidentLog:
        """Return the log with the newest step and ring by `event`; a resume begins further back."""
        switched = event.generation if isinstance(event.details, SwitchDetails) else 0
        back = isinstance(event.details, ResumedDetails)
        step = event.step if back else max(self.step, event.step)
        return replace(self, step=step, trained=max(self.trained, switched))

    def is_past(self, event: Event) -> bool:
        """Return whether the job went on since what `event` tells of, by the events before it."""
        # Workers end a step one after the other: the next one may be complete on some.
        return event.generation < self.trained or event.step + 1 < self.step

    def _folded(self, event: Event) -> IncidentLog:
        fold = _FOLDS.get(type(event.details))
        if fold is not None:
            return fold(self, event, cast(Any, event.details))
        if EXPLANATIONS[event.kind].severity is Severity.NORMAL:
            return self
        return self.repeated(event)

    # --- for the functions below

    def opened(self, incident: Incident) -> IncidentLog:
        found = (*self.incidents, incident)[-MOST_INCIDENTS:]
        return replace(self, incidents=found, count=self.count + 1)

    def changed(self, incident: Incident) -> IncidentLog:
        """Return the log with `incident` in place of the one with the same number."""
        found = tuple(incident if one.number == incident.number else one for one in self.incidents)
        return replace(self, incidents=found)

    def newest(
        self, event_s: float, matches: Callable[[Incident], bool], within_s: float = SAME_S
    ) -> Incident | None:
        """Return the newest incident that `matches` and was told of lately; None: there is none."""
        for one in reversed(self.incidents):
            if matches(one) and event_s - one.last_s < within_s:
                return one
        return None

    def loss_of(self, event_s: float, names: tuple[str, ...]) -> Incident | None:
        """Return the incident in which one of the workers `names` was lost; None: there is none."""
        own = self.newest(event_s, lambda one: one.kind in LOST and bool({*names} & {*one.workers}))
        if own is not None:
            return own
        return self.newest(
            event_s,
            lambda one: one.kind in LOST and not one.is_over and event_s - one.at_s < TOGETHER_S,
        )

    def empty_place(self, event_s: float, host: str) -> Incident | None:
        """Return the newest loss of a worker whose place is empty, one of `host` if there is."""
        own = self.newest(event_s, lambda one: one.has_empty_place and one.host == host != "")
        return own or self.newest(event_s, lambda one: one.has_empty_place)

    def host_of(self, worker: str) -> str:
        """Return the host of a worker; empty: not known."""
        return self.hosts.get(worker, "")

    def placed(self, worker: str) -> str:
        """Return the name of a worker with its host, as far as it is known."""
        host = self.host_of(worker)
        return f"worker {worker} on host {host}" if host else f"worker {worker}"

    def repeated(
        self, event: Event, what: str = "", host: str = "", within_s: float = SAME_S
    ) -> IncidentLog:
        """Return the log with an incident of a kind that needs no more than its event's reason."""
        worker = getattr(event.details, "worker", None) or ""
        new = Incident.of(self.count, event, what, worker)
        new = replace(new, host=host)
        before = self.newest(
            event.time,
            lambda one: (one.kind, one.host, one.is_over) == (new.kind, host, False),
            within_s,
        )
        if before is None:
            return self.opened(new)
        clauses = {**before.clauses, **new.clauses, **before.clauses}  # as first noticed
        return self.changed(
            replace(before, clauses=clauses, last_s=event.time, times=before.times + 1)
        )

    def lost(self, event: Event, worker: str, what: str, cause: causes.Cause) -> IncidentLog:
        """Return the log with the loss of a worker."""
        known = self.loss_of(event.time, (worker,))
        base = known or Incident.of(self.count, event, what, worker)
        clauses = {name: one for name, one in base.clauses.items() if name}
        hosts = {self.host_of(name) for name in (*clauses, worker)}
        new = replace(
            base,
            last_s=event.time,
            kind=str(event.kind),
            host=hosts.pop() if len(hosts) == 1 else "",
            clauses={**clauses, worker: what},
            why=cause.why,
            advice=cause.advice,
        )
        if worker == self.former and event.time - self.led_s < SAME_S:
            new = new.then(event.time, _took_over(worker, self.leader))
        return self.opened(new) if known is None else self.changed(new)

    def on_disk(
        self,
        event: Event,
        details: LogFailedDetails | CheckpointFailedDetails,
        host: str,
        add: Callable[[FullDisk], FullDisk],
    ) -> IncidentLog:
        """Return the log with one more failure to write to a full disk."""
        is_log = isinstance(details, LogFailedDetails)
        folder = details.path.rpartition("/")[0] if is_log else details.path
        folder = folder or folder_of(event.reason)
        name = details.disk or folder
        known = self.newest(
            event.time,
            lambda one: (
                one.full_disk is not None
                and one.full_disk.disk == name
                and (not one.is_over or event.time - one.last_s < SAME_S)
            ),
            math.inf,
        )
        before = known or Incident.of(self.count, event)
        found = add(before.full_disk or FullDisk(name)).seen(host, folder)
        new = before.of_disk(found, event.time, is_over=False)
        return self.opened(new) if known is None else self.changed(new)


def _led(log: IncidentLog, event: Event, details: LeaderDetails) -> IncidentLog:
    """Fold a new leader: it is said of the loss of the worker that led before."""
    former = log.leader
    if details.worker == former:
        return log
    log = replace(log, leader=details.worker, former=former, led_s=event.time)
    lost = log.newest(event.time, lambda one: one.kind in LOST and former in one.workers)
    if lost is None:
        return log
    return log.changed(lost.then(event.time, _took_over(former, details.worker)))


def _took_over(former: str, leader: str) -> str:
    return f"{former} led the job; {leader} took over."


def _failed(log: IncidentLog, event: Event, details: WorkerFailedDetails) -> IncidentLog:
    """Fold the end of a worker's process; what was known before of its loss counts less."""
    log = log.with_hosts({details.worker: details.host} if details.worker else {})
    name = details.worker or f"the process in slot {details.slot}"
    who = f"worker {name}" if details.worker else name
    ended = causes.how_it_ended(details.exit_code)
    what = f"{who} on host {details.host} {ended}"
    known = log.loss_of(event.time, (name,))
    hosts = {log.host_of(worker) for worker in known.workers} if known is not None else set()
    cause = causes.of_an_end(
        replace(details, host=causes.THEIR_HOSTS) if hosts - {details.host} else details
    )
    if known is not None and SILENT in known.clauses.get(name, "") and known.kind == "evicted":
        return log.changed(known.then(event.time, f"{name} {ended}, when it was lost already."))
    log = log.lost(event, name, what, cause)
    new = log.loss_of(event.time, (name,))
    if (details.exit_code or 0) <= 0 or new is None:  # kills are incidents each
        return log
    same = log.newest(
        event.time,
        lambda one: one.number != new.number and (one.kind, one.why) == (new.kind, new.why),
    )
    if same is None:
        return log
    # The error of a script that its replacements end by, too, is one incident.
    together = replace(
        new,
        at_s=same.at_s,
        step=same.step,
        clauses={**same.clauses, **new.clauses},
        joined=(*same.joined, *new.joined),
        times=same.times + 1,
    )
    return replace(log, incidents=tuple(o for o in log.incidents if o is not same)).changed(
        together
    )


def _job_failed(log: IncidentLog, event: Event, _details: JobFailedDetails) -> IncidentLog:
    """Fold the failure of a job into the loss that it follows from, whose cause is told there."""
    loss = log.newest(event.time, lambda one: one.kind == EventKind.WORKER_FAILED, TOGETHER_S)
    if loss is None:
        return log.repeated(event)
    said = f"The job failed: {event.reason.partition(LAST_WORDS)[0]}."
    advice = EXPLANATIONS[event.kind].advice
    return log.changed(replace(loss.then(event.time, said), advice=advice, tone="bad"))


def _frozen(log: IncidentLog, event: Event, details: WorkerFrozenDetails) -> IncidentLog:
    log = log.with_hosts({details.worker: details.host})
    if not details.stacks:
        what = f"{log.placed(details.worker)} was suspended"
        return log.lost(event, details.worker, what, causes.of_a_suspension(details.host))
    silent = tenses("does not answer", "did not answer")
    what = f"{log.placed(details.worker)} {silent} any more"
    cause = causes.of_a_silence(details.host, event.reason)
    stacks = f" Where its threads were: {details.stacks} on that host."
    cause = replace(cause, advice=cause.advice + stacks)
    return log.lost(event, details.worker, what, cause)


def _evicted(log: IncidentLog, event: Event, details: EvictedDetails) -> IncidentLog:
    """Fold an eviction: the end of a process that is known already says more."""
    worker = details.worker
    known = log.loss_of(event.time, (worker,))
    is_known = known is not None and worker in known.workers
    if known is not None and is_known and known.kind in ("worker_failed", "worker_frozen"):
        return log.changed(known.then(event.time))
    reason = event.reason.partition(": ")[2] or event.reason
    if reason.startswith("its process is gone"):
        what = f"{log.placed(worker)} ended"
        return log.lost(event, worker, what, _of_an_unseen_end(log.host_of(worker), reason))
    if "frozen" in reason:
        reason = reason.removeprefix("it is frozen or cut off: ").removeprefix("it is frozen: ")
        what = f"{log.placed(worker)} {SILENT}"
        return log.lost(event, worker, what, causes.of_a_silence(log.host_of(worker), reason))
    what = f"{log.placed(worker)} was taken out of the job"
    known_kind = EXPLANATIONS[event.kind]
    advice = known_kind.advice.replace("JOB WORKER", f"JOB {worker}")
    return log.lost(event, worker, what, causes.Cause(f"The leader says: {reason}.", advice))


def _of_an_unseen_end(host: str, reason: str) -> causes.Cause:
    """Return the cause of an end of which no agent has told."""
    where = f"host {host}" if host else "its host"
    return causes.Cause(
        f"Its process is gone, and no agent has said how it ended ({reason}).",
        f"Look whether {where} runs; then its last lines: `edl logs JOB`.",
    )


def _stalled(log: IncidentLog, event: Event, details: StalledDetails) -> IncidentLog:
    """Fold a stall; a leader of an older edl that was suspended may tell of one that is none."""
    if log.is_past(event):
        return log
    no_step = f"no step {tenses('completes since', 'completed after')} step {event.step:,}"
    what = f"{no_step}: {event.reason}"
    new = Incident.of(log.count, event, what, details.workers[0] if details.workers else "")
    silent = "does not answer" in event.reason
    if silent and details.workers:
        cause = causes.of_a_silence(log.host_of(details.workers[0]), event.reason)
        new = replace(new, why=cause.why, advice=cause.advice)
    clauses = {**new.clauses, **dict.fromkeys(details.workers[:1], what)}
    hosts = {log.host_of(worker) for worker in details.workers}
    new = replace(new, clauses=clauses, host=hosts.pop() if len(hosts) == 1 else "")
    known = log.newest(event.time, lambda one: one.kind == new.kind and not one.is_over)
    if known is None:
        return log.opened(new)
    return log.changed(replace(new, number=known.number, at_s=known.at_s, step=known.step))


def _new_ring(log: IncidentLog, event: Event, details: GenerationDetails) -> IncidentLog:
    """Fold a new ring: it goes on without workers that were lost, or others take their place."""
    before, np = len(log.members), len(details.members)
    hosts = {worker: host for host, names in details.hosts.items() for worker in names}
    log = replace(log.with_hosts(hosts), members=details.members)
    if not np:  # the job ends
        return log
    if details.left and event.generation > 1:
        log = _without(log, event, details)
    return _replaced(log, event, details) if before and event.generation > 1 else log


def _replaced(log: IncidentLog, event: Event, details: GenerationDetails) -> IncidentLog:
    """Fold the workers that join: each takes the place of a lost one, of its own host if one is."""
    took: dict[int, list[str]] = {}
    for worker in details.joined:
        known = log.empty_place(event.time, log.host_of(worker))
        if known is None:
            break
        log = log.changed(replace(known, joined=(*known.joined, worker)))
        took.setdefault(known.number, []).append(worker)
    for known in log.incidents:
        names = took.get(known.number, ())
        if names and len(known.followed) < 4:
            after_s = max(0.0, event.time - known.at_s)
            came = f"{', '.join(names[:3])} joined {after_s:.0f} s after it"
            trained = f"{workers(len(details.members))} trained then"
            log = log.changed(known.then(event.time, f"{came}: {trained}."))
    return log


def _without(log: IncidentLog, event: Event, details: GenerationDetails) -> IncidentLog:
    """Fold a ring that goes on without workers."""
    left = details.left
    # Where a ring broke it is a loss; else they may leave.
    if details.repair and log.loss_of(event.time, left) is None:
        for worker in left:
            what = f"{log.placed(worker)} was lost"
            cause = _of_an_unseen_end(log.host_of(worker), event.reason)
            log = log.lost(event, worker, what, cause)
    known = log.loss_of(event.time, left)
    if known is None or not (details.repair or {*left} & {*known.workers}):
        return log
    survivors = len({*details.members} - {*details.joined})
    if not survivors:
        return log.changed(known.then(event.time, NONE_LEFT, is_over=True))
    if details.repair and not known.is_over:  # who told of the loss may have known an older step
        known = replace(known, step=event.step)
    others = "worker" if survivors == 1 else workers(survivors)
    went = f"The other {others} went on from step {event.step:,}."
    return log.changed(known.then(event.time, went, is_over=True))


def _resumed(log: IncidentLog, event: Event, details: ResumedDetails) -> IncidentLog:
    """Fold the checkpoint from which a job went on that had lost all its workers."""
    known = log.newest(event.time, lambda one: one.kind in LOST and NONE_LEFT in one.followed)
    if known is None or details.lost_steps is None:
        return log
    again = f"at least {counted(details.lost_steps, 'step', groups=True)} are trained again"
    said = f"They went on from the checkpoint of step {event.step:,}; {again}."
    return log.changed(known.then(event.time, said))


def _switched(log: IncidentLog, event: Event, details: SwitchDetails) -> IncidentLog:
    """Fold the end of a repair: for how long no step completed."""
    old = [one for one in details.workers.values() if one.role == "old"]
    if not any(one.survivor_report_s for one in old):
        return log
    known = log.newest(event.time, lambda one: one.kind in LOST and one.is_over)
    if known is None or any("No step was" in one for one in known.followed):
        return log
    lost_s = max(without_step_s(one) for one in old)
    return log.changed(known.then(event.time, f"No step was complete for {lost_s:.1f} s."))


def _slow(log: IncidentLog, event: Event, details: SlowWorkerDetails) -> IncidentLog:
    worker = details.worker
    log = log.with_hosts({worker: details.host} if details.host else {})
    times = details.compute_s / max(details.others_s, 1e-9)
    what = (
        f"all workers {tenses('wait', 'waited')} for {log.placed(worker)} in each step: it "
        f"{tenses('computes', 'computed')} {1000 * details.compute_s:.0f} ms, {times:.1f} times as "
        f"long as the others ({1000 * details.others_s:.0f} ms)"
    )
    cause = causes.of_a_slow_worker(worker, log.host_of(worker))
    new = Incident.of(log.count, event, what, worker)
    new = replace(new, host=log.host_of(worker), why=cause.why, advice=cause.advice)
    known = log.newest(
        event.time, lambda one: one.kind == new.kind and worker in one.workers and not one.is_over
    )
    if known is None:
        return log.opened(new)
    return log.changed(replace(new, number=known.number, at_s=known.at_s, times=known.times + 1))


def _away(log: IncidentLog, event: Event, details: ZookeeperBackDetails) -> IncidentLog:
    """Fold the end of an outage, of which the page may have seen the cause."""
    is_known = abs(event.time - log.outage_s) < details.away_s + SEEN_S
    why = log.outage_why if log.outage_why and is_known else causes.OF_ZOOKEEPER.why
    away = duration_in_words(details.away_s)
    what = f"ZooKeeper did not answer for {away}: no worker could join or leave"
    steps, went_on = event.step - details.from_step, f"Training went on, until step {event.step:,}"
    if details.from_step >= 0 and steps:
        went_on = (
            f"Training went on meanwhile, from step {details.from_step:,} to step {event.step:,} "
            f"({counted(steps, 'step', groups=True)})"
        )
    elif details.from_step >= 0:
        went_on = f"No step completed meanwhile: training stood at step {event.step:,}"
    new = replace(
        Incident.of(log.count, event, what),
        at_s=event.time - details.away_s,
        step=details.from_step if details.from_step >= 0 else event.step,
        why=why,
        advice=causes.OF_ZOOKEEPER.advice,
    )
    return log.opened(new.then(event.time, f"{went_on}. ZooKeeper answered again.", is_over=True))


def _log_failed(log: IncidentLog, event: Event, details: LogFailedDetails) -> IncidentLog:
    log = log.with_hosts({details.worker: details.host})
    if is_full(event.reason):
        return log.on_disk(event, details, details.host, lambda disk: disk.with_log(details.worker))
    failure = event.reason.partition(": ")[2] or event.reason
    what = f"{log.placed(details.worker)} {CANNOT} write its log: {failure}"
    return log.repeated(event, what, details.host)


def _log_resumed(log: IncidentLog, event: Event, details: LogResumedDetails) -> IncidentLog:
    worker, lost_bytes = details.worker, details.lost_bytes
    full = log.newest(
        event.time,
        lambda one: one.full_disk is not None and worker in one.full_disk.logs,
        math.inf,
    )
    if full is not None and full.full_disk is not None:
        disk = full.full_disk.with_resumed(worker, lost_bytes)
        return log.changed(full.of_disk(disk, event.time, is_over=True))
    known = log.newest(
        event.time,
        lambda one: (one.kind, one.host) == ("log_failed", details.host) and not one.is_over,
        math.inf,
    )
    if known is None:
        return log
    lost = counted(lost_bytes, "byte", groups=True)
    said = f"{worker} wrote its log again; {lost} of output were lost."
    return log.changed(known.then(event.time, said, is_over=True))


def _not_saved(log: IncidentLog, event: Event, details: CheckpointFailedDetails) -> IncidentLog:
    """Fold a checkpoint that was not written; one of a ring that was left behind is not missing."""
    if details.superseded:
        return log
    first = log.members[0] if log.members else ""
    host = log.host_of(first)
    if is_full(event.reason):
        return log.on_disk(
            event, details, host, lambda disk: disk.with_checkpoint(event.step, log.saved)
        )
    where = f" ({log.placed(first)})" if first else ""
    return log.repeated(event, f"{event.reason}{where}", host, math.inf)


def _saved(log: IncidentLog, event: Event, details: CheckpointDetails) -> IncidentLog:
    """Fold a checkpoint; after a resume those of later steps count no more."""
    before = [step for step in log.saved if step < event.step]
    log = replace(log, saved=(*before, event.step)[-MOST_SAVED:])
    for one in log.incidents:
        if one.spike is not None:
            advice = causes.of_a_loss(one.spike, log.saved).advice
            log = log.changed(replace(one, advice=advice))
        disk = one.full_disk
        if disk is not None and disk.checkpoints and disk.saved_step < 0:
            saved = replace(disk, saved_step=event.step)
            log = log.changed(one.of_disk(saved, event.time, is_over=True))
        elif disk is None and one.kind == "checkpoint_failed" and not one.is_over:
            said = f"The checkpoint of step {event.step:,} was written."
            log = log.changed(one.then(event.time, said, is_over=True))
    return log


def _loss(log: IncidentLog, event: Event, details: LossSpikeDetails) -> IncidentLog:
    spike, cause = details.spike, causes.of_a_loss(details.spike, log.saved)
    since = f" at step {details.at_step:,}"
    if spike.loss is None:
        was = (
            f"; it was {short(spike.lowest)} at step {spike.lowest_step:,}"
            if spike.lowest is not None
            else ", and never was"
        )
        what = f"the loss is not finite (inf or nan){since}{was}"
    else:
        times = spike.loss / spike.lowest if spike.lowest else 0.0
        what = (
            f"the loss has risen to {short(spike.loss)}{since}, {short(times)} times its lowest "
            f"value ({short(spike.lowest or 0.0)} at step {spike.lowest_step:,})"
        )
    new = Incident.of(log.count, event, what)
    known = log.newest(event.time, lambda one: one.kind == new.kind and not one.is_over)
    if known is not None and known.why == cause.why:  # the same rise
        now = "not finite" if spike.loss is None else short(spike.loss)
        earlier = tuple(one for one in known.followed if not one.startswith(LOSS_NOW))
        said = f"{LOSS_NOW}{details.at_step:,} it was {now}."
        return log.changed(replace(known, followed=earlier).then(event.time, said))
    return log.opened(replace(new, why=cause.why, advice=cause.advice, spike=spike))


_FOLDS: Mapping[type[Details], Callable[[IncidentLog, Event, Any], IncidentLog]] = {
    LeaderDetails: _led,
    WorkerFailedDetails: _failed,
    WorkerFrozenDetails: _frozen,
    EvictedDetails: _evicted,
    JobFailedDetails: _job_failed,
    StalledDetails: _stalled,
    GenerationDetails: _new_ring,
    SwitchDetails: _switched,
    ResumedDetails: _resumed,
    SlowWorkerDetails: _slow,
    ZookeeperBackDetails: _away,
    LogFailedDetails: _log_failed,
    LogResumedDetails: _log_resumed,
    CheckpointFailedDetails: _not_saved,
    CheckpointDetails: _saved,
    LossSpikeDetails: _loss,
}
