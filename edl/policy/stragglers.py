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

from edl.learning import LearningSample
from edl.policy.observation import State
from edl.record import Record
from edl.spec import setting
from edl.step.batching import Batching
from edl.step.noise import UNKNOWN, NoiseScale
from edl.text import names

SHOWN = 20  # workers, the slowest ones, to people


class StragglerCause(StrEnum):
    """The activity that a straggler is slow at."""

    COMPUTE = "computes"
    DATA = "loads its data"
    NETWORK = "reduces"  # on all workers alike


@dataclass(frozen=True)
class Times(Record):
    worker: int
    host: str
    samples: float
    compute_s: float  # from its batch to its gradients, and the work with the mean gradients
    data_s: float = 0.0  # for which it waited for its batch
    reduce_s: float = 0.0  # from its gradients to the mean of all, with the wait for others
    steps: int = 1  # that the means are over

    @property
    def own_s(self) -> float:
        return self.compute_s + self.data_s


@dataclass(frozen=True)
class StragglerReport:
    workers: tuple[int, ...]  # empty: the network slows all workers alike
    host: str  # if these are all workers of one host; else empty
    at: StragglerCause
    speed: float  # of the slowest of them; for the network, the part of a step without reducing

    def __str__(self) -> str:
        if self.at is StragglerCause.NETWORK:
            return f"reducing takes {1.0 - self.speed:.0%} of each step, on all workers alike"
        who = f"host {self.host} ({names(self.workers)})" if self.host else names(self.workers)
        return f"{who} {self.at} at {self.speed:.2f} of the usual speed"


class Mitigation(NamedTuple):
    """The answer of `Stragglers`: the workers apply the shares, the leader replaces."""

    shares: Mapping[int, float]  # worker -> the fraction of its usual batch, if it is not all of it
    replace: tuple[int, ...]  # some of these workers, in ascending order
    findings: tuple[StragglerReport, ...]
    state: State


NO_MITIGATION = Mitigation({}, (), (), {})


@dataclass(frozen=True)
class Stragglers:
    """The rule for slow workers; each worker calls it every 10 steps, with the same result."""

    forgets: float = setting(0.1, "of what was known of a speed, each step", least=0.0, most=1.0)
    slow_below: float = setting(
        0.8, "of the median speed: then a worker is a straggler", least=0.0, most=1.0
    )
    least_share: float = setting(
        0.5, "of a batch; who would get less is replaced", least=0.0, most=1.0
    )
    patience_steps: int = setting(50, "steps for which it has to be slow", least=1)
    replaces: bool = setting(True, "another worker takes its place, where a slot is free")
    again_s: float = setting(600.0, "until a host gets another replacement")

    def __call__(self, times: Sequence[Times], state: State) -> Mitigation:
        # The state: worker, as a text -> {"speed": its average, "steps": how many it was slow}.
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
    return tuple(sorted(times, key=lambda one: -one.own_s)[:SHOWN])


def _network(times: Sequence[Times]) -> list[StragglerReport]:
    # Whoever all others wait for waits for nobody: the shortest reduction is the network's time.
    reduce_s = min(one.reduce_s for one in times)
    own_s = max(one.own_s for one in times)
    if reduce_s <= own_s:
        return []
    return [StragglerReport((), "", StragglerCause.NETWORK, own_s / (own_s + reduce_s))]


def _rate(one: Times) -> float:
    return one.samples / one.own_s


def _at(one: Times, times: Sequence[Times]) -> StragglerCause:
    # By the excess over the median for as many samples: a smaller batch is loaded and computed
    # sooner.
    usual = median(other.data_s / max(1.0, other.samples) for other in times)
    more_data = one.data_s - usual * one.samples
    usual = median(other.compute_s / max(1.0, other.samples) for other in times)
    return (
        StragglerCause.DATA
        if more_data > one.compute_s - usual * one.samples
        else StragglerCause.COMPUTE
    )


# ------------------------------------------------------------
# Define the summary of a ring's last steps, from which the leader follows the job's policy.


@dataclass(frozen=True)
class RingReport:
    """A summary of a ring's last step records; each worker makes the same one every 10 steps."""

    care: Mitigation = NO_MITIGATION
    times: tuple[Times, ...] = ()  # by rank
    size_changes: tuple[int, ...] = ()  # by rank: how many workers more a script asks for
    is_timed: bool = True  # step times are known, because the script trains with edl's loaders
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None  # None: unknown
    step_batches: int = 1  # batches whose gradients a worker adds up for one step
    learning: tuple[LearningSample, ...] = ()  # new ones, the oldest first
    generation: int = 0  # whose step records have the `size_changes`


NO_REPORT = RingReport()
