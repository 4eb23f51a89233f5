"""Fold the events of a job into its incidents: what happened, why, what to do, what followed.

Several events tell of one incident: the end of a process, its eviction, the ring that is built
without it, and the worker that takes its place. :class:`IncidentLog` brings them together. It is
bounded: the newest :data:`MOST_INCIDENTS` are kept.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Self, cast

from edl.dashboard.view.charts import WorkerRow
from edl.dashboard.view.tense import in_tense, tenses
from edl.event_text import EXPLANATIONS, LAST_WORDS, Severity, without_step_s
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
from edl.learning import LossSpike, short
from edl.record import Record
from edl.records import Stage
from edl.status import JobStatus, holds_up
from edl.text import counted, duration_in_words, verb, workers

# ------------------------------------------------------------
# Describe one full disk by all that could not be written to it: checkpoints and logs.
#
# Each try to write a checkpoint, and each worker whose log cannot be written, logs an event of its
# own. `FullDisk` brings those of one disk together, so that the page tells of it once.


CANNOT = tenses("cannot", "could not")

FULL = "No space left on device"  # as the system says it, in reasons of events

MOST_NAMES = 4  # workers, hosts or directories that are named one by one


def is_full(reason: str) -> bool:
    """Return whether the `reason` of an event says that a disk is full."""
    return FULL in reason


def folder_of(reason: str) -> str:
    """Return the directory of the path at the end of a `reason`; empty: it has no path."""
    return reason.partition(FULL)[2].strip(": ").rpartition("/")[0]


@dataclass(frozen=True)
class FullDisk(Record):
    """A disk without space, with what could not be written to it."""

    disk: str  # where it is mounted, or a directory on it
    hosts: tuple[str, ...] = ()  # the hosts that could not write to it, as far as they are known
    folders: tuple[str, ...] = ()  # the directories that they could not write to
    logs: tuple[str, ...] = ()  # the workers whose logs could not be written
    checkpoints: int = 0  # the number of checkpoints that could not be written
    first_step: int = -1
    last_step: int = -1
    # the step of the newest checkpoint that was written before; -1: not known
    newest_step: int = -1
    resumed: tuple[str, ...] = ()  # the workers that write their logs again
    lost_bytes: int = 0  # the bytes of output that are missing in their logs
    saved_step: int = -1  # the step of the next checkpoint that was written; -1: none was

    def seen(self, host: str, folder: str) -> Self:
        """Return the record with one more host and directory; empty ones are left out."""
        return replace(
            self, hosts=_with(self.hosts, host), folders=_with(self.folders, folder), saved_step=-1
        )

    def with_log(self, worker: str) -> Self:
        """Return the record with a worker whose log could not be written."""
        return replace(self, logs=_with(self.logs, worker))

    def with_checkpoint(self, step: int, saved: Sequence[int]) -> Self:
        """Return the record with one more checkpoint that was not written."""
        first = step if self.first_step < 0 else self.first_step
        newest = max(saved, default=-1)
        return replace(
            self,
            checkpoints=self.checkpoints + 1,
            first_step=first,
            last_step=step,
            newest_step=newest,
        )

    def with_resumed(self, worker: str, lost_bytes: int) -> Self:
        """Return the record with a worker that writes its log again, without `lost_bytes`."""
        resumed = _with(self.resumed, worker)
        return replace(self, resumed=resumed, lost_bytes=self.lost_bytes + lost_bytes)

    @property
    def what(self) -> str:
        """The clause that says which disk is full, and what was not written."""
        missing = []
        if self.checkpoints == 1:
            missing.append(f"the checkpoint of step {self.first_step:,} was not written")
        elif self.checkpoints:
            missing.append(
                f"{self.checkpoints} checkpoints were not written, from step "
                f"{self.first_step:,} to step {self.last_step:,}"
            )
        if self.logs:
            what = verb(len(self.logs), "its log", "their logs")
            missing.append(f"{listed(self.logs)} {CANNOT} write {what}")
        hosts = f" of {verb(len(self.hosts), 'host', 'hosts')} {listed(self.hosts)}"
        of_hosts = hosts if self.hosts else ""
        full = f"{tenses('is', 'was')} full"
        return f"the disk at {self.disk}{of_hosts} {full}: {'; '.join(missing)}"

    @property
    def why(self) -> str:
        """The sentences that quote the system's error and say what edl does not know."""
        writes = f" when edl {tenses('writes', 'wrote')} to {listed(self.folders)}"
        return (
            f"The system {tenses('says', 'said')} `{FULL}`{writes if self.folders else ''}. What "
            f"{tenses('has', 'had')} filled the disk, edl does not know. Training "
            f"{tenses('goes', 'went')} on without what could not be written."
        )

    @property
    def advice(self) -> str:
        """The sentences that say where to free space, and what then goes on by itself."""
        on = f" on {verb(len(self.hosts), 'host', 'hosts')} {listed(self.hosts)}"
        then = []
        if self.checkpoints:
            back = (
                f"the job goes back to step {self.newest_step:,} if all workers are lost"
                if self.newest_step >= 0
                else "only those from before can be resumed from"
            )
            then.append(f"edl tries the next checkpoint by itself; until one is written, {back}.")
        if self.logs:
            then.append("Logs go on by themselves; what was printed meanwhile is lost.")
        return (
            f"Free space there{on if self.hosts else ''}: `df -h {self.disk}` shows the disk, "
            f"`du -xh --max-depth=2 {self.disk}` what fills it. {' '.join(then)}"
        )

    @property
    def followed(self) -> tuple[str, ...]:
        """The sentences that say which writes have succeeded since; empty if none has."""
        found = []
        if self.saved_step >= 0:
            found.append(f"The checkpoint of step {self.saved_step:,} was written.")
        if self.resumed:
            wrote = f"wrote {verb(len(self.resumed), 'its log', 'their logs')} again"
            lost = counted(self.lost_bytes, "byte", groups=True)
            were = verb(self.lost_bytes, "was", "were")
            found.append(f"{listed(self.resumed)} {wrote}; {lost} of output {were} lost.")
        return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Return `names` as a list in words, of which at most four are named."""
    shown = list(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        shown.append(f"{len(names) - MOST_NAMES} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if not name or name in names else tuple(sorted((*names, name)))


# ------------------------------------------------------------
# Say in sentences why something happened to a job, and what to do, as far as events tell it.


THEIR_HOSTS = "their hosts"  # in place of the name of one


@dataclass(frozen=True)
class Cause:
    """The cause of an incident, as far as it is known, with advice."""

    why: str  # why it happened, in a sentence or two
    advice: str  # what to do, in a sentence or two


def how_it_ended(code: int | None) -> str:
    """Return how a process has ended, by its exit `code`; None: not known."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def of_an_end(details: EndedDetails) -> Cause:
    """Return why a worker's process has ended, by its exit code, and what to do."""
    where = THEIR_HOSTS if details.host == THEIR_HOSTS else f"host {details.host}"
    logs = f"`edl logs JOB {details.worker}`" if details.worker else "`edl logs JOB`"
    code = details.exit_code
    if code == -signal.SIGKILL:
        return Cause(
            "Signal 9 came from outside of edl: from a person, from a scheduler, or from the "
            f"kernel because the memory of {where} was used up.",
            f"If nobody killed it, look for lack of memory on {where}: `dmesg -T | grep -i oom`. "
            f"Read its last lines with {logs}. A replacement starts by itself.",
        )
    if code is not None and code < 0:
        crashed = -code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)
        why = "Native code of a library has crashed" if crashed else "The signal came from outside"
        return Cause(
            f"{why}; edl has not sent it.",
            f"Read its last lines with {logs}. A replacement starts by itself; if it ends in the "
            "same way, its slot is disabled after some tries.",
        )
    said = f": {details.termination_message}" if details.termination_message else ""
    return Cause(
        f"Its script has ended by itself{said}.",
        f"Mend what its last lines say: {logs}. A replacement starts by itself; if it fails in the "
        "same way, its slot is disabled after some tries.",
    )


def of_a_silence(host: str, reason: str) -> Cause:
    """Return why a worker was given up that did not answer, and what to do."""
    where = f"host {host}" if host else "its host"
    return Cause(
        f"Its process or all of {where} was stopped (suspended, swapping, out of power), or the "
        f"network to it was cut. What {tenses('is', 'was')} known: {reason}.",
        f"Look whether {where} answers: `ping`, then `ssh`. A replacement starts by itself as soon "
        "as the agent of a host with a free slot answers. Leave the "
        "old process alone: if it runs again, as after `kill -CONT`, it ends by itself.",
    )


def of_a_suspension(host: str) -> Cause:
    """Return why a worker was killed that SIGSTOP had suspended on `host`, and what to do."""
    return Cause(
        "A signal had suspended its process: SIGSTOP (`kill -STOP`), or SIGTTIN when it read from "
        "a terminal. The others waited for it, so its agent killed it.",
        f"Find out what suspends processes on host {host}. A replacement starts by itself. If that "
        "is intended, give it time: EDL_SUSPENDED_S=60 on that host.",
    )


def of_a_loss(spike: LossSpike, saved: Sequence[int] = ()) -> Cause:
    """Return why a loss is not finite or has risen, as far as is known, and what to do."""
    rate, before, top = spike.learning_rate, spike.rate_before, spike.risen_to
    rose = before is not None and spike.rate_step is not None
    good = (spike.rate_step or 0) - 1 if rose else spike.lowest_step
    back = (
        f"Stop the job now (`edl stop JOB`): {_good_checkpoint(good, saved)} into a directory of "
        "its own (`edl checkpoint list` shows the path), and go on from there (`edl run "
        "--resume-from DIRECTORY`), or start again if it is gone,"
        if spike.lowest is not None and good > 1
        else "Stop the job (`edl stop JOB`) and start it again,"
    )
    if rate is None or top is None:
        return Cause(
            "Most often the learning rate is too high; edl does not know it here. Else the data "
            "have changed, or half precision overflows.",
            f"{back} with a lower learning rate.",
        )
    if before is None or spike.rate_step is None:
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
        f"at about step {spike.rate_step:,}.{scaled}",
        f"{back} with the learning rate of before ({short(before)}), or one that rises slowly.",
    )


def _good_checkpoint(good: int, saved: Sequence[int]) -> str:
    """Return clauses that say which checkpoint to copy."""
    kept = "only the newest are kept (`keep` in the script, 3 by default)"
    before = [step for step in saved if step <= good]
    if not before:
        return f"checkpoints after step {good:,} are spoiled, and {kept}. Copy one of before"
    last, spoiled = f"that of step {before[-1]:,}", len(saved) - len(before)
    those = verb(spoiled, "the one after it is", f"the {spoiled} after it are")
    later = those if spoiled else "those after it will be"
    return f"the last good checkpoint is {last}, {later} spoiled, and {kept}. Copy it"


WHILE_ZOOKEEPER_IS_AWAY = (
    "On the host where edl has started it, `edl zookeeper start` starts it again with its data, "
    "and `edl zookeeper status` names its log. The job goes on by itself when ZooKeeper answers."
)

"""The end of each advice about a ZooKeeper that does not answer."""

OF_ZOOKEEPER_AWAY = "Let it run again: start the server, give it disk space, or mend the network."

OF_ZOOKEEPER = Cause(
    "The ZooKeeper server was stopped, overloaded or had no disk space, or the network to it was "
    "cut.",
    "Nothing, if it is rare. Else look at the load, the disk and the log of ZooKeeper's hosts "
    "(`edl zookeeper status` for the one that edl has started).",
)


def of_a_slow_worker(worker: str, host: str) -> Cause:
    """Return why a worker may be slow, and what to do; `host` is empty if it is not known."""
    where = f"host {host}" if host else "its host"
    return Cause(
        f"Something else {tenses('runs', 'ran')} on {where}, its GPU or processor "
        f"{tenses('is', 'was')} throttled, or its data {tenses('come', 'came')} slowly.",
        f"Look what else runs on {where} (`top`, `nvidia-smi`). `edl drain JOB {worker}` takes it "
        "out of the job; a policy for stragglers gives such workers smaller batches.",
    )


# ------------------------------------------------------------
# Define what a job's page says of one incident: what happened, why, what to do, what followed.


_WORKER = re.compile(r"w\d+\b")  # the name of a worker keeps its small letter

MOST_CLAUSES = 3  # workers of an incident that are named one by one


@dataclass(frozen=True)
class Incident(Record):
    """Something that happened to a job, as one or several events tell of it."""

    number: int
    at_s: float  # when it was noticed, in seconds since 1970
    last_s: float  # when the newest of its events was written
    kind: str  # the kind of the event that says most of it
    tone: str  # `bad` or `warning`
    step: int  # the newest complete step when it was noticed
    host: str  # the host that it is about; empty: not known, or several
    clauses: Mapping[str, str]  # worker -> what happened to it; "" -> what happened to the job
    why: str  # what is known of the cause, in a sentence or two
    advice: str  # what to do; JOB stands for the name of the job
    followed: tuple[str, ...] = ()  # what followed, in short sentences
    times: int = 1  # how often it has happened
    is_over: bool = False  # whether the job has recovered from it
    over_s: float | None = None  # when it did, in seconds since 1970; None: it has not
    # the workers that have joined in the places of those that were lost
    joined: tuple[str, ...] = ()
    # what could not be written, if it is a full disk; None: it is not
    full_disk: FullDisk | None = None
    spike: LossSpike | None = None  # the loss, if that has gone wrong; None: it has not

    @classmethod
    def of(cls, number: int, event: Event, what: str = "", worker: str = "") -> Self:
        """Return the incident that `event` tells of, with what is known of events of its kind."""
        known = EXPLANATIONS[event.kind]
        return cls(
            number=number,
            at_s=event.time,
            last_s=event.time,
            kind=str(event.kind),
            tone="bad" if known.severity is Severity.ERROR else "warning",
            step=event.step,
            host="",
            clauses={worker: what or event.reason},
            why=known.why,
            advice=known.advice.replace("JOB WORKER", f"JOB {worker}".rstrip()),
        )

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that it happened to."""
        return tuple(worker for worker in self.clauses if worker)

    @property
    def has_empty_place(self) -> bool:
        """Whether it is a loss of more workers than have joined since."""
        lost = self.kind in LOST and self.kind != EventKind.STALLED
        return lost and len(self.joined) < len(self.workers)

    @property
    def what(self) -> str:
        """A sentence that says what happened, in both tenses, to at most three workers by name."""
        clauses = list(self.clauses.values())
        text = "; ".join(clauses[:MOST_CLAUSES])
        more = len(clauses) - MOST_CLAUSES
        is_loss = self.kind in LOST and self.kind != EventKind.STALLED
        text += f"; and {more} more workers" if more > 0 else ""
        text += f", after step {self.step:,}" if is_loss else ""
        text += "" if text.endswith(".") else "."
        return text if _WORKER.match(text) else text[:1].upper() + text[1:]

    def then(self, event_s: float, *sentences: str, is_over: bool | None = None) -> Self:
        """Return the incident with more of what followed."""
        new = tuple(one for one in sentences if one not in self.followed)
        over, over_s = self.is_over if is_over is None else is_over, self.over_s
        return replace(
            self,
            last_s=max(self.last_s, event_s),
            followed=(*self.followed, *new),
            is_over=over,
            over_s=(event_s if over_s is None else over_s) if over else None,
        )

    def of_disk(self, disk: FullDisk, event_s: float, is_over: bool) -> Self:
        """Return the incident of a full disk with what is known of the disk now."""
        told = replace(
            self,
            clauses={"": disk.what},
            host=disk.hosts[0] if len(disk.hosts) == 1 else "",
            why=disk.why,
            advice=disk.advice,
            followed=disk.followed,
            full_disk=disk,
        )
        return told.then(event_s, is_over=is_over)


LOST = frozenset(
    {
        str(EventKind.WORKER_FAILED),
        str(EventKind.WORKER_FROZEN),
        str(EventKind.EVICTED),
        str(EventKind.GENERATION),
        str(EventKind.STALLED),
    }
)

"""The kinds of incidents in which a job lost workers, or may lose them."""

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

    def lost(self, event: Event, worker: str, what: str, cause: Cause) -> IncidentLog:
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
    ended = how_it_ended(details.exit_code)
    what = f"{who} on host {details.host} {ended}"
    known = log.loss_of(event.time, (name,))
    hosts = {log.host_of(worker) for worker in known.workers} if known is not None else set()
    cause = of_an_end(replace(details, host=THEIR_HOSTS) if hosts - {details.host} else details)
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
        return log.lost(event, details.worker, what, of_a_suspension(details.host))
    silent = tenses("does not answer", "did not answer")
    what = f"{log.placed(details.worker)} {silent} any more"
    cause = of_a_silence(details.host, event.reason)
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
        return log.lost(event, worker, what, of_a_silence(log.host_of(worker), reason))
    what = f"{log.placed(worker)} was taken out of the job"
    known_kind = EXPLANATIONS[event.kind]
    advice = known_kind.advice.replace("JOB WORKER", f"JOB {worker}")
    return log.lost(event, worker, what, Cause(f"The leader says: {reason}.", advice))


def _of_an_unseen_end(host: str, reason: str) -> Cause:
    """Return the cause of an end of which no agent has told."""
    where = f"host {host}" if host else "its host"
    return Cause(
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
        cause = of_a_silence(log.host_of(details.workers[0]), event.reason)
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
    cause = of_a_slow_worker(worker, log.host_of(worker))
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
    why = log.outage_why if log.outage_why and is_known else OF_ZOOKEEPER.why
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
        advice=OF_ZOOKEEPER.advice,
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
            advice = of_a_loss(one.spike, log.saved).advice
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
    spike, cause = details.spike, of_a_loss(details.spike, log.saved)
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


# ------------------------------------------------------------
# Write the incidents of a job as its page tells them: with the present, the open ones first.


SHOWN = 8

_ENDING = frozenset({"slow_worker", "log_failed", "checkpoint_failed"})  # whose end is told, too

SMALLER = 0.95  # of the others' batch: a smaller one is no accident of its rounding


@dataclass(frozen=True)
class ShownIncident(Record):
    """An incident as the page tells it."""

    number: int
    at_s: float  # when it was noticed, in seconds since 1970
    kind: str  # the kind of the event that says most of it
    tone: str  # `bad`, `warning`, or `over` if the job has recovered from it
    step: int  # the newest complete step then
    # when it was over, in seconds since 1970; None: it is not, or that is not known. Of lost
    # workers it is None: what followed says when others went on and came.
    until_s: float | None
    what: str  # what happened, in a sentence
    why: str  # why, as far as is known
    advice: str
    since: str  # what followed; empty: nothing yet


def shown_incidents(
    log: IncidentLog, status: JobStatus, standing_s: float, rows: Sequence[WorkerRow] = ()
) -> list[ShownIncident]:
    """Return the incidents of a job as its page tells them, the newest first."""
    lost = {worker for one in log.incidents if one.kind in LOST for worker in one.workers}
    found = [_shown(one, status, standing_s, lost, rows) for one in log.incidents]
    found.sort(key=lambda one: (one.tone == "over", -one.at_s))
    return sorted(found[:SHOWN], key=lambda one: -one.at_s)


def _shown(
    one: Incident,
    status: JobStatus,
    standing_s: float,
    lost: set[str],
    rows: Sequence[WorkerRow],
) -> ShownIncident:
    """Return `one` with what the present status adds to it; `lost` are the workers lost."""
    followed, is_over = list(one.followed), one.is_over
    runs = not status.state.over
    if one.kind in ("slow_worker", "log_failed") and not is_over:
        disk = one.full_disk
        concerned = () if disk and disk.checkpoints else disk.logs if disk else one.workers
        gone = bool(concerned) and {*concerned} <= lost
        if gone and runs:
            are = verb(len(concerned), "is", "are")
            followed.append(f"{listed(concerned)} {are} not in the job any more.")
        elif one.kind == "slow_worker" and runs and status.slowest not in one.workers:
            said = _no_longer_waited_for(one.workers[0], rows)
            followed += [said] if said else []
            gone = bool(said)
        is_over = gone or (one.kind == "slow_worker" and not runs)
    if one.kind == "stalled" and runs and status.step > one.step and not standing_s:
        followed.append(f"Steps completed again: the job is at step {status.step:,}.")
        is_over = True
    wanted = sum((status.desired or status.assigned).values())
    if one.kind in LOST and is_over and runs and status.world_size < wanted and not one.joined:
        followed.append(_empty_place(status, wanted))
        is_over = False
    if one.times > 1:
        followed.insert(0, f"It has happened {counted(one.times, 'time')} in all.")
    return ShownIncident(
        number=one.number,
        at_s=one.at_s,
        kind=one.kind,
        tone="over" if is_over else "warning" if one.is_over else one.tone,
        step=one.step,
        until_s=one.over_s if is_over and one.kind not in LOST else None,
        what=in_tense(one.what, is_over),
        why=in_tense(one.why, is_over),
        advice=_named(one.advice, status.job),
        since=" ".join(followed),
    )


def _empty_place(status: JobStatus, wanted: int) -> str:
    """Return a sentence that nobody has taken the place of a lost worker, and who prepares to."""
    new = [one for one in status.members if one.stage in (Stage.PREPARING, Stage.READY)]
    who = listed([f"{one.id} on host {one.host}" for one in new])
    prepares = f"; {who} {verb(len(new), 'prepares', 'prepare')} to join" if new else ""
    np = status.world_size
    now = f"{np} of {workers(wanted)} {verb(np, 'trains', 'train')}"
    return f"Nobody has taken its place yet{prepares}: {now}."


def _no_longer_waited_for(worker: str, rows: Sequence[WorkerRow]) -> str:
    """Return that the others do not wait for `worker` any more; empty: by `rows` they do."""
    own = {row.worker: row for row in rows if row.own_s is not None}
    row, others = own.pop(worker, None), list(own.values())
    # The table is measured less often than workers report whom they wait for: both must say so.
    if row is None or not others or row.speed is None or not row.is_slow:
        return "Then no worker waited for it any more."
    own_s, others_s = row.own_s or 0.0, median(one.own_s or 0.0 for one in others)
    if holds_up(own_s, others_s):
        return ""
    less = (row.samples or 0.0) < SMALLER * median(one.samples or 0.0 for one in others)
    batch = "with its smaller batch it " if less else ""
    return (
        f"It is still slow ({row.speed:.2f} of the usual speed), but {batch}takes only "
        f"{own_s / max(others_s, 1e-9):.1f} times as long as the others."
    )


def _named(text: str, job: str) -> str:
    return re.sub(r"\bJOB\b", lambda _: job, text)


def with_incidents(
    words: str, tone: str, incidents: Sequence[ShownIncident], joining: int
) -> tuple[str, str]:
    """Return the words and the tone of a job's header, which say that somebody should act."""
    if tone != "good":
        return words, tone
    lasting = {one.kind for one in incidents if one.tone != "over"}
    if "loss_spike" in lasting:
        return "training, with a wrong loss", "bad"
    urgent = _ENDING if joining else _ENDING | LOST
    return (f"{words}; see what happened", "warning") if lasting & urgent else (words, tone)
