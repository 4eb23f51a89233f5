"""Hold the result of a simulated run: the times of each job, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from edl.cluster.placing import compact
from edl.cluster.state import Node, Placement, slot_count, total
from edl.simulator.costs import SlotChange
from edl.simulator.workload import SubmittedJob


@dataclass(frozen=True)
class AllocationChange:
    """A change of the slots of one job in a simulation."""

    at_s: float  # in a `JobResult` on the clock of the trace
    change: SlotChange
    placement: Placement  # the slots of the job from then on; empty: none
    reason: str = ""  # the policy's reason; empty if a node failed

    def figures(self) -> dict[str, Any]:
        return {
            "at_s": self.at_s,
            "change": self.change.value,
            "slots": slot_count(self.placement),
            "placement": dict(self.placement),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class BatchChange:
    """A change of a job's global batch."""

    at_s: float  # as in `AllocationChange`
    batch: int  # the global batch from then on, in samples

    def figures(self) -> dict[str, Any]:
        return {"at_s": self.at_s, "batch": self.batch}


@dataclass(frozen=True)
class JobResult:
    """The result of a job that has ended or was rejected, with times on the clock of the trace."""

    name: str
    kind: str  # the kind of job, as it was submitted
    arrival_s: float  # the time at which it was submitted
    start_s: float  # the time at which it was given its first slots; `end_s` if it was rejected
    end_s: float  # the time at which it ended, or was rejected
    slot_s: float  # for which it had slots, times their number, the time of changes included
    history: tuple[AllocationChange, ...] = ()  # its first slots included
    batches: tuple[BatchChange, ...] = ()  # without the batch that its user requested
    dropped: bool = False  # whether it was rejected, at `end_s`, without ever having had slots
    isolated_s: float = 0.0  # alone on a fair share, see below; 0: not known, as if rejected

    @property
    def jct_s(self) -> float:
        """The job completion time (JCT): the seconds from the job's submission to `end_s`."""
        return self.end_s - self.arrival_s

    def later(self, seconds: float) -> JobResult:
        if not seconds:
            return self
        return replace(
            self,
            arrival_s=self.arrival_s + seconds,
            start_s=self.start_s + seconds,
            end_s=self.end_s + seconds,
            history=tuple(replace(one, at_s=one.at_s + seconds) for one in self.history),
            batches=tuple(replace(one, at_s=one.at_s + seconds) for one in self.batches),
        )

    @property
    def finish_time_fairness(self) -> float:
        """The job completion time divided by `isolated_s`, its time alone on a fair share."""
        return self.jct_s / self.isolated_s if self.isolated_s else 0.0

    @property
    def resizes(self) -> int:
        given = sum(1 for one in self.history if one.placement)
        return max(0, given - 1)

    def figures(self, history: bool = False) -> dict[str, Any]:
        shown: dict[str, Any] = {name: getattr(self, name) for name in _SHOWN}
        if self.dropped:
            shown["dropped"] = True
        if history:
            shown["history"] = [one.figures() for one in self.history]
            shown["batches"] = [one.figures() for one in self.batches]
        return shown


_SHOWN: tuple[str, ...] = ("name", "kind", "arrival_s", "start_s", "end_s", "jct_s", "slot_s")
_SHOWN += ("resizes", "finish_time_fairness")


@dataclass(frozen=True)
class Result:
    """The result of a simulated run."""

    jobs: tuple[JobResult, ...]  # in the order in which the jobs were given
    decisions: int  # also those without a question to the policy, since no waiting job could start

    @property
    def ended(self) -> list[JobResult]:
        return [job for job in self.jobs if not job.dropped]

    @property
    def mean_jct_s(self) -> float:
        return fmean(job.jct_s for job in self.ended)

    @property
    def makespan_s(self) -> float:
        return max(job.end_s for job in self.ended) - min(job.arrival_s for job in self.jobs)

    @property
    def worst_finish_time_fairness(self) -> float:
        return max(job.finish_time_fairness for job in self.ended)

    def jct_percentile_s(self, percent: float) -> float:
        return float(np.percentile([job.jct_s for job in self.ended], percent))

    def figures(self, history: bool = False) -> dict[str, Any]:
        ended = self.ended
        return {
            **{name: of(self) if ended else None for name, of in _OF_ENDED.items()},
            "slot_s": sum(job.slot_s for job in self.jobs),
            "resizes": sum(job.resizes for job in self.jobs),
            "decisions": self.decisions,
            "dropped": len(self.jobs) - len(ended),
            "jobs": [job.figures(history) for job in self.jobs],
        }


_OF_ENDED: dict[str, Callable[[Result], float]] = {  # not defined if all jobs were rejected
    "mean_jct_s": lambda result: result.mean_jct_s,
    "p50_jct_s": lambda result: result.jct_percentile_s(50),
    "p90_jct_s": lambda result: result.jct_percentile_s(90),
    "p99_jct_s": lambda result: result.jct_percentile_s(99),
    "worst_finish_time_fairness": lambda result: result.worst_finish_time_fairness,
    "makespan_s": lambda result: result.makespan_s,
}


# --- Compute how a run used the slots over time: `spans` for a job, `levels` for all.


class SlotSpan(NamedTuple):
    """A period between two changes of a job's slots; with 0 slots the job waited."""

    from_s: float  # the begin of the period, in seconds on the clock of the job's result
    to_s: float  # the end of the period, later than its begin
    slots: int  # the number of slots that the job had


class Usage(NamedTuple):
    """The use of the cluster from one change to the next."""

    at_s: float  # the begin of the period, on the clock of the results
    used: int  # slots, by all jobs together
    waiting: int  # jobs that are there and have no slots


def spans(job: JobResult) -> list[SlotSpan]:
    changes = [(job.arrival_s, 0)] + [(one.at_s, slot_count(one.placement)) for one in job.history]
    ends_s = [at_s for at_s, _ in changes[1:]] + [job.end_s]
    return [
        SlotSpan(from_s, to_s, slots)
        for (from_s, slots), to_s in zip(changes, ends_s, strict=True)
        if to_s > from_s
    ]


def levels(result: Result) -> list[Usage]:
    used: Counter[float] = Counter()
    waiting: Counter[float] = Counter()
    for job in result.jobs:
        for span in spans(job):
            of, by = (used, span.slots) if span.slots else (waiting, 1)
            of[span.from_s] += by
            of[span.to_s] -= by
    found = [Usage(0.0, 0, 0)]
    for at_s in sorted(used.keys() | waiting.keys()):
        last = found[-1]
        level = Usage(at_s, last.used + used[at_s], last.waiting + waiting[at_s])
        if level[1:] == last[1:]:
            continue
        if at_s == last.at_s:
            found.pop()
        found.append(level)
    return found


# --- Compute finish-time fairness: completion time / time in isolation on 1/N of the slots.
#
# Up to 1 the job lost nothing by sharing the cluster. N is the mean number of jobs in the cluster
# while the job is there, itself included. A job is there when it has arrived and has
# neither ended nor been rejected (Themis, Mahajan et al., NSDI 2020, section 3; N as in the
# evaluation of Sia, SOSP 2023).
#
# In isolation, the job trains with the batch that its user asked for, on whole slots of as few
# nodes as possible, with at most as many slots as it may have. It begins at once, at no cost. If
# its share is less than its minimum, it has its minimum for only a fraction of the time, such that
# its mean number of slots is its share.


def with_isolated(
    submissions: Sequence[SubmittedJob], results: Sequence[JobResult], nodes: Sequence[Node]
) -> tuple[JobResult, ...]:
    """Return `results` in the same order, with `isolated_s` set unless the job was rejected."""
    beside = mean_beside(results)
    slots, largest = total(nodes), max(node.slots for node in nodes)
    return tuple(
        one
        if one.dropped
        else replace(one, isolated_s=isolated_s(submitted, slots / count, largest))
        for submitted, one, count in zip(submissions, results, beside, strict=True)
    )


def mean_beside(results: Sequence[JobResult]) -> list[float]:
    """Return for each job the mean number of jobs in the cluster from its arrival to its end."""
    came, went = [np.sort([getattr(one, at) for one in results]) for at in ("arrival_s", "end_s")]
    times = np.unique(np.concatenate((came, went)))
    there = np.searchsorted(came, times, "right") - np.searchsorted(went, times, "right")
    job_s = np.concatenate(([0.0], np.cumsum(there[:-1] * np.diff(times))))
    means = []
    for one in results:
        begun, ended = np.searchsorted(times, (one.arrival_s, one.end_s))
        seconds = max(one.end_s - one.arrival_s, 1e-9)
        means.append(max(1.0, float(job_s[ended] - job_s[begun]) / seconds))
    return means


def isolated_s(job: SubmittedJob, share: float, slots_a_node: int) -> float:
    most = job.max_slots
    if job.local_batches is not None:
        most = min(most, job.batch // job.local_batches[0])
    count = max(job.min_slots, min(int(share), most))
    placement, seconds, progress = compact(count, slots_a_node), 0.0, 0.0
    for epoch in range(job.work.epochs):
        goal = job.work.end_of(epoch)
        seconds += (goal - progress) / job.work.rate(placement, job.batch, epoch)
        progress = goal
    return seconds * max(1.0, count / share)
