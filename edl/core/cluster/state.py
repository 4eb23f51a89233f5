"""What a cluster policy sees and answers: values, the same for live jobs and for simulated ones.

A policy is asked now and then: on every arrival and end, or each so many seconds. It sees all jobs
that have arrived and have not ended, and says which slots each of them has from now on. Whoever
asked carries that out, and pays what a change costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from edl.core.policy.step_time import Measured

Placement = tuple[tuple[str, int], ...]
"""Node and number of slots there, in the order of the job's ranks; no number is 0."""

Placements = Mapping[str, Placement]
"""The placement of each job that has slots, by name."""

PolicyState = Mapping[str, Any]
"""What a policy wants to be told the next time: JSON values, for another process may ask then."""


def size(placement: Placement) -> int:
    """Slots of a placement."""
    return sum(count for _, count in placement)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that is up.

    Attributes:
        kind: of machine, where they differ in speed; empty: they do not.
    """

    name: str
    slots: int
    kind: str = ""


def total(nodes: Sequence[Node]) -> int:
    """Slots of all nodes."""
    return sum(node.slots for node in nodes)


class Model(Protocol):
    """What is known of how a job trains: measured, fitted, or told by an oracle.

    A batch is the global one, in samples: what all slots together take in a step.
    """

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Seconds of a step with so many slots on each node."""

    def efficiency(self, batch: int) -> float:
        """What a sample is worth in such a batch, as a part of its worth in the smallest one."""

    def steps_left(self, batch: int) -> float:
        """Steps of this batch until the job ends."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job that has arrived and has not ended.

    Attributes:
        arrival_s: when it was submitted, on the clock of ``now_s``.
        requested_slots: as its user asked; policies of fixed sizes give just these.
        min_slots, max_slots: what a policy that chooses the size may give; requested_slots lies
            between them. How many can share a batch: :meth:`most_slots`.
        batch: samples of a step now: as its user asked, until a decision says another.
        batches: the smallest and the largest that the job may be trained with.
        attained_slot_s: seconds that it had slots, times the slots, changes of size included.
        preemptible: false: once it has slots, it keeps just these until it ends.
        local_batches: the fewest samples of a step that a slot can take, and the most that it takes
            at once: a larger share is accumulated. None: any.
        steps: that the job has measured, in the order in which it did: each number of slots and
            nodes with each local batch once.
        noise_scale: of its gradients, in samples (:mod:`edl.core.step.noise_scale`), as it was
            last measured; infinite: they are nothing but noise. None: not known.
        weight: its part of the slots beside others, where a policy shares by weight; above 0.
    """

    name: str
    arrival_s: float
    requested_slots: int
    min_slots: int
    max_slots: int
    batch: int
    batches: tuple[int, int]
    model: Model
    attained_slot_s: float = 0.0
    preemptible: bool = True
    local_batches: tuple[int, int] | None = None
    steps: tuple[Measured, ...] = ()
    noise_scale: float | None = None
    weight: float = 1.0

    def most_slots(self, batch: int) -> int:
        """How many slots may share a batch of so many samples; at most ``max_slots``."""
        if self.local_batches is None:
            return self.max_slots
        return min(self.max_slots, batch // self.local_batches[0])


@dataclass(frozen=True)
class ClusterState:
    """What a policy is asked about.

    Attributes:
        jobs: in the order in which they were submitted.
        nodes: those that are up, in the order in which they are filled.
        present: the slots that jobs have now.
        notes: of the last decision; empty at first.
    """

    jobs: Sequence[ClusterJob]
    nodes: Sequence[Node]
    present: Placements
    now_s: float
    state: PolicyState

    @property
    def slots(self) -> int:
        """Of all nodes."""
        return total(self.nodes)

    @property
    def per_node(self) -> int:
        """Slots of the largest node; at least 1."""
        return max((node.slots for node in self.nodes), default=1)

    @property
    def pinned(self) -> list[ClusterJob]:
        """Those whose slots nobody may take."""
        return [job for job in self.jobs if not job.preemptible and job.name in self.present]

    @property
    def fixed(self) -> dict[str, int]:
        """How many slots each of those has."""
        return {job.name: size(self.present[job.name]) for job in self.pinned}


@dataclass(frozen=True)
class Allocation:
    """What a policy answers.

    Attributes:
        allocation: of all jobs; who is not in it has no slots.
        reasons: one sentence for each job, with or without slots.
        notes: for the policy's next decision.
        batches: samples of a step, of jobs that train with another batch than before; who is not in
            it keeps its batch. That alone costs nothing: no slot changes.
    """

    placements: Placements
    reasons: Mapping[str, str]
    state: PolicyState = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)


class Policy(Protocol):
    """A policy with its parameters."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        """Who has which slots from ``cluster.now_s`` on."""


@runtime_checkable
class QueuePolicy(Policy, Protocol):
    """A policy that only starts jobs: who has slots keeps them to the end.

    Whom it starts follows from those that wait and from the slots that are free: asked about no
    more than these, it answers the same.
    """

    @property
    def in_order(self) -> bool:
        """Nobody starts before those submitted earlier, whose start waits for slots alone."""
