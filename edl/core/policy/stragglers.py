"""Who holds the others up for long: give it less to do, then another in its place.

The speed of a worker is the samples that it trains in a second of its own time, relative to the
median of all; an average that forgets by a tenth a step tells a slow worker from a slow step. Below
0.8 it is a straggler (AutoScaling, MLSys 2020, whose code has these numbers). There it is replaced
at once. Here it first gets a smaller share of the batch, which costs nothing and keeps the gradient
exact; only if its share would be smaller than half is it replaced, too.

What is slow is told apart: loading data is not computing, and no other worker would do better at
it; and where all reduce for longer than they compute, it is nobody's fault. A host whose workers
are all slow is one finding.
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


class Slow(StrEnum):
    """What a straggler is slow at."""

    COMPUTE = "computes"
    DATA = "loads its data"
    NETWORK = "reduces"


@dataclass(frozen=True)
class Times(Record):
    """What one worker did in each of the last ``steps`` steps, on average.

    Attributes:
        samples: that it trained.
        compute_s: its own part: from having its batch to its gradients, and with their mean.
        data_s: until it had its batch.
        reduce_s: from its gradients to the mean of all, waiting for the others included.
    """

    worker: int
    host: str
    samples: float
    compute_s: float
    data_s: float = 0.0
    reduce_s: float = 0.0
    steps: int = 1

    @property
    def own_s(self) -> float:
        return self.compute_s + self.data_s


@dataclass(frozen=True)
class StragglerReport:
    """Who is slow, together, and what at.

    Attributes:
        workers: none: all alike, by the network.
        host: where all of them are, if they are all that are there; else empty.
        speed: of the slowest, relative to the median; of a network the part of a step that is not
            spent in it.
    """

    workers: tuple[int, ...]
    host: str
    at: Slow
    speed: float

    def __str__(self) -> str:
        if self.at is Slow.NETWORK:
            return f"reducing takes {1.0 - self.speed:.0%} of each step, on all workers alike"
        who = f"host {self.host} ({names(self.workers)})" if self.host else names(self.workers)
        return f"{who} {self.at} at {self.speed:.2f} of the usual speed"


class Care(NamedTuple):
    """What is to be done: shares of a batch by worker (1: a whole one), and whom to replace."""

    shares: Mapping[int, float]
    replace: tuple[int, ...]
    findings: tuple[StragglerReport, ...]
    state: State


NO_CARE = Care({}, (), (), {})


@dataclass(frozen=True)
class Stragglers:
    """Table ``stragglers``. It keeps the speeds in its state."""

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

    def __call__(self, times: Sequence[Times], state: State) -> Care:
        """What is to be done about the workers of a ring.

        Two can say nothing of each other; who has trained nothing says nothing of itself.
        """
        times = [one for one in times if one.samples > 0 and one.own_s > 0]
        if len(times) < 3:
            return Care({}, (), (), state)
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
            w for finding in findings if finding.at is Slow.COMPUTE for w in finding.workers
        ]
        shares = {worker: float(notes[str(worker)]["speed"]) for worker in sorted(computing)}
        replace = tuple(
            w for w, speed in shares.items() if self.replaces and speed < self.least_share
        )
        return Care(shares, replace, (*findings, *_network(times)), notes)

    def _findings(
        self, times: Sequence[Times], slow: Sequence[Times], notes: Mapping[str, Any]
    ) -> list[StragglerReport]:
        by_host: dict[tuple[str, Slow], list[int]] = defaultdict(list)
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
    """The part of a step in which workers wait for their data, on average; 0 of nobody."""
    steps_s = sum(one.own_s + one.reduce_s for one in times)
    return sum(one.data_s for one in times) / steps_s if steps_s > 0 else 0.0


def slowest(times: Sequence[Times]) -> tuple[Times, ...]:
    """Those that people are shown."""
    return tuple(sorted(times, key=lambda one: -one.own_s)[:SHOWN])


def _network(times: Sequence[Times]) -> list[StragglerReport]:
    """Whether reducing takes longer than even the slowest one computes and loads.

    The one that all others wait for waits for nobody.
    """
    reduce_s = min(one.reduce_s for one in times)
    own_s = max(one.own_s for one in times)
    if reduce_s <= own_s:
        return []
    return [StragglerReport((), "", Slow.NETWORK, own_s / (own_s + reduce_s))]


def _rate(one: Times) -> float:
    return one.samples / one.own_s


def _at(one: Times, times: Sequence[Times]) -> Slow:
    """What costs it most more than the others; a smaller batch is loaded and computed sooner."""
    usual = median(other.data_s / max(1.0, other.samples) for other in times)
    more_data = one.data_s - usual * one.samples
    usual = median(other.compute_s / max(1.0, other.samples) for other in times)
    return Slow.DATA if more_data > one.compute_s - usual * one.samples else Slow.COMPUTE
