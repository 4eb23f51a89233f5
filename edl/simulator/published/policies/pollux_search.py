"""Pollux' genetic search over allocations: who has how many slots on which node.

A *state* is an array (jobs, nodes) of slots; a population has shape (states, jobs, nodes). What is
searched for is the largest

    fitness = 1 / mean of 1 / (0.001 + penalty * speedup * nodes / slots)        over the jobs

the speedup being that of a fair share (:mod:`edl.simulator.published.policies.pollux_goodput`), and
the penalty below 1 for jobs whose row is not the present one. Beside it the *utility*, the sum of
speedups per slot of the nodes in use, keeps the population diverse: of parents and children those
live on that no other one beats in both, then those that only these beat, and so on; within the last
such front that has room, those which stand apart (NSGA-II: Deb and others, 2002). The winner is the
fittest.

Each child is made of two parents, each of which beat another one, drawn at random: up to a random
job it has the rows of one, then those of the other. Then some rows are set to the present ones,
some slots are taken away, and free slots are given. Last it is made valid: jobs on several nodes do
not meet on one, none has more than its maximum, no node gives more than it has; who comes first in
the order of jobs goes first.

All rates are those of pollux.py in the simulator of Pollux' artifact (OSDI 2021). That searches for
100 generations, and draws again in place of children that are there already, which here are left
out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edl.core.policy.step_time import Vector

Counts = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]
Order = npt.NDArray[np.int64]

RESET = 0.1  # of rows that are set to the present ones
THINNED = 0.1  # of rows that lose slots
TAKEN = 0.1  # of the nodes of such a row
CROSSED = 0.9  # of children that have two parents
EPS = 1e-3  # so that a job without slots is bad, and not infinitely so


@dataclass(frozen=True)
class Problem:
    """What is searched; jobs are rows, in the order in which they go first.

    Attributes:
        slots: of each node.
        present: the state in force.
        speedups: (jobs, nodes, slots): by numbers of nodes and of slots.
        penalties: of each job, 0 to 1: what its speedup is multiplied by if its row changes.
        most, least: slots of each job that has any.
        fixed: jobs whose rows may not change; they come before all others.
    """

    slots: Counts
    present: Counts
    speedups: Vector
    penalties: Vector
    most: Order
    least: Order
    fixed: Mask

    def values(self, states: Counts) -> Vector:
        """Fitness and utility of each state: shape (states, 2)."""
        jobs, nodes = self.present.shape
        speedups = self.speedups[np.arange(jobs), by_job(states > 0), by_job(states)]
        total = int(self.slots.sum(dtype=np.int64))
        moved = by_job(states != self.present) > 0
        scaled = speedups * np.where(moved, self.penalties * (nodes / total), nodes / total)
        fitness = jobs / (1.0 / (scaled + EPS)).sum(axis=1)
        active = ((by_node(states) > 0) * self.slots).sum(axis=1, dtype=np.int64)
        return np.stack([fitness, speedups.sum(axis=1) / np.maximum(active, 1)], axis=1)


@dataclass(frozen=True)
class Effort:
    """How long is searched.

    Attributes:
        population: states that live on.
        generations: at most.
        patience: generations without a fitter state that end it.
    """

    population: int
    generations: int
    patience: int


def search(
    problem: Problem, first: Counts, effort: Effort, chance: np.random.Generator
) -> tuple[Counts, Counts]:
    """The fittest state that was found, and the last population.

    Args:
        first: states to begin with; the fittest valid one of them is the least that is found.
    """
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
    """The sums over the nodes: shape (states, jobs). Exact up to 2^24, and fast as a product."""
    sums = of.astype(np.float32) @ np.ones(of.shape[2], np.float32)
    return sums.astype(np.int64)


def by_node(of: Counts | Mask) -> Order:
    """The sums over the jobs: shape (states, nodes)."""
    sums = np.ones(of.shape[1], np.float32) @ of.astype(np.float32)
    return sums.astype(np.int64)


def repaired(problem: Problem, states: Counts, chance: np.random.Generator) -> Counts:
    """The states made valid, in place."""
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
    """The present state, where each job without slots has its least, as far as there is room."""
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
    """Who lives on, at most so many, by fronts; and how far each is from others of its front."""
    front = fronts(values)
    apart = _apart(values, front)
    kept = np.lexsort((-apart, front))[:count]
    return kept, apart[kept]


def fronts(values: Vector) -> Order:
    """Of each state the number of its front: 0 if no other one is better in both.

    Better in both: not less in either, and more in one.
    """
    order = np.lexsort((-values[:, 1], -values[:, 0]))
    numbers = []
    # In this order a state is beaten by nobody behind it, and by a front if its last one beats it.
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
    """Crowding distance: between the neighbours in its front; infinite at the ends of one."""
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
    """Two of each two parents."""
    pairs, jobs = len(parents) // 2, parents.shape[1]
    point = chance.integers(0, jobs, size=pairs)
    point[chance.random(pairs) >= CROSSED] = 0
    swapped = (np.arange(jobs) < point[:, None])[:, :, None]
    one, other = parents[0::2], parents[1::2]
    children = np.concatenate([np.where(swapped, other, one), np.where(swapped, one, other)])
    _mutate(problem, children, chance)
    return repaired(problem, children, chance)


def _chosen(values: Vector, apart: Vector, count: int, chance: np.random.Generator) -> Order:
    """An even number of parents, at least ``count``: each beat one other, or stands more apart."""
    wanted = 2 * (count + count % 2)
    rounds = -(-wanted // len(values))
    pool = np.concatenate([chance.permutation(len(values)) for _ in range(rounds)])[:wanted]
    one, other = pool[0::2], pool[1::2]
    less, more = values[one] < values[other], values[one] > values[other]
    beats = more.any(axis=1) & ~less.any(axis=1)
    beaten = less.any(axis=1) & ~more.any(axis=1)
    return np.where(beats | (~beaten & (apart[one] >= apart[other])), one, other)


def _mutate(problem: Problem, states: Counts, chance: np.random.Generator) -> None:
    """Set rows to the present ones, take slots away, and give free ones, at random."""
    count, jobs, _ = states.shape
    drawn = chance.random((2, count, jobs))
    state, job = np.nonzero(drawn[0] < RESET)
    states[state, job] = problem.present[job]
    at = np.nonzero(drawn[1] < THINNED)
    rows = states[at]
    rows[chance.random(rows.shape) < TAKEN] = 0
    states[at] = rows
    # Of each node with free slots, about one job at random has more, and one of those on it.
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
    """Of jobs on several nodes that meet on one, only the first keeps its slots there."""
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
    """The rows with no more than ``most`` together: what comes last is lost."""
    sums = np.minimum(rows.cumsum(axis=1, dtype=np.int64), most[:, None])
    kept: Counts = np.diff(sums, axis=1, prepend=0).astype(np.int16)
    return kept


def _different(states: Counts, known: Sequence[bytes]) -> tuple[Counts, list[bytes]]:
    """Those that are not known, each once, and by what they are known from now on."""
    seen, kept, keys = set(known), [], []
    for at, state in enumerate(states):
        key = state.tobytes()
        if key not in seen:
            seen.add(key)
            kept.append(at)
            keys.append(key)
    return states[kept], keys
