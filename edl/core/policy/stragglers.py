"""Decide about workers that are slow for long: give them smaller batches, then replace them.

:class:`Stragglers` is the rule. The speed of a worker is the number of samples that it trains in a
second of its own time (without waiting for other workers), relative to the median of all workers.
It is averaged over steps, and each step replaces a tenth of the average, so that a worker is not
slow because of a single step. Below 0.8 a worker is a straggler (AutoScaling, MLSys 2020, whose
code has these numbers). AutoScaling replaces a straggler at once. Here a worker that has been a
straggler for 50 steps first gets a smaller part of the global batch, in proportion to its speed,
which keeps the gradient exact. It is replaced only if it would get less than half of a worker's
usual batch.

What to do depends on the cause. Only workers that are slow at computing get smaller batches or are
replaced. A worker that is slow at loading data is reported only, because another worker would not
do better at it. If the reduction takes longer than the slowest worker's computing and loading, one
more finding says that the network is slow. If all workers of a host (two or more, and not all of
the job) are slow at the same, they are reported as one finding, and the leader starts no
replacement on that host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

from edl.core.plural import names
from edl.core.policy.observation import State
from edl.core.record import Record
from edl.core.settings import setting

SHOWN = 20  # workers, the slowest ones, to people


class StragglerCause(StrEnum):
    """The activity that a straggler is slow at."""

    COMPUTE = "computes"
    DATA = "loads its data"
    NETWORK = "reduces"


@dataclass(frozen=True)
class Times(Record):
    """The mean times of one worker over its last steps, each in seconds for one step."""

    worker: int  # the number of the worker
    host: str  # the name of the worker's host
    samples: float  # the samples that the worker trained in a step, on average
    # the worker's own time for computing: from its batch to its gradients, and the work with the
    # mean gradients
    compute_s: float
    data_s: float = 0.0  # the time that the worker waited for its batch
    # the time from the worker's gradients to the mean of all, waiting for other workers included
    reduce_s: float = 0.0
    steps: int = 1  # the number of steps that the means are over

    @property
    def own_s(self) -> float:
        """The seconds of a step that the worker computes, or waits for its batch."""
        return self.compute_s + self.data_s


@dataclass(frozen=True)
class StragglerReport:
    """A finding about slow workers: which ones, and what they are slow at."""

    # the numbers of the slow workers; empty: the network slows all workers alike
    workers: tuple[int, ...]
    host: str  # the name of the host, if these workers are all workers of one host; else empty
    at: StragglerCause  # the activity that they are slow at
    # the average speed of the slowest of them, relative to the median; for the network, the
    # fraction of a step that is not spent on reducing
    speed: float

    def __str__(self) -> str:
        if self.at is StragglerCause.NETWORK:
            return f"reducing takes {1.0 - self.speed:.0%} of each step, on all workers alike"
        who = f"host {self.host} ({names(self.workers)})" if self.host else names(self.workers)
        return f"{who} {self.at} at {self.speed:.2f} of the usual speed"


class Mitigation(NamedTuple):
    """The answer of `Stragglers`: measures against slow workers, and their reasons."""

    # worker number -> the fraction of its usual batch that the worker gets; workers that are not in
    # it get all of it
    shares: Mapping[int, float]
    # the numbers of the workers that should be replaced, in ascending order; they are in `shares`,
    # too
    replace: tuple[int, ...]
    findings: tuple[StragglerReport, ...]  # which workers are slow, and at what
    state: State  # the state of the rule, for its next call


NO_MITIGATION = Mitigation({}, (), (), {})


@dataclass(frozen=True)
class Stragglers:
    """The rule for slow workers, with the settings of the table [stragglers] of a policy."""

    # the weight, from 0 to 1, of a new step in the average speed of a worker
    forgets: float = setting(0.1, "of what was known of a speed, each step", least=0.0, most=1.0)
    slow_below: float = setting(
        0.8, "of the median speed: then a worker is a straggler", least=0.0, most=1.0
    )  # the speed below which a worker is a straggler, from 0 to 1
    least_share: float = setting(
        0.5, "of a batch; who would get less is replaced", least=0.0, most=1.0
    )  # the smallest fraction of a batch; a straggler that would get less is replaced
    # the number of steps in a row for which a worker's average must be slow before it gets a
    # smaller batch or is replaced
    patience_steps: int = setting(50, "steps for which it has to be slow", least=1)
    # whether another worker takes the place of a straggler, where a slot is free, on another host
    # if possible; if False, a straggler only gets a smaller batch, however small
    replaces: bool = setting(True, "another worker takes its place, where a slot is free")
    # the least time between two replacements of slow workers on one host, in seconds
    again_s: float = setting(600.0, "until a host gets another replacement")

    def __call__(self, times: Sequence[Times], state: State) -> Mitigation:
        # `times`: the step times of each worker since the last call.
        times = [one for one in times if one.samples > 0 and one.own_s > 0]
        if len(times) < 3:
            return Mitigation({}, (), (), state)
        usual = median(_rate(one) for one in times)
        notes: dict[str, Any] = dict(state)
        slow: list[Times] = []
        for one in times:
            before = state.get(str(one.worker), {})
            kept = (1.0 - self.forgets) ** one.steps
            speed = kept * before.get("speed", 1.0) + (1.0 - kept) * _rate(one) / usual
            is_slow = speed < self.slow_below
            steps = before.get("steps", 0) + one.steps if is_slow else 0
            notes[str(one.worker)] = {"speed": speed, "steps": steps}
            if steps >= self.patience_steps:
                slow.append(one)
        findings = tuple(self._findings(times, slow, notes))
        computing = [
            w
            for finding in findings
            if finding.at is StragglerCause.COMPUTE
            for w in finding.workers
        ]
        shares = {worker: float(notes[str(worker)]["speed"]) for worker in sorted(computing)}
        replace = tuple(
            w for w, speed in shares.items() if self.replaces and speed < self.least_share
        )
        return Mitigation(shares, replace, (*findings, *_network(times)), notes)

    def _findings(
        self, times: Sequence[Times], slow: Sequence[Times], notes: Mapping[str, Any]
    ) -> list[StragglerReport]:
        """Return one finding for each slow worker, or for each host whose workers are all slow."""
        by_host: dict[tuple[str, StragglerCause], list[int]] = defaultdict(list)
        for one in slow:
            by_host[one.host, _at(one, times)].append(one.worker)
        found: list[StragglerReport] = []
        for (host, at), workers in by_host.items():
            there = [one.worker for one in times if one.host == host]
            whole = len(workers) > 1 and len(workers) == len(there) < len(times)
            groups = [workers] if whole else [[worker] for worker in workers]
            for group in groups:
                speed = min(float(notes[str(worker)]["speed"]) for worker in group)
                found.append(StragglerReport(tuple(group), host if whole else "", at, speed))
        return found


def data_part(times: Sequence[Times]) -> float:
    """Return the fraction of a step's time that workers wait for their data, on average."""
    steps_s = sum(one.own_s + one.reduce_s for one in times)
    return sum(one.data_s for one in times) / steps_s if steps_s > 0 else 0.0


def slowest(times: Sequence[Times]) -> tuple[Times, ...]:
    """The times of the workers that need longest for computing and data, the longest first"""
    return tuple(sorted(times, key=lambda one: -one.own_s)[:SHOWN])


def _network(times: Sequence[Times]) -> list[StragglerReport]:
    """Return a list with one finding if the network is slow, else an empty list."""
    reduce_s = min(one.reduce_s for one in times)
    own_s = max(one.own_s for one in times)
    if reduce_s <= own_s:
        return []
    return [StragglerReport((), "", StragglerCause.NETWORK, own_s / (own_s + reduce_s))]


def _rate(one: Times) -> float:
    return one.samples / one.own_s


def _at(one: Times, times: Sequence[Times]) -> StragglerCause:
    """Return what makes a worker slow: waiting for its data, or computing."""
    # For each of the two, the worker's excess is its time minus the median over all workers for as
    # many samples, because a smaller batch is loaded and computed sooner.
    usual = median(other.data_s / max(1.0, other.samples) for other in times)
    more_data = one.data_s - usual * one.samples
    usual = median(other.compute_s / max(1.0, other.samples) for other in times)
    return (
        StragglerCause.DATA
        if more_data > one.compute_s - usual * one.samples
        else StragglerCause.COMPUTE
    )
