"""Fold a job's events into the time line of its generations, and say how much time was lost.

The switch into a generation costs training time, its loss:

    loss = max over the old workers of (detect + stall + first step - usual step)

(the fields of :class:`edl.records.SwitchParts`). The goodput is the fraction of the time
since the first generation that was not lost: neither to switches, nor to pauses with too few
workers, nor to the stand-still that lasts now. Of a log whose oldest events are gone it counts from
the oldest event that is kept. Memory is bounded: old bands are merged in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl.dashboard.view.events import tone_of
from edl.event_text import kind_of_change, without_step_s
from edl.events import (
    Event,
    EventKind,
    GenerationDetails,
    LeaderDetails,
    SwitchDetails,
    ZookeeperBackDetails,
)
from edl.record import Record
from edl.records import SwitchParts
from edl.text import duration_in_words

MAX_BANDS = 400
MAX_MARKS = 200
MAX_SWITCHES = 400
MAX_WORKERS = 12  # of a switch, those that completed no step for longest

# The kinds of events that the time line marks when they were logged, beside the switches.
MARKED = frozenset(
    {
        EventKind.STALLED,
        EventKind.PAUSED,
        EventKind.WORKER_FAILED,
        EventKind.WORKER_FROZEN,
        EventKind.EVICTED,
        EventKind.RESUMED,
        EventKind.STATE_DIFFERS,
        EventKind.SLOW_WORKER,
        EventKind.LOSS_SPIKE,
        EventKind.SLOT_DISABLED,
        EventKind.LOG_FAILED,
        EventKind.CHECKPOINT_FAILED,
        EventKind.JOB_FAILED,
    }
)
AWAY = "zookeeper_away"  # the kind of the mark of an outage, which stands where that began
ENDS = frozenset(
    {
        EventKind.FINISHED,
        EventKind.JOB_FINISHED,
        EventKind.JOB_FAILED,
        EventKind.JOB_STOPPED,
    }
)


@dataclass(frozen=True)
class GenerationBand(Record):
    """A period of the time line: one generation, or several that were merged."""

    first: int  # the number of its first generation
    last: int  # the number of its last generation
    from_s: float  # when it began, in seconds since 1970
    to_s: float | None  # when it ended, in seconds since 1970; None: it is the present one
    np: int  # the workers of its last generation
    least_np: int  # the smallest number of workers in it
    most_np: int  # the largest number of workers in it
    # of `kind_of_change`; `several` of merged ones; `unknown`, since the oldest event, of a cut log
    cause: str
    reason: str  # why the leader wrote it; of merged ones that of the last
    loss_s: float | None = None  # training time that its switches cost; None: not known (yet)
    paused_s: float = 0.0  # for how long it had too few workers to train, in seconds

    def merged(self, later: GenerationBand) -> GenerationBand:
        known = [one for one in (self.loss_s, later.loss_s) if one is not None]
        return replace(
            later,
            first=self.first,
            from_s=self.from_s,
            least_np=min(self.least_np, later.least_np),
            most_np=max(self.most_np, later.most_np),
            cause="several",
            loss_s=sum(known) if known else None,
            paused_s=self.paused_s + later.paused_s,
        )


@dataclass(frozen=True)
class TimelineMark(Record):
    """An event that the time line shows as a mark."""

    at_s: float  # when it was logged, in seconds since 1970; of an outage, when that began
    kind: str  # the kind of the event; `AWAY` of an outage of ZooKeeper
    tone: str  # how serious it is, as `tone_of` says
    generation: int  # the generation that it is about
    reason: str  # what has happened, and why


@dataclass(frozen=True)
class WorkerLoss(Record):
    """The parts of one worker's switch."""

    worker: str  # the name of the worker
    without_step_s: float  # for how long it completed no step, in seconds
    parts: SwitchParts  # the seconds of each part


@dataclass(frozen=True)
class SwitchLoss(Record):
    """The cost of the switch into one generation."""

    generation: int  # the number of the generation
    at_s: float  # when the switch was logged, in seconds since 1970
    step: int  # the newest complete step then
    reason: str  # what has happened, and why
    loss_s: float  # the training time that it cost, in seconds; 0 if all workers were new
    size: int  # the number of workers in the new ring
    workers: tuple[WorkerLoss, ...]  # `MAX_WORKERS` that completed no step for longest


@dataclass(frozen=True)
class GenerationTimeline(Record):
    """The generations of a job in order of time; `with_event` adds what an event tells."""

    bands: tuple[GenerationBand, ...] = ()  # the oldest first, without gaps in their numbers
    marks: tuple[TimelineMark, ...] = ()  # the newest events and outages, the oldest first
    switches: tuple[SwitchLoss, ...] = ()  # the newest switches, the oldest first
    # when the first generation began; 0: there is none. Of a cut log, from when on all is known
    began_s: float = 0.0
    lost_s: float = 0.0  # the seconds lost to switches and pauses until now
    ended_s: float | None = None  # when training ended, in seconds since 1970; None: it has not
    paused_since_s: float | None = None  # since when too few workers are left; None: enough are
    leader: str | None = None  # the worker that leads; None: not known
    led_s: float = 0.0  # since when it leads, in seconds since 1970
    is_cut: bool = False  # whether the oldest events of the log are gone

    @classmethod
    def cut(cls, at_s: float) -> GenerationTimeline:
        """Return the time line of a log whose oldest kept event was written at `at_s`."""
        return cls(began_s=at_s, is_cut=True)

    def with_event(self, event: Event) -> GenerationTimeline:
        new = self
        if event.kind in MARKED:
            new = new._marked(event, event.reason)
        if isinstance(event.details, LeaderDetails):
            worker = event.details.worker
            if worker == self.leader:
                return new
            if self.leader is not None:
                new = new._marked(event, f"{event.reason}; before, {self.leader} led")
            return replace(new, leader=worker, led_s=event.time)
        if event.kind is EventKind.PAUSED:
            return replace(new, paused_since_s=new.paused_since_s or event.time)
        if event.kind in ENDS:
            ended_s = event.time if new.ended_s is None else new.ended_s
            return replace(new._closed(event.time), ended_s=ended_s)
        if isinstance(event.details, GenerationDetails):
            return new._with_generation(event, event.details)
        if isinstance(event.details, SwitchDetails):
            return new._with_switch(event, event.details)
        if isinstance(event.details, ZookeeperBackDetails):
            away_s, tone = event.details.away_s, tone_of(event.kind)
            reason = f"ZooKeeper did not answer for {duration_in_words(away_s)}"
            mark = TimelineMark(event.time - away_s, AWAY, tone, event.generation, reason)
            return new._with_mark(mark)
        return new

    def with_outage(self, since_s: float) -> GenerationTimeline:
        generation = self.bands[-1].last if self.bands else 0
        reason = "ZooKeeper does not answer"
        return self._with_mark(TimelineMark(since_s, AWAY, "bad", generation, reason))

    def goodput(self, now_s: float, standing_s: float = 0.0) -> float | None:
        """Return the fraction of the time since the first generation that was not lost, 0 to 1."""
        if not self.began_s:
            return None
        end_s = now_s if self.ended_s is None else self.ended_s
        paused_s = max(0.0, end_s - self.paused_since_s) if self.paused_since_s is not None else 0.0
        lasted_s = end_s - self.began_s
        if lasted_s <= 0:
            return None
        lost_s = self.lost_s + max(paused_s, standing_s)
        return min(1.0, max(0.0, 1.0 - lost_s / lasted_s))

    def switch_of(self, generation: int) -> SwitchLoss | None:
        found = [one for one in self.switches if one.generation == generation]
        return found[-1] if found else None

    def _marked(self, event: Event, reason: str) -> GenerationTimeline:
        tone = tone_of(event.kind)
        return self._with_mark(
            TimelineMark(event.time, str(event.kind), tone, event.generation, reason)
        )

    def _with_mark(self, mark: TimelineMark) -> GenerationTimeline:
        later = sum(one.at_s > mark.at_s for one in self.marks)
        at = len(self.marks) - later
        return replace(self, marks=(*self.marks[:at], mark, *self.marks[at:])[-MAX_MARKS:])

    def _with_generation(self, event: Event, details: GenerationDetails) -> GenerationTimeline:
        np, before = len(details.members), self._with_former(event, details)._closed(event.time)
        if not np:
            return replace(before, ended_s=event.time)
        number = event.generation
        cause = kind_of_change(number, details)
        band = GenerationBand(number, number, event.time, None, np, np, np, cause, event.reason)
        bands = _compact((*before.bands, band))
        began_s = before.began_s if before.bands else event.time
        return replace(before, bands=bands, began_s=began_s, ended_s=None)

    def _with_former(self, event: Event, details: GenerationDetails) -> GenerationTimeline:
        """Return a line that was cut with the generation before the first one that the log has."""
        np = len(details.members) - len(details.joined) + len(details.left)
        number = event.generation - 1
        if not self.is_cut or self.bands or number < 1 or np < 1:
            return self
        reason = "the log does not have its beginning any more"
        band = GenerationBand(number, number, self.began_s, None, np, np, np, "unknown", reason)
        return replace(self, bands=(band,))

    def _with_switch(self, event: Event, details: SwitchDetails) -> GenerationTimeline:
        lost = (
            max(0.0, without_step_s(parts) - parts.median_step_s)
            for parts in details.workers.values()
            if parts.role == "old"
        )
        loss_s = max(lost, default=0.0)
        slowest = sorted(
            details.workers.items(), key=lambda item: (-without_step_s(item[1]), item[0])
        )
        workers = tuple(
            WorkerLoss(name, without_step_s(parts), parts) for name, parts in slowest[:MAX_WORKERS]
        )
        number = event.generation
        switch = SwitchLoss(
            number, event.time, event.step, event.reason, loss_s, details.world_size, workers
        )
        new = replace(self, switches=(*self.switches, switch)[-MAX_SWITCHES:])
        if self.is_cut and not self.bands:
            return replace(new, began_s=event.time)
        if self.is_cut:
            loss_s = min(loss_s, max(0.0, event.time - self.began_s))
        bands, counted_s = list(self.bands), 0.0
        for at in range(len(bands) - 1, -1, -1):
            if bands[at].first <= number <= bands[at].last:
                # What the workers waited in a pause is a part of their switch after it.
                counted_s = max(0.0, loss_s - (bands[at - 1].paused_s if at else 0.0))
                bands[at] = replace(bands[at], loss_s=(bands[at].loss_s or 0.0) + loss_s)
                break
        return replace(new, bands=tuple(bands), lost_s=self.lost_s + counted_s)

    def _closed(self, at_s: float) -> GenerationTimeline:
        if not self.bands or self.bands[-1].to_s is not None:
            return replace(self, paused_since_s=None)
        paused_s = max(0.0, at_s - self.paused_since_s) if self.paused_since_s is not None else 0.0
        last = replace(self.bands[-1], to_s=at_s, paused_s=paused_s)
        return replace(
            self,
            bands=(*self.bands[:-1], last),
            lost_s=self.lost_s + paused_s,
            paused_since_s=None,
        )


def _compact(bands: tuple[GenerationBand, ...]) -> tuple[GenerationBand, ...]:
    """Return `bands`; if there are more than `MAX_BANDS`, the older half in pairs."""
    if len(bands) <= MAX_BANDS:
        return bands
    half = len(bands) // 4 * 2
    pairs = (bands[at].merged(bands[at + 1]) for at in range(0, half, 2))
    return (*pairs, *bands[half:])
