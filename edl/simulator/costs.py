"""Let a policy decide by wrong step times and wrong lengths of jobs: :class:`ErrorModelPolicy`.

A simulated job's model tells a policy its true speed and its true length; that of a live job is an
estimate. The errors here are lognormal: a time is multiplied by exp(d z), z from the standard
normal distribution, so d is about the relative error. They follow from the seed, the job, the time
and what is asked, so that the same simulation gives the same answer.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from edl.cluster.state import (
    EXACT,
    Allocation,
    ClusterJob,
    ClusterPolicy,
    ClusterState,
    Node,
    Placement,
    StepTimeError,
    TrainingModel,
)
from edl.errors import UsageError

# ------------------------------------------------------------
# Define the cost of a change of a job's slots: the seconds during which the job does not train.
#
# `ResizeCost` has the cost of each kind of change, and `change_of` tells the kind. Published
# simulators charge one constant, also for the first start (Pollux: 30 s, for a stop and a restart
# from a checkpoint). With edl the costs of the kinds of change differ by two orders of magnitude.


class SlotChange(StrEnum):
    """The kind of a change of a job's slots."""

    START = "start"  # the job gets its first slots
    RESTART = "restart"  # it gets slots after it had none, and starts from a checkpoint
    JOIN = "join"  # it keeps its slots and gets more
    LEAVE = "leave"  # it keeps only some of its slots
    MIGRATE = "migrate"  # any other change
    PREEMPT = "preempt"  # a decision takes all its slots
    FAILURE = "failure"  # one of its nodes fails, and it loses all slots


@dataclass(frozen=True)
class ResizeCost:
    """The cost of each kind of change of a job's slots, in seconds without training."""

    start: float = 30.0  # when the job gets its first slots
    restart: float = 30.0  # when it gets slots after it had lost all
    join: float = 30.0  # when it gets further slots, or has its slots in another order
    leave: float = 30.0  # when it keeps only some of its slots
    migrate: float = 30.0  # any other change
    # how long the new workers of a job that trains take to be there, after a change that costs
    # `join` or `migrate`; by default 0. Meanwhile the job trains with the slots that it had, and
    # then it pays for the change.
    prepare: float = 0.0

    def of(self, change: SlotChange) -> float:
        """Return the seconds without training that `change` costs."""
        if change in (SlotChange.PREEMPT, SlotChange.FAILURE):
            return 0.0
        seconds: float = getattr(self, change.value)
        return seconds

    @property
    def resize_s(self) -> float:
        """The seconds that policies assume a resize to cost: the mean of `join` and `leave`."""
        return (self.join + self.leave) / 2


def constant(seconds: float) -> ResizeCost:
    """Return the cost of a resize that is `seconds` without training for each kind of change."""
    return ResizeCost(seconds, seconds, seconds, seconds, seconds)


def parse_resize_cost(text: str) -> ResizeCost:
    """Return the costs that `text` gives, like "30" or "start=20,restart=25,join=0.3"."""
    parts = [part.partition("=") for part in text.split(",")]
    names = [one.name for one in fields(ResizeCost)]
    try:
        if len(parts) == 1 and not parts[0][1]:
            cost = constant(float(text))
        else:
            given = {name.strip(): float(value) for name, _, value in parts}
            if not given.keys() <= set(names):
                raise ValueError
            cost = replace(ResizeCost(), **given)
    except ValueError:
        raise UsageError(
            f"{text!r} is no cost of a resize; write seconds, like 30, or some of "
            f"{', '.join(f'{name}=SECONDS' for name in names)}"
        ) from None
    if not all(0 <= getattr(cost, name) < float("inf") for name in names):
        raise UsageError(f"{text!r} has a time that is negative or endless; write 0 or more")
    return cost


def change_of(before: Placement, after: Placement, trained: bool) -> SlotChange:
    """Return the kind of change from the placement `before` to the placement `after`."""
    # never `FAILURE`: a job without slots counts as preempted
    if not after:
        return SlotChange.PREEMPT
    if not before:
        return SlotChange.RESTART if trained else SlotChange.START
    had, has = _by_node(before), _by_node(after)
    if all(has.get(node, 0) >= count for node, count in had.items()):
        return SlotChange.JOIN
    if all(had.get(node, 0) >= count for node, count in has.items()):
        return SlotChange.LEAVE
    return SlotChange.MIGRATE


def _by_node(placement: Placement) -> dict[str, int]:
    """Return the number of slots of `placement` on each node, by the node's name."""
    slots: dict[str, int] = {}
    for node, count in placement:
        slots[node] = slots.get(node, 0) + count
    return slots


# ------------------------------------------------------------
# Draw by seed when nodes fail and when they come back: `Failures`.


@dataclass(frozen=True)
class Failures:
    """The rates at which nodes fail and come back."""

    # the mean seconds from the return of a node (at first from time 0) to its next failure
    mean_up_s: float
    mean_down_s: float  # the mean seconds from the failure of a node to its return
    # the seed of the random times. Each node draws from a generator of its own, so its times do not
    # depend on the other nodes.
    seed: int = 0

    def events(self, nodes: Sequence[Node]) -> Iterator[tuple[float, str, bool]]:
        """Yield the failures and the returns of all `nodes`, in order of time, without end."""
        chance = {node.name: random.Random(f"{self.seed} {node.name}") for node in nodes}
        coming = [(self._after(chance[name], True), name, False) for name in chance]
        heapq.heapify(coming)
        while coming:
            at_s, name, up = coming[0]
            yield at_s, name, up
            heapq.heapreplace(coming, (at_s + self._after(chance[name], up), name, not up))

    def _after(self, chance: random.Random, up: bool) -> float:
        return chance.expovariate(1 / (self.mean_up_s if up else self.mean_down_s))


QUANTILES = 1 << 12

PROBES = tuple((slots,) for slots in range(1, 5))  # placements that are compared between decisions

KEPT = 4  # decisions that are compared


@dataclass(frozen=True)
class ModelErrors:
    """The errors with which a policy sees the models of jobs."""

    # the standard deviation of the logarithm of each step time: of each placement and batch, drawn
    # anew at each decision
    step_times: float = 0.0
    # the standard deviation of the logarithm of a job's remaining steps, drawn once
    lengths: float = 0.0
    seed: int = 0  # the seed of both


@dataclass(frozen=True)
class ErrorModel:
    """A model of a job whose step times and remaining steps are wrong."""

    model: TrainingModel  # the true model
    errors: ModelErrors  # the size of the errors
    job: str  # the name of the job
    now_s: float  # the time of the decision, for which its step times are drawn
    error: StepTimeError  # the error of a step time, as it is known (`seen_error`)

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the wrong seconds of a step of `batch` samples; `slots` has them by node."""
        step_s = self.model.step_s(slots, batch)
        if not self.errors.step_times:
            return step_s
        return step_s * math.exp(step_time_error(self.errors, self.job, self.now_s, slots, batch))

    def efficiency(self, batch: int) -> float:
        """Return the statistical efficiency of a global batch of `batch` samples, from 0 to 1."""
        return self.model.efficiency(batch)

    def steps_left(self, batch: int) -> float:
        """Return the wrong number of steps until the job ends, each of `batch` samples."""
        steps = self.model.steps_left(batch)
        if not self.errors.lengths:
            return steps
        return steps * math.exp(self.errors.lengths * _drawn(self.errors.seed, self.job, "length"))


@dataclass(frozen=True)
class ErrorModelPolicy:
    """A cluster policy that decides by wrong models."""

    policy: ClusterPolicy  # the policy that decides
    errors: ModelErrors  # the size of the errors

    def __call__(self, cluster: ClusterState) -> Allocation:
        before: Mapping[str, Any] = cluster.state.get("looks", {})
        looks = {
            job.name: [*before.get(job.name, ())[1 - KEPT :], cluster.now_s] for job in cluster.jobs
        }
        error = seen_error(self.errors, cluster.jobs, looks)
        jobs = [
            replace(job, model=ErrorModel(job.model, self.errors, job.name, cluster.now_s, error))
            for job in cluster.jobs
        ]
        own = cluster.state.get("policy", {})
        decision = self.policy(replace(cluster, jobs=jobs, state=own))
        return replace(decision, state={"looks": looks, "policy": decision.state})


def seen_error(
    errors: ModelErrors, jobs: Sequence[ClusterJob], looks: Mapping[str, Sequence[float]]
) -> StepTimeError:
    """Return the error of step times, estimated from what they were at the last decisions."""
    if not errors.step_times:
        return EXACT
    # The variance is half the mean square of the differences between two decisions.
    differences = [
        step_time_error(errors, job.name, then_s, slots, job.batch)
        - step_time_error(errors, job.name, first_s, slots, job.batch)
        for job in jobs
        for first_s, then_s in pairwise(looks[job.name])
        for slots in PROBES
    ]
    if not differences:
        return EXACT
    return StepTimeError(math.sqrt(float(np.mean(np.square(differences))) / 2))


def step_time_error(
    errors: ModelErrors, job: str, at_s: float, slots: tuple[int, ...], batch: int
) -> float:
    """Return the logarithm of the factor by which a step time of a job is wrong at a decision."""
    return errors.step_times * _drawn(errors.seed, job, at_s, slots, batch)


def _drawn(*of: object) -> float:
    digest = hashlib.blake2b(repr(of).encode(), digest_size=2).digest()
    return _quantiles()[int.from_bytes(digest) % QUANTILES]


@cache
def _quantiles() -> tuple[float, ...]:
    normal = NormalDist()
    return tuple(normal.inv_cdf((at + 0.5) / QUANTILES) for at in range(QUANTILES))
