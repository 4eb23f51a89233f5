"""Define the input and the output of a cluster policy, for live and simulated jobs alike.

A policy is called from time to time: on every arrival and end of a job, or at a fixed interval. It
sees all jobs that have arrived and have not ended, and decides which slots each of them has until
the next call. The caller carries the decision out; each change of slots costs the job training
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

from edl.policy.step_time import StepTimeSample
from edl.spec import Sizes

Placement = tuple[tuple[str, int], ...]

"""Node and number of slots there, in the order of the job's ranks; no number is 0."""

Placements = Mapping[str, Placement]  # the placement of each job that has slots, by name
PolicyState = Mapping[str, Any]

"""The state that a policy keeps between decisions, as JSON: another process may ask next time."""


def slot_count(placement: Placement) -> int:
    """Return the number of slots of a job's ``placement``, summed over its nodes."""
    return sum(count for _, count in placement)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster that is up.

    Attributes:
        name: the name of the machine.
        slots: the number of workers that it can run.
        kind: the kind of machine, where machines differ in speed; empty where they do not.
    """

    name: str
    slots: int
    kind: str = ""


def total(nodes: Sequence[Node]) -> int:
    """Return the number of slots of all ``nodes`` together."""
    return sum(node.slots for node in nodes)


class StepTimeError(NamedTuple):
    """The error of the step times that a model predicts, as the model itself estimates it.

    Attributes:
        deviation: the standard deviation of the logarithm of a predicted time from the true one,
            about the relative error; 0: none is known.
        readings: the number of measurements on which all predicted times rest, so that they err
            together; 0: each predicted time is a measurement of its own, with an error of its own.
    """

    deviation: float = 0.0
    readings: int = 0


EXACT = StepTimeError()  # the error of a model about whose error nothing is known, or that has none


class TrainingModel(Protocol):
    """The known speed and remaining work of a job: measured, fitted, or exact in a simulation.

    Every ``batch`` is a global batch in samples: the samples that all slots of the job together
    train in a step.
    """

    @property
    def error(self) -> StepTimeError:
        """The error of the times that :meth:`step_s` returns, as far as the model knows it."""

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the time of one step in seconds, or of as many samples if steps have others.

        Args:
            slots: the number of the job's slots on each of its nodes.
            batch: the global batch, in samples. A live job that trains another one on these slots
                takes this time for ``batch`` samples.
        """

    def efficiency(self, batch: int) -> float:
        """Return the statistical efficiency of a global batch of ``batch`` samples.

        It is the progress that one sample brings in this batch, divided by the progress that one
        sample brings in the job's smallest batch.
        """

    def steps_left(self, batch: int) -> float:
        """Return the number of steps until the job ends, each with a global batch of ``batch``."""


ALL_SIZES = Sizes()  # the sizes of a job whose user allows each number of slots


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job that has arrived and has not ended, as a cluster policy sees it.

    Attributes:
        name: the name of the job, unique in the cluster.
        arrival_s: the time at which the job was submitted, on the clock of ``ClusterState.now_s``.
        requested_slots: the number of slots that its user asked for; policies with fixed sizes give
            just these, or fewer after a loss of slots.
        min_slots, max_slots: the fewest and the most slots that a policy which chooses the size may
            give; ``requested_slots`` lies between them. :meth:`most_slots` says how many of them
            can share a batch.
        batch: the samples of a step now: as its user asked, until a decision sets another batch.
        batches: the smallest and the largest global batch that the job may be trained with.
        model: what is known about its step time and its remaining work.
        attained_slot_s: the seconds during which it had slots, times the number of slots, including
            the time that changes of size took.
        preemptible: whether its slots may be changed. If False, the job keeps the slots that it
            was first given until it ends.
        local_batches: the fewest samples of a step that one slot can train, and the most that it
            can train at once (a larger share is accumulated). None: there is no limit.
        steps: the steps that the job has measured, in the order of measurement; each combination of
            slots, nodes and local batch occurs once.
        noise_scale: the last measured noise scale of its gradients, in samples
            (:mod:`edl.step.noise`). Infinite: the gradients are nothing but noise. None:
            the noise scale is not known.
        weight: its weight in policies that share the slots by weight; above 0.
        sizes: the numbers of slots that its user allows. A number that a policy gives is lowered to
            the next allowed one.
        start_s: the seconds that a start of it takes; 0: not known.
        lost_s: the seconds of training that it would lose with all of its slots.
        is_measured: whether its speed and what is left of it are known, not assumed.
    """

    name: str
    arrival_s: float
    requested_slots: int
    min_slots: int
    max_slots: int
    batch: int
    batches: tuple[int, int]
    model: TrainingModel
    attained_slot_s: float = 0.0
    preemptible: bool = True
    local_batches: tuple[int, int] | None = None
    steps: tuple[StepTimeSample, ...] = ()
    noise_scale: float | None = None
    weight: float = 1.0
    sizes: Sizes = ALL_SIZES
    start_s: float = 0.0
    lost_s: float = 0.0
    is_measured: bool = True

    def allowed_slots(self, slots: int) -> int:
        """Return the largest allowed number of slots that is at most ``slots``; 0: there is none.

        It lies between ``min_slots`` and ``max_slots``, and is one of ``sizes``.
        """
        found = self.sizes.below(min(slots, self.max_slots))
        return found if found is not None and found >= self.min_slots else 0

    def most_slots(self, batch: int) -> int:
        """Return how many slots can share a global batch of ``batch`` samples.

        Each slot needs at least the smallest local batch of ``local_batches`` (None: any share will
        do). The result is at most ``max_slots``.
        """
        if self.local_batches is None:
            return self.max_slots
        return min(self.max_slots, batch // self.local_batches[0])


@dataclass(frozen=True)
class ClusterState:
    """The jobs and the nodes of a cluster at one time: the input of a cluster policy.

    Attributes:
        jobs: the jobs that have arrived and have not ended, in the order of submission.
        nodes: the nodes that are up, in the order in which they are filled.
        present: the slots that jobs have now, by job name, as (node, number of slots) pairs.
        now_s: the time of the decision, in seconds.
        state: what the policy kept for itself in its last decision (``Allocation.state``); empty
            before its first decision.
    """

    jobs: Sequence[ClusterJob]
    nodes: Sequence[Node]
    present: Placements
    now_s: float
    state: PolicyState

    @cached_property
    def slots(self) -> int:
        """The number of slots of all nodes together."""
        return total(self.nodes)

    @cached_property
    def per_node(self) -> int:
        """The number of slots of the largest node; 1 if no node is up."""
        return max((node.slots for node in self.nodes), default=1)

    @property
    def pinned(self) -> list[ClusterJob]:
        """The jobs that have slots and may not be preempted: they keep exactly these slots."""
        return [job for job in self.jobs if not job.preemptible and job.name in self.present]

    @property
    def fixed(self) -> dict[str, int]:
        """The number of slots of each job that has slots and may not be preempted, by job name."""
        return {job.name: slot_count(self.present[job.name]) for job in self.pinned}


@dataclass(frozen=True)
class Allocation:
    """The decision of a cluster policy: the slots of each job, and the reason for them.

    Attributes:
        placements: the slots of all jobs, by job name, as (node, number of slots) pairs; a job that
            is not in it has no slots.
        reasons: by job name one sentence for each job, whether it has slots or not.
        state: what the policy wants to be given at its next decision (``ClusterState.state``).
        batches: by job name, the new global batch, in samples, of each job that shall train with
            another batch than before; a job that is not in it keeps its batch. A change of the
            batch alone costs nothing, as no slot changes.
    """

    placements: Placements
    reasons: Mapping[str, str]
    state: PolicyState = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)


class ClusterPolicy(Protocol):
    """A cluster policy with its parameters: a callable that decides which slots each job has.

    It is called with the state of the cluster on each arrival and end of a job, or at an interval.
    """

    def __call__(self, cluster: ClusterState) -> Allocation:
        """Return which slots each job of `cluster` has until the next decision, and why."""


@runtime_checkable
class QueuePolicy(ClusterPolicy, Protocol):
    """A cluster policy that only starts jobs: a job that has slots keeps them until it ends.

    This holds as long as no job has fewer slots than it requested, so in simulations; if nodes are
    lost, jobs may shrink and grow back.

    Which jobs it starts depends only on the waiting jobs and the free slots. So it starts the same
    jobs if it is asked about these alone, without the running jobs.
    """

    @property
    def in_order(self) -> bool:
        """Whether no job starts before a job that was submitted earlier.

        If so, the earliest waiting job waits for nothing but free slots.
        """


# ------------------------------------------------------------
# Check the decision of a cluster policy against the rules that hold for every policy.
#
# Each decision is checked before it is carried out.


def violation(decision: Allocation, cluster: ClusterState) -> str | None:
    """Return the first rule that `decision` breaks, as a sentence; None: it breaks none."""
    known = {job.name: job for job in cluster.jobs}
    wrong = _slots(decision, known, cluster.nodes) or _batches(decision, known)
    if wrong is not None:
        return wrong
    for job in cluster.pinned:
        if decision.placements.get(job.name) != cluster.present[job.name]:
            return f"{job.name} may not be preempted, and would lose its slots"
    silent = [job.name for job in cluster.jobs if not decision.reasons.get(job.name)]
    return f"{silent[0]} is given no reason" if silent else None


def _slots(
    decision: Allocation, known: Mapping[str, ClusterJob], nodes: Sequence[Node]
) -> str | None:
    """Return the first rule about slots that `decision` breaks, as a sentence; None: none."""
    slots = {node.name: node.slots for node in nodes}
    used: Counter[str] = Counter()
    for name, placement in decision.placements.items():
        job, given = known.get(name), slot_count(placement)
        if job is None:
            return f"{name} has slots and is no job"
        if not job.min_slots <= given <= job.max_slots:
            return f"{name} has {given} slots; it may have {job.min_slots} to {job.max_slots}"
        batch = decision.batches.get(name, job.batch)
        most = job.most_slots(batch)
        if given > most:
            return f"{name} has {given} slots; at most {most} can share its batch of {batch}"
        for node, count in placement:
            used[node] += count
            if count < 1:
                return f"{name} has {count} slots on node {node}"
    for node, count in used.items():
        if count > slots.get(node, 0):
            return f"{count} slots of node {node} are given, and it has {slots.get(node, 0)}"
    return None


def _batches(decision: Allocation, known: Mapping[str, ClusterJob]) -> str | None:
    """Return the first rule about batches that `decision` breaks, as a sentence; None: none."""
    for name, batch in decision.batches.items():
        job = known.get(name)
        if job is None:
            return f"{name} has a batch and is no job"
        smallest, largest = job.batches
        if not smallest <= batch <= largest:
            return f"{name} trains with a batch of {batch}; it may be {smallest} to {largest}"
    return None
