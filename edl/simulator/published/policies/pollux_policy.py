"""Pollux, as its artifact has it: slots and batches by goodput, found by a genetic search.

Of each job a model of its step time is fitted to what it has measured so far, and its gradient
noise scale says what larger batches are worth. So each allocation has a speedup for each job, with
the best batch that it allows. The search looks for the allocation with the largest harmonic mean
of the speedups over a fair share: a job's first slots count for most. A job that would be moved
counts less, by its age A and how often it was moved before, n times of D = 30 s:

    max(A - n D, 0) / (A + D)

So a young job is left alone, and who is moved often, too. No job has more than twice the slots that
it has tried so far, and no two jobs on several nodes meet on one, as they would disturb each other.
Jobs that have attained least go first (Pollux, OSDI 2021, section 4.2 and the simulator of its
artifact; :mod:`edl.simulator.published.policies.pollux_search` and its neighbours have the parts).

All may be resized at each decision. A job without slots makes the mean small, so it is served as
soon as others can be made smaller; where they cannot, or for a job of a minimum above 1, there is
no bound on its wait. One that was never measured is taken to be as fast as it has slots.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

import numpy as np

from edl.core.cluster.state import (
    Allocation,
    ClusterJob,
    ClusterState,
    Node,
    Placement,
    Placements,
    PolicyState,
    size,
    total,
)
from edl.core.plural import counted
from edl.core.policy.step_time import StepTime
from edl.core.settings import setting
from edl.simulator.published.policies.pollux_fit import fit_parts
from edl.simulator.published.policies.pollux_goodput import BatchLimits, Choices, Shapes, choices
from edl.simulator.published.policies.pollux_search import (
    Counts,
    Effort,
    Problem,
    search,
    with_starts,
)

START = 0.01  # what a job without slots counts for at least, so that its start is better than none
BEYOND = 2  # times the most slots that a job has tried, it may have


@dataclass(frozen=True)
class Pollux:
    """Policy ``pollux``. It notes the models, the moves of each job, and the last population."""

    population: int = setting(100, "states of the genetic search", least=2)
    generations: int = setting(100, "of the search, at most", least=1)
    patience: int = setting(20, "generations without a fitter state that end it", least=1)
    move_s: float = setting(30.0, "what a change of slots is taken to cost")
    seed: int = setting(0, "of the search")

    def __call__(self, cluster: ClusterState) -> Allocation:
        """See :class:`edl.core.cluster.state.Policy`."""
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
        effort = Effort(self.population, self.generations, self.patience)
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
        """What the job's speedup is multiplied by, if its slots change."""
        age_s = max(0.0, now_s - job.arrival_s)
        lost_s = moves.get(job.name, 0) * self.move_s
        penalty = max(age_s - lost_s, 0.0) / (age_s + self.move_s)
        return penalty if job.name in present else max(penalty, START)


def _retuned(job: ClusterJob, batches: Mapping[str, int]) -> bool:
    return batches.get(job.name, job.batch) != job.batch


Models = dict[str, tuple[int, StepTime]]
"""Of each job that has trained: how many measurements its model is fitted to, and the model."""


def _models(jobs: Sequence[ClusterJob], before: Mapping[str, Sequence[float]]) -> Models:
    """Fit those anew that have measured something new."""
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
    """Slots that it may have now; those that it has in any case."""
    tried = max((step.workers for step in job.steps), default=0)
    most = min(max(BEYOND * tried, job.min_slots), job.most_slots(job.batches[1]))
    return max(most, size(present.get(job.name, ())))


def _state(jobs: Sequence[ClusterJob], nodes: Sequence[Node], present: Placements) -> Counts:
    column = {node.name: at for at, node in enumerate(nodes)}
    state = np.zeros((len(jobs), len(nodes)), np.int16)
    for row, job in enumerate(jobs):
        for node, count in present.get(job.name, ()):
            if node in column:
                state[row, column[node]] = count
    return state


def _carried(notes: PolicyState, jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> Counts:
    """The last population, of the jobs and the nodes that there are now."""
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
    """Who keeps its slots keeps their order, too."""
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
    """How often each job that has started was given other slots since."""
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
