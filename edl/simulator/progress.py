"""Follow one job through virtual time: its progress, its slots, and when it would end.

:class:`Progress` does it.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace

from edl.cluster.state import ClusterJob, Placement, slot_count
from edl.core.policy.step_time import StepTimeSample
from edl.simulator.resize import ResizeCost, SlotChange, change_of
from edl.simulator.results import AllocationChange, BatchChange, JobResult
from edl.simulator.work import SubmittedJob


def same_s(at_s: float) -> float:
    """Return the tolerance in seconds within which two times near `at_s` count as equal."""
    # Times are sums of floats, so equal times may differ a little.
    return max(1e-6, 4 * math.ulp(at_s))


@dataclass(frozen=True)
class _Newcomers:
    """New workers of a job that trains."""

    after_s: float  # the seconds until they are there
    slots: tuple[int, ...]  # the number of slots on each node that train from then on
    pause_s: float  # the seconds that the job stops then


class Progress:
    """The course of one job under virtual time: its progress, slots, batch and history."""

    def __init__(
        self, submission: SubmittedJob, whole_seconds: bool, keeps_start: bool = False
    ) -> None:
        self.submission = submission
        self.batch = submission.batch
        self.placement: Placement = ()
        self.dropped = False  # rejected
        self.end_s: float | None = None
        self.attained_slot_s = 0.0
        self.epoch = 0
        self.progress = 0.0
        self.history: list[AllocationChange] = []
        self.batches: list[BatchChange] = []
        self.speed = 1.0  # of the slowest of its nodes
        self.slowdown = 0.0  # by interference, as a fraction of its rate
        self._whole = whole_seconds
        self._keeps_start = keeps_start
        self._pause_s = 0.0
        self._steps: dict[tuple[int, int, float], StepTimeSample] = {}
        self._noise_scale: float | None = None
        self._slots: tuple[int, ...] = ()  # that train
        self._coming: list[_Newcomers] = []  # in the order in which they will be there
        self._size = 0
        self._rate: float | None = None
        self._seen: ClusterJob | None = None

    def view(self) -> ClusterJob:
        """Return the job as a policy sees it, with its present batch, model and measurements."""
        if self._seen is None:
            one = self.submission
            self._seen = ClusterJob(
                name=one.name,
                arrival_s=one.arrival_s,
                requested_slots=one.requested_slots,
                min_slots=one.min_slots,
                max_slots=one.max_slots,
                batch=self.batch,
                batches=one.batches,
                model=one.work.model(self.epoch, self.progress),
                attained_slot_s=self.attained_slot_s,
                preemptible=one.preemptible and not (self._keeps_start and self.starting_s),
                local_batches=one.local_batches,
                steps=tuple(self._steps.values()),
                noise_scale=self._noise_scale,
                weight=one.weight,
            )
        return self._seen

    @property
    def starting_s(self) -> float:
        """The seconds until a job that starts, or starts again, begins to train; 0: it does not."""
        starts = (SlotChange.START, SlotChange.RESTART)
        return self._pause_s if self.history and self.history[-1].change in starts else 0.0

    def place(self, placement: Placement, now_s: float, reason: str, cost: ResizeCost) -> None:
        """Give the job the slots of `placement` in place of those it has, and begin the pause."""
        change = change_of(self.placement, placement, bool(self.history))
        self._set(AllocationChange(now_s, change, placement, reason), cost)

    def train_with(self, batch: int, now_s: float) -> None:
        """Set the global batch of the job from its next step on, without a pause."""
        if batch != self.batch:
            self.batch, self._rate, self._seen = batch, None, None
            self.batches.append(BatchChange(now_s, batch))

    def reject(self, now_s: float) -> None:
        """Mark the job as rejected, and as ended at the virtual time `now_s`, in seconds."""
        self.dropped, self.end_s = True, now_s

    def slow_down(self, part: float) -> None:
        """Set by what fraction of its full speed the job is slower than that, 0 to below 1."""
        if part != self.slowdown:
            self.slowdown, self._rate = part, None

    def fail(self, now_s: float, cost: ResizeCost) -> None:
        """Take all slots from the job because one of its nodes has failed."""
        self._set(AllocationChange(now_s, SlotChange.FAILURE, ()), cost)

    def advance(self, now_s: float, seconds: float) -> None:
        """Train the job for a time, or until it ends."""
        if not self._size or self.end_s is not None or seconds <= 0:
            return
        self._seen = None
        while self._coming and self._coming[0].after_s <= seconds and self.end_s is None:
            part_s = self._coming[0].after_s
            self._train(now_s, part_s)
            self._pass(part_s)
            now_s, seconds = now_s + part_s, seconds - part_s
        if self.end_s is None:
            self._train(now_s, seconds)
            self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        """Let time pass for the newcomers; those that are there train from now on."""
        self._coming = [replace(one, after_s=one.after_s - seconds) for one in self._coming]
        while self._coming and self._coming[0].after_s <= 0:
            there = self._coming.pop(0)
            self._slots, self._rate = there.slots, None
            self._pause_s = max(self._pause_s, there.pause_s)

    def _train(self, now_s: float, seconds: float) -> None:
        """Train the job for a time with the slots that train now, after the rest of a pause."""
        pause_s = min(self._pause_s, seconds)
        self._pause_s -= pause_s
        self.attained_slot_s += pause_s * self._size
        now_s, seconds = now_s + pause_s, seconds - pause_s
        while seconds > 0 and self.end_s is None:
            rate, goal = self._rate_now(), self.submission.work.end_of(self.epoch)
            took_s = (goal - self.progress) / rate
            if took_s > seconds + same_s(now_s):
                self.progress += rate * seconds
                self.attained_slot_s += seconds * self._size
                return
            took_s = min(float(round(took_s)) if self._whole else took_s, seconds)
            self.progress, self.epoch, self._rate = goal, self.epoch + 1, None
            self.attained_slot_s += took_s * self._size
            now_s, seconds = now_s + took_s, seconds - took_s
            if self.epoch == self.submission.work.epochs:
                self.end_s = now_s

    def ends_after_s(self) -> float:
        """Return the seconds until the job ends if nothing changes, its pause included."""
        if not self._size:
            return float("inf")
        if self._coming:
            return self._ends_with_newcomers_s()
        work, total_s, progress = self.submission.work, self._pause_s, self.progress
        for epoch in range(self.epoch, work.epochs):
            goal = work.end_of(epoch)
            total_s += (goal - progress) / self._rate_in(epoch)
            progress = goal
        return total_s

    def _ends_with_newcomers_s(self) -> float:
        """Return the same as `ends_after_s` while newcomers are to come, by a copy of it."""
        twin = copy(self)
        twin._steps, twin._whole = {}, False
        twin.advance(0.0, float("inf"))
        assert twin.end_s is not None
        return twin.end_s

    def result(self) -> JobResult:
        """Return the result of the job, on the virtual clock; the job must have ended."""
        assert self.end_s is not None
        one = self.submission
        return JobResult(
            name=one.name,
            kind=one.kind,
            arrival_s=one.arrival_s,
            start_s=self.history[0].at_s if self.history else self.end_s,
            end_s=self.end_s,
            slot_s=self.attained_slot_s,
            history=tuple(self.history),
            batches=tuple(self.batches),
            dropped=self.dropped,
        )

    def _set(self, moment: AllocationChange, cost: ResizeCost) -> None:
        """Change the job's slots, note it in the history, and begin the pause that it costs."""
        slots = tuple(count for _, count in moment.placement)
        newcomers = self._newcomers(moment, slots, cost)
        if newcomers is not None:
            self._coming = [*self._coming, newcomers]
        else:
            pending_s = self._pause_s if self.placement and moment.placement else 0.0
            self._pause_s = max(pending_s, cost.of(moment.change))
            self._slots, self._rate, self._coming = slots, None, []
        self.placement = moment.placement
        self._size = slot_count(moment.placement)
        self.history.append(moment)

    def _newcomers(
        self, moment: AllocationChange, slots: tuple[int, ...], cost: ResizeCost
    ) -> _Newcomers | None:
        """Return the newcomers that a change of slots lets come; None: it takes effect at once."""
        change = moment.change
        if change is SlotChange.LEAVE and self._coming and sum(slots) > sum(self._slots):
            last = self._coming[-1]
            self._coming = []
            return replace(last, slots=slots)
        grows = change in (SlotChange.JOIN, SlotChange.MIGRATE)
        if not grows or not cost.prepare or self.starting_s:
            return None
        return _Newcomers(cost.prepare, slots, cost.of(change))

    def _rate_now(self) -> float:
        """Return the job's present progress per second, in the unit of its work."""
        if self._rate is None:  # after a change, or in a new epoch
            self._rate = self._rate_in(self.epoch)
            self._measure()
        return self._rate

    def _measure(self) -> None:
        """Record the step time and gradient noise scale with the job's slots and batch."""
        work = self.submission.work
        step, self._noise_scale = work.observed(self._slots, self.batch, self.epoch)
        # only the first step time of each combination
        self._steps.setdefault((step.hosts, step.workers, step.batch), step)

    def _rate_in(self, epoch: int) -> float:
        rate = self.submission.work.rate(self._slots, self.batch, epoch)
        return rate * (1.0 - self.slowdown) * self.speed
