"""Choose slots and batches by goodput, with a genetic search: Pollux, as in its artifact.

:class:`Pollux` is the policy. For each job, a model of its step time is fitted to its measurements
so far. Its gradient noise scale says what larger batches are worth. So each allocation has a
speedup for each job, with the best batch that the allocation allows. The search looks for the
allocation with the largest harmonic mean of the speedups over a fair share: the first slots of a
job count most. A job that would be moved counts less, by its age A and the number n of times that
it was moved before, with D = 30 s:

    max(A - n D, 0) / (A + D)

So a young job is seldom moved, nor is a job that was moved often. No job has more than twice the
slots that it has tried so far, or its minimum if that is more. Two jobs on several nodes never
share a node, as they would slow each other down. Jobs that have attained the least service go first
(Pollux, OSDI 2021, section 4.2, and the simulator of its artifact;
:mod:`benchmarks.published.pollux_search` and the modules beside it have the parts).

All jobs may be resized at each decision, except jobs with slots that may not be preempted. A job
without slots makes the mean small, so it is served as soon as other jobs can be made smaller. Where
they cannot, or for a job with a minimum above 1, there is no bound on its wait. The speed of a job
that was never measured is taken to be proportional to its slots.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

import numpy as np

from benchmarks.published.pollux_fit import fit_parts
from benchmarks.published.pollux_goodput import BatchLimits, Choices, Shapes, choices
from benchmarks.published.pollux_search import (
    Counts,
    Problem,
    SearchBudget,
    search,
    with_starts,
)
from edl.cluster.state import (
    Allocation,
    ClusterJob,
    ClusterState,
    Node,
    Placement,
    Placements,
    PolicyState,
    slot_count,
    total,
)
from edl.policy.step_time import StepTime
from edl.spec import setting
from edl.text import counted

START = 0.01  # least factor of a job without slots, so that to start it is worth something
BEYOND = 2  # a job may have so many times the most slots that it has tried


@dataclass(frozen=True)
class Pollux:
    """The cluster policy `pollux`: slots and batches by goodput, found by a genetic search."""

    population: int = setting(100, "states of the genetic search", least=2)
    generations: int = setting(100, "of the search, at most", least=1)
    patience: int = setting(20, "generations without a fitter state that end it", least=1)
    move_s: float = setting(30.0, "what a change of slots is taken to cost")
    seed: int = setting(0, "of the search")

    def __call__(self, cluster: ClusterState) -> Allocation:
        if not cluster.jobs or not cluster.nodes:
            return Allocation(
                {}, {job.name: "waits: no node is up" for job in cluster.jobs}, cluster.state
            )
        fixed = cluster.fixed
        order = sorted(cluster.jobs, key=lambda job: (job.name not in fixed, job.attained_slot_s))
        models = _models(order, cluster.state.get("models", {}))
        found = _choices(order, cluster.nodes, cluster.present, models)
        moves: Mapping[str, int] = cluster.state.get("moves", {})
        problem = Problem(
            slots=np.array([node.slots for node in cluster.nodes], np.int16),
            present=_state(order, cluster.nodes, cluster.present),
            speedups=np.stack([one.speedups for one in found]),
            penalties=np.array(
                [self._penalty(job, cluster.present, cluster.now_s, moves) for job in order]
            ),
            most=np.array([_most(job, cluster.present) for job in order]),
            least=np.array([job.min_slots for job in order]),
            fixed=np.array([job.name in fixed for job in order]),
        )
        first = np.stack([problem.present, with_starts(problem)])
        if "population" in cluster.state:
            first = np.concatenate([first, _carried(cluster.state, order, cluster.nodes)])
        round_ = int(cluster.state.get("round", 0))
        effort = SearchBudget(self.population, self.generations, self.patience)
        best, population = search(
            problem, first, effort, np.random.default_rng([self.seed, round_])
        )
        allocation = _allocation(best, order, cluster.nodes, cluster.present)
        batches = {
            job.name: int(one.batches[np.count_nonzero(row), row.sum()])
            for job, one, row in zip(order, found, best, strict=True)
            if row.any()
        }
        return Allocation(
            allocation,
            _reasons(order, found, best, batches),
            {
                "round": round_ + 1,
                "models": {name: [count, *astuple(one)] for name, (count, one) in models.items()},
                "moves": _moves(order, cluster.present, allocation, moves),
                "jobs": [job.name for job in order],
                "nodes": [node.name for node in cluster.nodes],
                "population": base64.b64encode(population.tobytes()).decode(),
            },
            {job.name: batches[job.name] for job in order if _retuned(job, batches)},
        )

    def _penalty(
        self, job: ClusterJob, present: Placements, now_s: float, moves: Mapping[str, int]
    ) -> float:
        """Return the factor, 0 to 1, by which a job's speedup is multiplied if its slots change."""
        age_s = max(0.0, now_s - job.arrival_s)
        lost_s = moves.get(job.name, 0) * self.move_s
        penalty = max(age_s - lost_s, 0.0) / (age_s + self.move_s)
        # so that to start it is worth something
        return penalty if job.name in present else max(penalty, START)


def _retuned(job: ClusterJob, batches: Mapping[str, int]) -> bool:
    return batches.get(job.name, job.batch) != job.batch


Models = dict[str, tuple[int, StepTime]]
"""Of each job that has trained: how many measurements its model is fitted to, and the model."""


def _models(jobs: Sequence[ClusterJob], before: Mapping[str, Sequence[float]]) -> Models:
    """Return for each job that was measured the number of measurements and its step-time model."""
    models: Models = {}
    for job in jobs:
        known = before.get(job.name, (0,))
        if len(job.steps) > known[0]:
            models[job.name] = len(job.steps), fit_parts(job.steps)
        elif known[0]:
            models[job.name] = int(known[0]), StepTime(*known[1:])
    return models


def _choices(
    jobs: Sequence[ClusterJob], nodes: Sequence[Node], present: Placements, models: Models
) -> list[Choices]:
    """Return each job's speedup and best batch for each number of nodes and of slots."""
    room = tuple(accumulate(sorted((node.slots for node in nodes), reverse=True)))
    fair = math.ceil(total(nodes) / len(jobs))
    found = []
    for job in jobs:
        _, model = models.get(job.name, (0, None))
        batches = job.batches if job.local_batches else (job.batch, job.batch)
        limits = BatchLimits(batches, job.local_batches)
        shapes = Shapes(room, _most(job, present))
        found.append(choices(model, job.noise_scale, limits, shapes, fair))
    return found


def _most(job: ClusterJob, present: Placements) -> int:
    """Return the most slots that a job may have after this decision."""
    tried = max((step.workers for step in job.steps), default=0)
    most = min(max(BEYOND * tried, job.min_slots), job.most_slots(job.batches[1]))
    return max(most, slot_count(present.get(job.name, ())))


def _state(jobs: Sequence[ClusterJob], nodes: Sequence[Node], present: Placements) -> Counts:
    """Return the number of slots of each job on each node, as an array (jobs, nodes)."""
    column = {node.name: at for at, node in enumerate(nodes)}
    state = np.zeros((len(jobs), len(nodes)), np.int16)
    for row, job in enumerate(jobs):
        for node, count in present.get(job.name, ()):
            if node in column:
                state[row, column[node]] = count
    return state


def _carried(notes: PolicyState, jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> Counts:
    """Return the population of the last search, with a row for each present job."""
    rows = {name: at for at, name in enumerate(notes["jobs"])}
    columns = {name: at for at, name in enumerate(notes["nodes"])}
    packed = np.frombuffer(base64.b64decode(notes["population"]), np.int16)
    before = packed.reshape(-1, len(rows), len(columns))
    states = np.zeros((len(before), len(jobs), len(nodes)), np.int16)
    to_row = [at for at, job in enumerate(jobs) if job.name in rows]
    to_column = [at for at, node in enumerate(nodes) if node.name in columns]
    of_row = [rows[jobs[at].name] for at in to_row]
    of_column = [columns[nodes[at].name] for at in to_column]
    states[np.ix_(range(len(before)), to_row, to_column)] = before[
        np.ix_(range(len(before)), of_row, of_column)
    ]
    return states


def _allocation(
    state: Counts, jobs: Sequence[ClusterJob], nodes: Sequence[Node], present: Placements
) -> dict[str, Placement]:
    """Return the placement of each job that has slots in `state`, by its name."""
    allocation = {}
    for job, row in zip(jobs, state.tolist(), strict=True):
        placement = tuple(
            (node.name, count) for node, count in zip(nodes, row, strict=True) if count
        )
        before = present.get(job.name, ())
        if placement:
            allocation[job.name] = before if sorted(before) == sorted(placement) else placement
    return allocation


def _moves(
    jobs: Sequence[ClusterJob],
    present: Placements,
    allocation: Placements,
    moves: Mapping[str, int],
) -> dict[str, int]:
    """Return how often each job was given other slots after its first ones, by its name."""
    counts = {}
    for job in jobs:
        name = job.name
        moved = name in allocation and allocation[name] != present.get(name)
        if name in moves or moved:
            counts[name] = moves.get(name, -1) + moved
    return counts


def _reasons(
    jobs: Sequence[ClusterJob], found: Sequence[Choices], state: Counts, batches: Mapping[str, int]
) -> dict[str, str]:
    """Return the clause that says why each job has its slots or waits, by the job's name."""
    reasons = {}
    for job, one, row in zip(jobs, found, state, strict=True):
        slots, on = int(row.sum()), int(np.count_nonzero(row))
        if not slots:
            reasons[job.name] = "waits: its slots are worth more to others"
            continue
        has = f"has {counted(slots, 'slot')} on {counted(on, 'node')}"
        speedup = one.speedups[on, slots]
        reasons[job.name] = (
            f"{has}: {speedup:.2f} times the goodput of its fair share, with a batch of "
            f"{batches[job.name]}"
        )
    return reasons
