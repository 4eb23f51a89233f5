"""Fold the events of a job into its incidents: what happened, why, what to do, what followed.

Several events tell of one incident: the end of a process, its eviction, the ring that is built
without it, and the worker that takes its place. All is told in the past tense, so that it stays
true when the incident is over.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from edl.event_text import EXPLANATIONS, LAST_WORDS, Severity
from edl.events import (
    CheckpointDetails,
    CheckpointFailedDetails,
    Details,
    EndedDetails,
    Event,
    EventKind,
    EvictedDetails,
    GenerationDetails,
    JobFailedDetails,
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
from edl.learning import LossSpike, short
from edl.record import Record
from edl.records import Stage
from edl.status import JobStatus
from edl.text import counted, duration_in_words, verb, workers

MAX_INCIDENTS = 40
MAX_SHOWN = 8
MAX_CLAUSES = 4  # workers, hosts or directories that are named one by one
MAX_SAVED = 100  # checkpoints whose steps are known
MAX_HOSTS = 400  # workers whose hosts are known
TOGETHER_S = 20.0  # losses of workers at most so far apart are one incident
SEEN_S = 30.0  # by which the clocks of the page and of a worker may differ
SAME_S = 600.0  # further events about the same worker, or further failures of the same kind
FULL = "No space left on device"  # as the system says it, in reasons of events
SILENT = "stopped answering"  # in what is said of a worker that is frozen or cut off
NONE_LEFT = "No worker was left that could go on; others were started."
# What begins a sentence that is told once only.
LOSS_NOW, WRITTEN = "At step ", "The checkpoint of step "
_WORKER = re.compile(r"w\d+\b")  # the name of a worker keeps its small letter

# The kinds of incidents in which a job lost workers. A stall may become one.
LOST = frozenset(
    {
        EventKind.WORKER_FAILED,
        EventKind.WORKER_FROZEN,
        EventKind.EVICTED,
        EventKind.GENERATION,
    }
)


@dataclass(frozen=True)
class Cause:
    """The cause of an incident, as far as it is known, with advice."""

    why: str  # in a sentence or two
    advice: str  # what to do; JOB stands for the name of the job


@dataclass(frozen=True)
class Incident(Record):
    """Something that happened to a job, as one or several events tell of it."""

    number: int
    at_s: float  # when it was noticed, in seconds since 1970
    last_s: float  # when the newest of its events was written
    kind: str  # the kind of the event that says most of it
    subject: str  # the disk or host that it is about; empty: none
    tone: str  # `bad` or `warning`
    step: int  # the newest complete step when it was noticed
    clauses: Mapping[str, str]  # worker -> what happened to it; other keys: to the job
    why: str
    advice: str
    followed: tuple[str, ...] = ()  # what followed, in short sentences
    times: int = 1  # how often it has happened
    is_over: bool = False  # whether the job has recovered from it
    until_s: float | None = None  # when it did, in seconds since 1970; None: it has not
    joined: int = 0  # the workers that have joined in the places of those that were lost
    spike: LossSpike | None = None  # the loss, if that has gone wrong

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(worker for worker in self.clauses if _WORKER.fullmatch(worker))

    @property
    def what(self) -> str:
        clauses = list(self.clauses.values())
        more = len(clauses) - MAX_CLAUSES
        text = "; ".join(clauses[:MAX_CLAUSES])
        text += f"; and {more} more workers" if more > 0 else ""
        text += f", after step {self.step:,}" if self.kind in LOST else ""
        text += "" if text.endswith(".") else "."
        return text if _WORKER.match(text) else text[:1].upper() + text[1:]

    def then(self, event_s: float, *sentences: str, is_over: bool | None = None) -> Self:
        """Return the incident with more of what followed."""
        new = tuple(one for one in sentences if one not in self.followed)
        over = self.is_over if is_over is None else is_over
        until_s = event_s if self.until_s is None else self.until_s
        return replace(
            self,
            last_s=max(self.last_s, event_s),
            followed=(*self.followed, *new),
            is_over=over,
            until_s=until_s if over else None,
        )


@dataclass(frozen=True)
class IncidentLog(Record):
    """The incidents of a job, the oldest first."""

    incidents: tuple[Incident, ...] = ()  # the newest incidents
    hosts: Mapping[str, str] = field(default_factory=dict)  # worker -> its host, as far as is known
    members: tuple[str, ...] = ()  # the workers of the newest generation, in rank order
    outage_why: str = ""  # why ZooKeeper did not answer lately, as the page has seen
    outage_s: float = 0.0  # when the page saw that last, in seconds since 1970
    trained: int = 0  # the newest generation that has completed a step after its switch
    step: int = 0  # the newest complete step that an event has told of
    saved: tuple[int, ...] = ()  # the steps of the newest checkpoints, the oldest first
    count: int = 0  # how many incidents there were

    def with_hosts(self, hosts: Mapping[str, str]) -> IncidentLog:
        known = {**self.hosts, **hosts}
        if known == self.hosts:
            return self
        return replace(self, hosts=dict(list(known.items())[-MAX_HOSTS:]))

    def with_event(self, event: Event) -> IncidentLog:
        log, fold = self, _FOLDS.get(type(event.details))
        if fold is not None:
            log = fold(self, event, cast(Any, event.details))
        elif EXPLANATIONS[event.kind].severity is not Severity.NORMAL:
            log = self.noted(event)
        back = isinstance(event.details, ResumedDetails)  # begins further back
        switched = event.generation if isinstance(event.details, SwitchDetails) else 0
        return replace(
            log,
            step=event.step if back else max(log.step, event.step),
            trained=max(log.trained, switched),
        )

    # --- for the functions below

    def first(self, event: Event, what: str = "", worker: str = "", subject: str = "") -> Incident:
        known = EXPLANATIONS[event.kind]
        return Incident(
            number=self.count,
            at_s=event.time,
            last_s=event.time,
            kind=str(event.kind),
            subject=subject,
            tone="bad" if known.severity is Severity.ERROR else "warning",
            step=event.step,
            clauses={worker: what or event.reason},
            why=known.why,
            advice=known.advice.replace("JOB WORKER", f"JOB {worker}".rstrip()),
        )

    def put(self, incident: Incident) -> IncidentLog:
        """Return the log with `incident`, in place of the one with the same number if there is."""
        if incident.number < self.count:
            found = tuple(incident if o.number == incident.number else o for o in self.incidents)
            return replace(self, incidents=found)
        found = (*self.incidents, incident)[-MAX_INCIDENTS:]
        return replace(self, incidents=found, count=self.count + 1)

    def newest(
        self, event_s: float, matches: Callable[[Incident], bool], within_s: float = SAME_S
    ) -> Incident | None:
        """Return the newest incident that `matches` and was told of lately; None: there is none."""
        for one in reversed(self.incidents):
            if matches(one) and event_s - one.last_s < within_s:
                return one
        return None

    def loss_of(self, event_s: float, names: Sequence[str]) -> Incident | None:
        """Return the incident in which one of the workers `names` was lost; None: there is none."""
        may_be = {*LOST, EventKind.STALLED}
        own = self.newest(
            event_s, lambda one: one.kind in may_be and bool({*names} & {*one.clauses})
        )
        return own or self.newest(
            event_s,
            lambda one: one.kind in may_be and not one.is_over and event_s - one.at_s < TOGETHER_S,
        )

    def placed(self, worker: str) -> str:
        host = self.hosts.get(worker, "")
        return f"worker {worker} on host {host}" if host else f"worker {worker}"

    def host_of(self, worker: str) -> str:
        return f"host {self.hosts[worker]}" if self.hosts.get(worker) else "its host"

    def noted(
        self, event: Event, what: str = "", subject: str = "", within_s: float = SAME_S
    ) -> IncidentLog:
        """Return the log with an incident of a kind that needs no more than its event's reason."""
        worker = getattr(event.details, "worker", None) or ""
        new = self.first(event, what, worker, subject)
        known = self.newest(
            event.time,
            lambda o: (o.kind, o.subject, o.is_over) == (new.kind, subject, False),
            within_s,
        )
        if known is None:
            return self.put(new)
        clauses = {**known.clauses, **new.clauses, **known.clauses}  # as first noticed
        return self.put(replace(known, clauses=clauses, last_s=event.time, times=known.times + 1))

    def lost(
        self, event: Event, worker: str, what: str, cause: Cause, known: Incident | None = None
    ) -> IncidentLog:
        known = known or self.loss_of(event.time, (worker,)) or self.first(event, what, worker)
        clauses = {name: clause for name, clause in known.clauses.items() if name}
        return self.put(
            replace(
                known,
                last_s=event.time,
                kind=str(event.kind),
                clauses={**clauses, worker: what},
                why=cause.why,
                advice=cause.advice,
            )
        )


# --- Workers that were lost, and what followed.


def of_an_end(details: EndedDetails) -> Cause:
    logs = f"`edl logs JOB {details.worker}`" if details.worker else "`edl logs JOB`"
    code = details.exit_code
    if code == -signal.SIGKILL:
        return Cause(
            "Signal 9 came from outside of edl: from a person, from a scheduler, or from the "
            "kernel because the memory of its host was used up.",
            "If nobody killed it, look for lack of memory on its host: `dmesg -T | grep -i oom`. "
            f"Read its last lines with {logs}. A replacement starts by itself.",
        )
    again = (
        "A replacement starts by itself; if it ends in the same way, its slot is disabled after "
        "some tries."
    )
    if code is not None and code < 0:
        crashed = -code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)
        why = "Native code of a library has crashed" if crashed else "The signal came from outside"
        return Cause(f"{why}; edl has not sent it.", f"Read its last lines with {logs}. {again}")
    message = f": {details.termination_message}" if details.termination_message else ""
    return Cause(
        f"Its script has ended by itself{message}.",
        f"Mend what its last lines say: {logs}. {again}",
    )


def of_a_silence(where: str, reason: str) -> Cause:
    return Cause(
        f"Its process or all of {where} was stopped (suspended, swapping, out of power), or the "
        f"network to it was cut. What was known: {reason}.",
        f"Look whether {where} answers: `ping`, then `ssh`. A replacement starts by itself as soon "
        "as the agent of a host with a free slot answers. Leave the "
        "old process alone: if it runs again, as after `kill -CONT`, it ends by itself.",
    )


def of_an_unseen_end(where: str, reason: str) -> Cause:
    return Cause(
        f"Its process is gone, and no agent has said how it ended ({reason}).",
        f"Look whether {where} runs; then its last lines: `edl logs JOB`.",
    )


def _failed(log: IncidentLog, event: Event, details: WorkerFailedDetails) -> IncidentLog:
    """Fold the end of a worker's process; what was known before of its loss counts less."""
    log = log.with_hosts({details.worker: details.host} if details.worker else {})
    name = details.worker or f"the process in slot {details.slot}"
    code = details.exit_code
    ended = "ended" if code is None else f"ended with exit code {code}"
    if code is not None and code < 0:
        known_signals = {one.value: f" ({one.name})" for one in signal.Signals}
        ended = f"was killed by signal {-code}{known_signals.get(-code, '')}"
    known, cause = log.loss_of(event.time, (name,)), of_an_end(details)
    if (
        known is not None
        and known.kind == EventKind.EVICTED
        and SILENT in known.clauses.get(name, "")
    ):
        return log.put(known.then(event.time, f"{name} {ended}, when it was lost already."))
    if (details.exit_code or 0) > 0:
        # The error of a script that its replacements end by, too, is one incident; kills are
        # incidents each.
        same = log.newest(
            event.time,
            lambda o: (o.kind, o.why) == (event.kind, cause.why) and name not in o.clauses,
        )
        if same is not None and (known is None or known.number != same.number):
            others = tuple(one for one in log.incidents if one is not known)
            log, known = replace(log, incidents=others), replace(same, times=same.times + 1)
    who = f"worker {name}" if details.worker else name
    return log.lost(event, name, f"{who} on host {details.host} {ended}", cause, known)


def _job_failed(log: IncidentLog, event: Event, _details: JobFailedDetails) -> IncidentLog:
    """Fold the failure of a job into the loss that it follows from, whose cause is told there."""
    loss = log.newest(event.time, lambda one: one.kind == EventKind.WORKER_FAILED, TOGETHER_S)
    if loss is None:
        return log.noted(event)
    failed = f"The job failed: {event.reason.partition(LAST_WORDS)[0]}."
    advice = EXPLANATIONS[event.kind].advice
    return log.put(replace(loss.then(event.time, failed), advice=advice, tone="bad"))


def _frozen(log: IncidentLog, event: Event, details: WorkerFrozenDetails) -> IncidentLog:
    log = log.with_hosts({details.worker: details.host})
    if details.stacks:
        cause = of_a_silence(f"host {details.host}", event.reason)
        stacks = f" Where its threads were: {details.stacks} on that host."
        cause = replace(cause, advice=cause.advice + stacks)
        return log.lost(event, details.worker, f"{log.placed(details.worker)} {SILENT}", cause)
    cause = Cause(
        "A signal had suspended its process: SIGSTOP (`kill -STOP`), or SIGTTIN when it read from "
        "a terminal. The others waited for it, so its agent killed it.",
        f"Find out what suspends processes on host {details.host}. A replacement starts by itself. "
        "If that is intended, give it time: EDL_SUSPENDED_S=60 on that host.",
    )
    return log.lost(event, details.worker, f"{log.placed(details.worker)} was suspended", cause)


def _evicted(log: IncidentLog, event: Event, details: EvictedDetails) -> IncidentLog:
    """Fold an eviction: the end of a process that is known already says more."""
    worker = details.worker
    known = log.loss_of(event.time, (worker,))
    ended = (EventKind.WORKER_FAILED, EventKind.WORKER_FROZEN)
    if known is not None and worker in known.workers and known.kind in ended:
        return log.put(known.then(event.time))
    reason = event.reason.partition(": ")[2] or event.reason
    if reason.startswith("its process is gone"):
        cause = of_an_unseen_end(log.host_of(worker), reason)
        return log.lost(event, worker, f"{log.placed(worker)} ended", cause)
    if "frozen" in reason:
        reason = reason.removeprefix("it is frozen or cut off: ").removeprefix("it is frozen: ")
        cause = of_a_silence(log.host_of(worker), reason)
        return log.lost(event, worker, f"{log.placed(worker)} {SILENT}", cause)
    advice = EXPLANATIONS[event.kind].advice.replace("JOB WORKER", f"JOB {worker}")
    cause = Cause(f"The leader says: {reason}.", advice)
    return log.lost(event, worker, f"{log.placed(worker)} was taken out of the job", cause)


def _stalled(log: IncidentLog, event: Event, details: StalledDetails) -> IncidentLog:
    # A leader of an older edl that was suspended may tell of a stall that is none. Workers end a
    # step one after the other: the next one may be complete on some.
    if event.generation < log.trained or event.step + 1 < log.step:
        return log
    worker = details.workers[0] if details.workers else ""
    what = f"no step completed after step {event.step:,}: {event.reason}"
    new = log.first(event, what, worker)
    if worker and "does not answer" in event.reason:
        cause = of_a_silence(log.host_of(worker), event.reason)
        new = replace(new, why=cause.why, advice=cause.advice)
    known = log.newest(event.time, lambda one: one.kind == new.kind and not one.is_over)
    if known is not None:
        new = replace(new, number=known.number, at_s=known.at_s, step=known.step)
    return log.put(new)


def _new_ring(log: IncidentLog, event: Event, details: GenerationDetails) -> IncidentLog:
    """Fold a new ring: it goes on without workers that were lost, or others take their place."""
    before, left = log.members, details.left
    hosts = {worker: host for host, names in details.hosts.items() for worker in names}
    log = replace(log.with_hosts(hosts), members=details.members)
    if not details.members or event.generation <= 1:  # the job ends, or begins
        return log
    # Where a ring broke it is a loss; else they may leave.
    if left and details.repair and log.loss_of(event.time, left) is None:
        for worker in left:
            cause = of_an_unseen_end(log.host_of(worker), event.reason)
            log = log.lost(event, worker, f"{log.placed(worker)} was lost", cause)
    known = log.loss_of(event.time, left) if left else None
    if known is not None and (details.repair or {*left} & {*known.workers}):
        survivors = len({*details.members} - {*details.joined})
        others = "worker" if survivors == 1 else workers(survivors)
        went = f"The other {others} went on from step {event.step:,}." if survivors else NONE_LEFT
        if survivors and details.repair and not known.is_over:
            # Who told of the loss may have known an older step.
            known = replace(known, step=event.step)
        log = log.put(known.then(event.time, went, is_over=True))
    # Those that join take the empty places, of the newest loss first.
    joined = list(details.joined if before else ())
    for one in reversed(log.incidents):
        names = joined[: max(0, len(one.workers) - one.joined)] if one.kind in LOST else []
        if names:
            joined = joined[len(names) :]
            after_s = max(0.0, event.time - one.at_s)
            came = f"{listed(names)} joined {after_s:.0f} s after it"
            trained = f"{workers(len(details.members))} trained then."
            told = one.then(event.time, f"{came}: {trained}")
            log = log.put(replace(told, joined=one.joined + len(names)))
    return log


def _resumed(log: IncidentLog, event: Event, details: ResumedDetails) -> IncidentLog:
    """Fold the checkpoint from which a job went on that had lost all its workers."""
    known = log.newest(event.time, lambda one: NONE_LEFT in one.followed)
    if known is None or details.lost_steps is None:
        return log
    again = f"at least {counted(details.lost_steps, 'step', groups=True)} are trained again"
    went = f"They went on from the checkpoint of step {event.step:,}; {again}."
    return log.put(known.then(event.time, went))


# --- What hinders a job that trains on: a slow worker, a full disk, ZooKeeper, a wrong loss.


def _slow(log: IncidentLog, event: Event, details: SlowWorkerDetails) -> IncidentLog:
    worker = details.worker
    log = log.with_hosts({worker: details.host} if details.host else {})
    times, where = details.compute_s / max(details.others_s, 1e-9), log.host_of(worker)
    what = (
        f"all workers waited for {log.placed(worker)} in each step: it computed "
        f"{1000 * details.compute_s:.0f} ms, {times:.1f} times as long as the others "
        f"({1000 * details.others_s:.0f} ms)"
    )
    new = replace(
        log.first(event, what, worker),
        why=f"Something else ran on {where}, its GPU or processor was throttled, or its data came "
        "slowly.",
        advice=f"Look what else runs on {where} (`top`, `nvidia-smi`). `edl drain JOB {worker}` "
        "takes it out of the job; a policy for stragglers gives such workers smaller batches.",
    )
    known = log.newest(
        event.time, lambda o: o.kind == new.kind and worker in o.clauses and not o.is_over
    )
    if known is not None:
        new = replace(new, number=known.number, at_s=known.at_s, times=known.times + 1)
    return log.put(new)


OF_ZOOKEEPER = Cause(
    "The ZooKeeper server was stopped, overloaded or had no disk space, or the network to it was "
    "cut.",
    "Nothing, if it is rare. Else look at the load, the disk and the log of ZooKeeper's hosts "
    "(`edl zookeeper status` for the one that edl has started).",
)


def _away(log: IncidentLog, event: Event, details: ZookeeperBackDetails) -> IncidentLog:
    """Fold the end of an outage, of which the page may have seen the cause."""
    is_seen = log.outage_why and abs(event.time - log.outage_s) < details.away_s + SEEN_S
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
        log.first(event, what),
        at_s=event.time - details.away_s,
        step=details.from_step if details.from_step >= 0 else event.step,
        why=log.outage_why if is_seen else OF_ZOOKEEPER.why,
        advice=OF_ZOOKEEPER.advice,
    )
    return log.put(new.then(event.time, f"{went_on}. ZooKeeper answered again.", is_over=True))


def _on_full_disk(
    log: IncidentLog,
    event: Event,
    details: LogFailedDetails | CheckpointFailedDetails,
    host: str,
    clause: tuple[str, str],
) -> IncidentLog:
    """Fold a failure to write to a full disk: all that could not be written there is one incident.

    Each try to write a checkpoint, and each worker whose log cannot be written, logs an event.
    """
    in_reason = event.reason.partition(FULL)[2].strip(": ").rpartition("/")[0]
    is_log = isinstance(details, LogFailedDetails)
    folder = (details.path.rpartition("/")[0] if is_log else details.path) or in_reason
    disk = details.disk or folder
    known = log.newest(
        event.time,
        lambda o: o.subject == disk and (not o.is_over or event.time - o.last_s < SAME_S),
        math.inf,
    )
    where = f" on host {host}" if host else ""
    full = f"the disk at {disk}{where} ran out of space"
    new = known or log.first(event, full, subject=disk)
    until = "only those from before can be resumed from"
    if log.saved:
        until = f"the job goes back to step {log.saved[-1]:,} if all workers are lost"
    return log.put(
        replace(
            new.then(event.time, is_over=False),
            times=new.times + (clause[0] in new.clauses),
            clauses={**new.clauses, clause[0]: clause[1]},
            why=f"The system said `{FULL}` when edl wrote to {folder}. What had filled the disk, "
            "edl does not know. Training went on without what could not be written.",
            advice=f"Free space there{where}: `df -h {disk}` shows the disk, `du -xh --max-depth=2 "
            f"{disk}` what fills it. Checkpoints and logs then go on by themselves; until a "
            f"checkpoint is written, {until}, and what was printed meanwhile is lost.",
        )
    )


def _log_failed(log: IncidentLog, event: Event, details: LogFailedDetails) -> IncidentLog:
    worker, host = details.worker, details.host
    log = log.with_hosts({worker: host})
    if FULL in event.reason:
        clause = worker, f"{worker} could not write its log"
        return _on_full_disk(log, event, details, host, clause)
    failure = event.reason.partition(": ")[2] or event.reason
    return log.noted(event, f"{log.placed(worker)} could not write its log: {failure}", host)


def _log_resumed(log: IncidentLog, event: Event, details: LogResumedDetails) -> IncidentLog:
    known = log.newest(
        event.time,
        lambda one: one.kind in _UNWRITTEN and details.worker in one.clauses,
        math.inf,
    )
    if known is None:
        return log
    lost = counted(details.lost_bytes, "byte", groups=True)
    wrote = f"{details.worker} wrote its log again; {lost} of output were lost."
    return log.put(known.then(event.time, wrote, is_over=True))


def _not_saved(log: IncidentLog, event: Event, details: CheckpointFailedDetails) -> IncidentLog:
    """Fold a checkpoint that was not written; one of a ring that was left behind is not missing."""
    if details.superseded:
        return log
    first = log.members[0] if log.members else ""
    host = log.hosts.get(first, "")
    if FULL in event.reason:
        clause = _CHECKPOINT, f"the checkpoint of step {event.step:,} was not written"
        return _on_full_disk(log, event, details, host, clause)
    where = f" ({log.placed(first)})" if first else ""
    return log.noted(event, f"{event.reason}{where}", host, math.inf)


def _saved(log: IncidentLog, event: Event, _details: CheckpointDetails) -> IncidentLog:
    """Fold a checkpoint; after a resume those of later steps count no more."""
    before = [step for step in log.saved if step < event.step]
    log = replace(log, saved=(*before, event.step)[-MAX_SAVED:])
    for one in log.incidents:
        is_missing = one.kind == EventKind.CHECKPOINT_FAILED or _CHECKPOINT in one.clauses
        is_told = one.is_over and any(text.startswith(WRITTEN) for text in one.followed)
        if is_missing and not is_told:
            wrote = f"{WRITTEN}{event.step:,} was written."
            log = log.put(one.then(event.time, wrote, is_over=True))
    return log


_CHECKPOINT = "checkpoint"  # the key of its clause, beside those of workers
_UNWRITTEN = frozenset({EventKind.LOG_FAILED, EventKind.CHECKPOINT_FAILED})


def of_a_loss(spike: LossSpike, saved: Sequence[int] = ()) -> Cause:
    rate, before, top = spike.learning_rate, spike.rate_before, spike.risen_to
    rose_at = spike.rate_step if before is not None else None
    good = spike.lowest_step if rose_at is None else rose_at - 1
    back = "Stop the job (`edl stop JOB`) and start it again,"
    if spike.lowest is not None and good > 1:
        kept = [step for step in saved if step <= good]
        last = f"the last good checkpoint is that of step {kept[-1]:,}" if kept else "copy one"
        back = (
            f"Stop the job now (`edl stop JOB`): checkpoints after step {good:,} are spoiled, and "
            "only the newest are kept (`keep` in the script, 3 by default). "
            f"{last[:1].upper()}{last[1:]}{'. Copy it' if kept else ' of before'} into a directory "
            "of its own (`edl checkpoint list` shows the path), and go on from there (`edl run "
            "--resume-from DIRECTORY`), or start again if it is gone,"
        )
    if rate is None or top is None:
        return Cause(
            "Most often the learning rate is too high; edl does not know it here. Else the data "
            "have changed, or half precision overflows.",
            f"{back} with a lower learning rate.",
        )
    if before is None or rose_at is None:
        return Cause(
            f"The learning rate, {short(rate)}, has not risen before, so it is too high for this "
            "model from the start; or the data are not what the model expects, or half precision "
            "overflows.",
            f"{back} with a tenth of the learning rate ({short(rate / 10)}), and a tenth of that "
            "until the loss falls. If no rate helps, look at the data, and at the loss in float32.",
        )
    scaled = (
        " It rose with the number of workers: the rule that scales it may not hold for this model "
        "(`scaling` in the script or the policy)."
        if spike.np_before != spike.np_after
        else ""
    )
    return Cause(
        f"The likely cause is the learning rate, which rose from {short(before)} to {short(top)} "
        f"at about step {rose_at:,}.{scaled}",
        f"{back} with the learning rate of before ({short(before)}), or one that rises slowly.",
    )


def _loss(log: IncidentLog, event: Event, details: LossSpikeDetails) -> IncidentLog:
    spike, cause = details.spike, of_a_loss(details.spike, log.saved)
    since = f" at step {details.at_step:,}"
    if spike.loss is None:
        was = (
            f"; it was {short(spike.lowest)} at step {spike.lowest_step:,}"
            if spike.lowest is not None
            else ", and never was"
        )
        what = f"the loss was not finite (inf or nan){since}{was}"
    else:
        times = spike.loss / spike.lowest if spike.lowest else 0.0
        what = (
            f"the loss rose to {short(spike.loss)}{since}, {short(times)} times its lowest "
            f"value ({short(spike.lowest or 0.0)} at step {spike.lowest_step:,})"
        )
    new = replace(log.first(event, what), why=cause.why, advice=cause.advice, spike=spike)
    known = log.newest(event.time, lambda one: one.kind == new.kind and one.why == new.why)
    if known is None:
        return log.put(new)
    now = "not finite" if spike.loss is None else short(spike.loss)  # the same rise
    earlier = tuple(one for one in known.followed if not one.startswith(LOSS_NOW))
    grown = replace(known, followed=earlier)
    return log.put(grown.then(event.time, f"{LOSS_NOW}{details.at_step:,} it was {now}."))


_FOLDS: Mapping[type[Details], Callable[[IncidentLog, Event, Any], IncidentLog]] = {
    WorkerFailedDetails: _failed,
    WorkerFrozenDetails: _frozen,
    EvictedDetails: _evicted,
    JobFailedDetails: _job_failed,
    StalledDetails: _stalled,
    GenerationDetails: _new_ring,
    ResumedDetails: _resumed,
    SlowWorkerDetails: _slow,
    ZookeeperBackDetails: _away,
    LogFailedDetails: _log_failed,
    LogResumedDetails: _log_resumed,
    CheckpointFailedDetails: _not_saved,
    CheckpointDetails: _saved,
    LossSpikeDetails: _loss,
}


# --- Write the incidents of a job as its page tells them: with the present, the open ones first.


@dataclass(frozen=True)
class IncidentView(Record):
    """An incident as the page tells it."""

    number: int
    at_s: float  # when it was noticed, in seconds since 1970
    kind: str  # the kind of the event that says most of it
    tone: str  # `bad`, `warning`, or `over` if the job has recovered from it
    step: int  # the newest complete step then
    until_s: float | None  # when it was over; None: it is not, or what followed says when
    what: str  # what happened, in a sentence
    why: str  # why, as far as is known
    advice: str
    since: str  # what followed; empty: nothing yet


def incident_views(log: IncidentLog, status: JobStatus, standing_s: float) -> list[IncidentView]:
    lost = {worker for one in log.incidents if one.kind in LOST for worker in one.workers}
    found = [_view(one, log, status, standing_s, lost) for one in log.incidents]
    found.sort(key=lambda one: (one.tone == "over", -one.at_s))
    return sorted(found[:MAX_SHOWN], key=lambda one: -one.at_s)


def _view(
    one: Incident, log: IncidentLog, status: JobStatus, standing_s: float, lost: set[str]
) -> IncidentView:
    followed, is_over, runs = list(one.followed), one.is_over, not status.state.over
    concerned = {*one.workers}
    if one.kind in (EventKind.SLOW_WORKER, EventKind.LOG_FAILED) and not is_over:
        is_slow = one.kind == EventKind.SLOW_WORKER
        if runs and concerned and concerned <= lost and _CHECKPOINT not in one.clauses:
            are = verb(len(concerned), "is", "are")
            followed.append(f"{listed(one.workers)} {are} not in the job any more.")
            is_over = True
        elif runs and is_slow and status.slowest not in concerned:
            followed.append("Then no worker waited for it any more.")
            is_over = True
        is_over |= is_slow and not runs
    if one.kind == EventKind.STALLED and runs and status.step > one.step and not standing_s:
        followed.append(f"Steps completed again: the job is at step {status.step:,}.")
        is_over = True
    wanted = sum((status.desired or status.assigned).values())
    if one.kind in LOST and is_over and runs and status.world_size < wanted and not one.joined:
        new = [m for m in status.members if m.stage in (Stage.PREPARING, Stage.READY)]
        who = listed([f"{member.id} on host {member.host}" for member in new])
        prepares = f"; {who} {verb(len(new), 'prepares', 'prepare')} to join" if new else ""
        np = status.world_size
        trains = f"{np} of {workers(wanted)} {verb(np, 'trains', 'train')}"
        followed.append(f"Nobody has taken its place yet{prepares}: {trains}.")
        is_over = False
    if one.times > 1:
        followed.insert(0, f"It has happened {counted(one.times, 'time')} in all.")
    advice = one.advice if one.spike is None else of_a_loss(one.spike, log.saved).advice
    return IncidentView(
        number=one.number,
        at_s=one.at_s,
        kind=one.kind,
        tone="over" if is_over else "warning" if one.is_over else one.tone,
        step=one.step,
        until_s=one.until_s if is_over and one.kind not in LOST else None,
        what=one.what,
        why=one.why,
        advice=re.sub(r"\bJOB\b", lambda _: status.job, advice),
        since=" ".join(followed),
    )


def with_incidents(
    words: str, tone: str, incidents: Sequence[IncidentView], joining: int
) -> tuple[str, str]:
    if tone != "good":
        return words, tone
    lasting = {one.kind for one in incidents if one.tone != "over"}
    if EventKind.LOSS_SPIKE in lasting:
        return "training, with a wrong loss", "bad"
    urgent = {EventKind.SLOW_WORKER, *_UNWRITTEN}  # whose end is told, too
    if not joining:
        urgent |= {*LOST, EventKind.STALLED}
    return (f"{words}; see what happened", "warning") if lasting & urgent else (words, tone)


def listed(names: Sequence[str]) -> str:
    """Return `names` as a list in words, of which at most four are named."""
    shown = list(names[:MAX_CLAUSES])
    if len(names) > MAX_CLAUSES:
        shown.append(f"{len(names) - MAX_CLAUSES} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
