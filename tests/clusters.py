"""Jobs, models and nodes for the tests of cluster policies and of the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.cluster.state import (
    EXACT,
    Allocation,
    ClusterJob,
    ClusterPolicy,
    ClusterState,
    Node,
    Placements,
    PolicyState,
    StepTimeError,
    slot_count,
)
from edl.simulator.costs import constant
from edl.simulator.engine import Rules, simulate
from edl.simulator.results import JobResult, Result
from edl.simulator.workload import SubmittedJob, TimedWork


@dataclass(frozen=True)
class Steps:
    """A model with the time of a step by number of slots; 1 s shared by all where none is given."""

    left: float = 100.0
    times: Mapping[int, float] = field(default_factory=dict)

    error: StepTimeError = EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        return self.times.get(sum(slots), 1 / sum(slots))

    def efficiency(self, batch: int) -> float:
        return 1.0

    def steps_left(self, batch: int) -> float:
        return self.left


def job(name: str, slots: int = 1, **changes: Any) -> ClusterJob:
    values: dict[str, Any] = {"min_slots": 1, "max_slots": 8, "model": Steps()}
    values |= {"batch": 1, "batches": (1, 1)} | changes
    return ClusterJob(name, values.pop("arrival_s", 0.0), slots, **values)


def just_submitted(one: SubmittedJob) -> ClusterJob:
    limits = one.requested_slots, one.min_slots, one.max_slots
    model = one.work.model(0, 0.0)
    return ClusterJob(one.name, one.arrival_s, *limits, 1, (1, 1), model, weight=one.weight)


def nodes(*slots: int) -> list[Node]:
    return [Node(f"n{number}", count) for number, count in enumerate(slots)]


def decide(
    policy: ClusterPolicy,
    jobs: Sequence[ClusterJob],
    machines: Sequence[Node],
    present: Placements | None = None,
    state: PolicyState | None = None,
    now_s: float = 100.0,
) -> Allocation:
    return policy(ClusterState(jobs, machines, present or {}, now_s, state or {}))


def sizes(decision: Allocation) -> dict[str, int]:
    return {name: slot_count(placement) for name, placement in decision.placements.items()}


def submitted(
    name: str, arrival_s: float, duration_s: float, slots: int = 1, **changes: Any
) -> SubmittedJob:
    """Return a job of known duration with ``slots``, of a fixed size if nothing else is said."""
    fraction = changes.pop("parallel_fraction", 1.0)
    limits = {"min_slots": slots, "max_slots": slots} | changes
    return SubmittedJob(name, arrival_s, TimedWork(duration_s, slots, fraction), slots, **limits)


def run(
    policy: ClusterPolicy,
    jobs: Sequence[SubmittedJob],
    machines: Sequence[Node],
    cost_s: float = 0.0,
    **rules: Any,
) -> dict[str, JobResult]:
    """Simulate the jobs; without an interval among ``rules`` the policy decides at every event."""
    done = result(policy, jobs, machines, cost_s, **rules)
    return {job.name: job for job in done.jobs}


def result(
    policy: ClusterPolicy,
    jobs: Sequence[SubmittedJob],
    machines: Sequence[Node],
    cost_s: float = 0.0,
    **rules: Any,
) -> Result:
    values = {"interval_s": 0.0, "resize": constant(cost_s)} | rules
    return simulate(jobs, machines, policy, Rules(**values))
