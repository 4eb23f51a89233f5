"""Search for an allocation of slots on nodes to jobs with Pollux' genetic algorithm.

:func:`search` takes a :class:`Problem`. A *state* is an array (jobs, nodes) of slots; a population
has shape (states, jobs, nodes). The search looks for the largest

    fitness = 1 / mean of 1 / (0.001 + penalty * speedup * nodes / slots)        over the jobs

The speedup is relative to a fair share (:mod:`benchmarks.published.pollux_goodput`).
The penalty is 1 for jobs whose row is the present one, and otherwise a factor of the job, at most
1. A second value, the *utility*, is the sum of the speedups per slot of the nodes in use; it keeps
the population diverse.

Survivors are chosen from parents and children by NSGA-II (Deb and others, 2002). First come the
states that no other state beats in both values, then the states that only these beat, and so on.
Within the last such front that has room, the states that differ most from their neighbours survive.
The result is the fittest state.

Each child is made of two parents, each of which won against another state drawn at random. Up to a
random job the child has the rows of one parent, then the rows of the other. Then some rows are set
to the present ones, some slots are taken away, and on nodes with free slots some jobs get more.
Finally the child is made valid: two jobs on several nodes do not share a node, no job has more than
its maximum, and no node gives more slots than it has. The first in the order of jobs goes first.

The probabilities of these changes are those of pollux.py in the simulator of Pollux' artifact (OSDI
2021). The artifact searches for 100 generations. It replaces a child that equals a known state by a
new draw; here such a child is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edl.policy.step_time_formula import Vector

Counts = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]
Order = npt.NDArray[np.int64]

RESET = 0.1  # the fraction of rows that are set to the present ones
THINNED = 0.1  # the fraction of rows that lose slots
TAKEN = 0.1  # the fraction of nodes on which such a row loses its slots
CROSSED = 0.9  # the fraction of children that have two parents
EPS = 1e-3  # so that a job without slots does not make the fitness 0


@dataclass(frozen=True)
class Problem:
    """The input of a search for the fittest allocation of slots on nodes to jobs."""

    # A *state* is an allocation, an array (jobs, nodes) of slots; `states` are (states, jobs,
    # nodes). If two jobs cannot both have their slots, the job of the earlier row keeps them.

    slots: Counts  # the number of slots of each node
    present: Counts  # the state before the decision: the number of slots of each job on each node
    # the speedup of each job over its fair share, indexed by job, number of nodes and number of
    # slots; both numbers count from 0
    speedups: Vector
    # the factor of each job, 0 to 1, by which its speedup is multiplied if its row is not the
    # present one
    penalties: Vector
    most: Order  # the most and the fewest slots that each job may have; it may also have none
    least: Order
    fixed: Mask  # whether the row of each job may not change; such jobs come before all others

    def values(self, states: Counts) -> Vector:
        """Return the fitness and the utility of each of `states`, in shape (states, 2)."""
        jobs, nodes = self.present.shape
        speedups = self.speedups[np.arange(jobs), by_job(states > 0), by_job(states)]
        total = int(self.slots.sum(dtype=np.int64))
        moved = by_job(states != self.present) > 0
        scaled = speedups * np.where(moved, self.penalties * (nodes / total), nodes / total)
        fitness = jobs / (1.0 / (scaled + EPS)).sum(axis=1)
        active = ((by_node(states) > 0) * self.slots).sum(axis=1, dtype=np.int64)
        return np.stack([fitness, speedups.sum(axis=1) / np.maximum(active, 1)], axis=1)


@dataclass(frozen=True)
class SearchBudget:
    """The limits of a genetic search; a state is an allocation of slots to all jobs."""

    population: int  # the largest number of states that survive each generation
    generations: int  # the largest number of generations
    patience: int  # the number of generations without a fitter state after which the search ends


def search(
    problem: Problem, first: Counts, effort: SearchBudget, chance: np.random.Generator
) -> tuple[Counts, Counts]:
    """Search for the fittest state; return it, and the population of the last generation."""
    states, keys = _different(repaired(problem, first.copy(), chance), ())
    values = problem.values(states)
    apart = _apart(values, fronts(values))
    best, since = float(values[:, 0].max()), 0
    for _ in range(effort.generations):
        if since >= effort.patience:
            break
        parents = _chosen(values, apart, effort.population, chance)
        children = _children(problem, states[parents], chance)
        children, added = _different(children, keys)
        states = np.concatenate([states, children])
        values = np.concatenate([values, problem.values(children)])
        kept, apart = surviving(values, effort.population)
        states, values = states[kept], values[kept]
        keys += added
        keys = [keys[at] for at in kept.tolist()]
        fittest = float(values[:, 0].max())
        best, since = max(best, fittest), 0 if fittest > best else since + 1
    return states[values[:, 0].argmax()], states


def by_job(of: Counts | Mask) -> Order:
    """Return the sum of an array over the nodes for each job, in shape (states, jobs)."""
    # A matrix product of floats is fast, and exact up to 2^24.
    sums = of.astype(np.float32) @ np.ones(of.shape[2], np.float32)
    return sums.astype(np.int64)


def by_node(of: Counts | Mask) -> Order:
    """Return the sum of an array over the jobs for each node, in shape (states, nodes)."""
    sums = np.ones(of.shape[1], np.float32) @ of.astype(np.float32)
    return sums.astype(np.int64)


def repaired(problem: Problem, states: Counts, chance: np.random.Generator) -> Counts:
    """Make `states` valid in place, and return the same array."""
    states[:, problem.fixed] = problem.present[problem.fixed]
    _separate(problem, states)
    at = np.nonzero((by_job(states) > problem.most) & ~problem.fixed)
    if at[0].size:
        rows = states[at]
        order = chance.random(rows.shape).argsort(axis=1)  # nodes lose slots in a random order
        kept = _cut(np.take_along_axis(rows, order, 1), problem.most[at[1]])
        np.put_along_axis(rows, order, kept, 1)
        states[at] = rows
    state, node = np.nonzero(by_node(states) > problem.slots)
    if state.size:
        states[state, :, node] = _cut(states[state, :, node], problem.slots[node])
    if (problem.least > 1).any():
        states[by_job(states) < problem.least] = 0
    return states


def with_starts(problem: Problem) -> Counts:
    """Return the present state of `problem`, with slots added for jobs that have none."""
    state = problem.present.copy()
    for job in np.nonzero(~state.any(axis=1))[0].tolist():
        free = problem.slots - state.sum(axis=0, dtype=np.int64)
        left = int(problem.least[job])
        if left > free.sum():
            continue
        for node in np.argsort(-free, kind="stable").tolist():
            taken = min(left, int(free[node]))
            state[job, node] = taken
            left -= taken
    return state


def surviving(values: Vector, count: int) -> tuple[Order, Vector]:
    """Choose at most `count` states that survive, by their fronts and their crowding distances."""
    front = fronts(values)
    apart = _apart(values, front)
    kept = np.lexsort((-apart, front))[:count]
    return kept, apart[kept]


def fronts(values: Vector) -> Order:
    """Return the number of the Pareto front to which each state belongs, from 0 on."""
    order = np.lexsort((-values[:, 1], -values[:, 0]))
    numbers = []
    # In this order no later state beats a state, and a front beats it if the front's last one does.
    lasts: list[float] = []
    before, number = (float("nan"), float("nan")), 0
    for fitness, utility in values[order].tolist():
        if (fitness, utility) != before:
            number = bisect_right(lasts, -utility)
            lasts[number : number + 1] = [-utility]
            before = fitness, utility
        numbers.append(number)
    found = np.empty(len(values), int)
    found[order] = numbers
    return found


def _apart(values: Vector, front: Order) -> Vector:
    """Return the crowding distance of each state: how far apart its two neighbours are."""
    order = np.lexsort((values[:, 1], values[:, 0], front))
    ordered, group = values[order], front[order]
    first = np.concatenate([[True], group[1:] != group[:-1]])
    last = np.concatenate([first[1:], [True]])
    start, end = np.nonzero(first)[0], np.nonzero(last)[0]
    width = np.abs(ordered[end] - ordered[start])[np.cumsum(first) - 1]
    between = np.zeros_like(ordered)
    between[1:-1] = np.abs(ordered[2:] - ordered[:-2])
    distance = (between / np.where(width > 0, width, 1.0)).sum(axis=1)
    found = np.empty(len(values))
    found[order] = np.where(first | last, np.inf, distance)
    return found


def _children(problem: Problem, parents: Counts, chance: np.random.Generator) -> Counts:
    """Return two children of each two successive `parents`, mutated and made valid."""
    pairs, jobs = len(parents) // 2, parents.shape[1]
    point = chance.integers(0, jobs, size=pairs)
    point[chance.random(pairs) >= CROSSED] = 0
    swapped = (np.arange(jobs) < point[:, None])[:, :, None]
    one, other = parents[0::2], parents[1::2]
    children = np.concatenate([np.where(swapped, other, one), np.where(swapped, one, other)])
    _mutate(problem, children, chance)
    return repaired(problem, children, chance)


def _chosen(values: Vector, apart: Vector, count: int, chance: np.random.Generator) -> Order:
    """Return the row indices of `count` parents, one more if `count` is odd."""
    wanted = 2 * (count + count % 2)
    rounds = -(-wanted // len(values))
    pool = np.concatenate([chance.permutation(len(values)) for _ in range(rounds)])[:wanted]
    one, other = pool[0::2], pool[1::2]
    less, more = values[one] < values[other], values[one] > values[other]
    beats = more.any(axis=1) & ~less.any(axis=1)
    beaten = less.any(axis=1) & ~more.any(axis=1)
    return np.where(beats | (~beaten & (apart[one] >= apart[other])), one, other)


def _mutate(problem: Problem, states: Counts, chance: np.random.Generator) -> None:
    """Mutate `states` at random, in place; the result may be invalid (see `repaired`)."""
    count, jobs, _ = states.shape
    drawn = chance.random((2, count, jobs))
    state, job = np.nonzero(drawn[0] < RESET)
    states[state, job] = problem.present[job]
    at = np.nonzero(drawn[1] < THINNED)
    rows = states[at]
    rows[chance.random(rows.shape) < TAKEN] = 0
    states[at] = rows
    # On each node with free slots, about one random job gets more, and one random job of it, too.
    free = problem.slots > by_node(states)
    has = states > 0
    anyone = 1.0 / jobs
    someone = 1.0 / np.maximum(by_node(has), 1)
    both = anyone + someone - anyone * someone
    likely = np.where(has, (both * free)[:, None], (anyone * free)[:, None]).astype(np.float32)
    raised = np.nonzero(chance.random(states.shape, dtype=np.float32) < likely)
    low, high = states[raised], problem.slots[raised[2]]
    states[raised] = low + (chance.random(len(low)) * (high - low + 1)).astype(np.int16)


def _separate(problem: Problem, states: Counts) -> None:
    """Take slots away, so that no node is shared by two jobs on several nodes."""
    used = states > 0
    spread = used & (by_job(used) > 1)[:, :, None]
    state, node = np.nonzero(by_node(spread) > 1)
    if state.size:
        meeting = spread[state, :, node]
        later = meeting & (meeting.cumsum(axis=1) > 1) & ~problem.fixed
        slots = states[state, :, node]
        slots[later] = 0
        states[state, :, node] = slots


def _cut(rows: Counts, most: Order | Counts) -> Counts:
    """Return a copy of `rows` in which no row's sum exceeds `most`."""
    sums = np.minimum(rows.cumsum(axis=1, dtype=np.int64), most[:, None])
    kept: Counts = np.diff(sums, axis=1, prepend=0).astype(np.int16)
    return kept


def _different(states: Counts, known: Sequence[bytes]) -> tuple[Counts, list[bytes]]:
    """Return those of `states` that are not known yet, each once, and the keys of just these."""
    seen, kept, keys = set(known), [], []
    for at, state in enumerate(states):
        key = state.tobytes()
        if key not in seen:
            seen.add(key)
            kept.append(at)
            keys.append(key)
    return states[kept], keys
