"""Compute a job's speedup with each number of slots and nodes, and the best batch for each of them.

:func:`choices` does it. Goodput is throughput times statistical efficiency (Pollux, OSDI 2021,
section 3): samples a second, each counted by what it is worth compared with one in the smallest
batch,

    (S + b) / (S + B)        S the gradient noise scale, b the smallest batch, B this one

The best of 50 batches is taken, in geometric steps from the smallest that so many slots can share
to the largest. A share too large for a slot is accumulated in equal parts. A job on a single slot
makes at least two parts of a batch larger than the smallest, for the noise cannot be measured
otherwise (all as in goodput.py and speedup.py of Pollux' artifact).

A *speedup* is a goodput divided by the goodput on the job's fair share of the slots, all on one
node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edl.policy.step_time import StepTime
from edl.policy.step_time_formula import Vector

Ints = npt.NDArray[np.int64]

CANDIDATES = 50
EPS = 1e-8  # so that a quotient of whole numbers is rounded up only if it is not whole
TABLES = 128  # the most that are cached; one takes up to 0.4 MB


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a job's batches, all in samples."""

    batches: tuple[int, int]  # the smallest and the largest global batch
    # the fewest and the most samples that a slot trains at once; a larger share is accumulated.
    # None: the batch is always the smallest of `batches`, and is shared evenly among any number of
    # slots.
    local_batches: tuple[int, int] | None


@dataclass(frozen=True)
class Shapes:
    """The combinations of a number of nodes and a number of slots that a job may have."""

    # the slots of the largest node, of the two largest nodes together, and so on: the most slots on
    # 1, 2, ... nodes.
    room: tuple[int, ...]
    most: int  # the most slots that the job may have

    def pairs(self) -> tuple[Ints, Ints]:
        """Return all combinations, as an array of their numbers of nodes and one of their slots."""
        pairs = [
            (nodes, slots)
            for nodes, room in enumerate(self.room, 1)
            for slots in range(nodes, min(room, self.most) + 1)
        ]
        nodes, slots = np.array(pairs, int).reshape(-1, 2).T
        return nodes, slots


@dataclass(frozen=True)
class Choices:
    """The speedup of a job, and the batch that reaches it, by numbers of nodes and of slots."""

    # the goodput with the best batch, divided by the goodput on a fair share of the slots; 0 for
    # combinations that the job may not have, or where no batch fits
    speedups: Vector
    batches: Ints  # the best global batch in samples; 0 for combinations that the job may not have


def choices(
    model: StepTime | None,
    noise_scale: float | None,
    limits: BatchLimits,
    shapes: Shapes,
    fair_slots: int,
) -> Choices:
    """Return the speedup and the best batch of a job for each combination of nodes and slots."""
    nodes, slots = shapes.pairs()
    size = len(shapes.room) + 1, max((*shapes.room, 0)) + 1
    found = Choices(np.zeros(size), np.zeros(size, int))
    smallest, largest = limits.batches
    # It has never trained: its speed is taken to be proportional to its slots.
    if model is None:
        least = limits.local_batches[0] if limits.local_batches else 0
        speedups, batches = slots / fair_slots, np.maximum(smallest, least * slots)
    else:
        goodputs, batches = _best(noise_scale, limits, _candidates(model, limits, shapes))
        alone = _evaluated(model, limits, np.array([1]), np.array([fair_slots]))
        speedups = goodputs / _best(noise_scale, limits, alone)[0][0]
    found.speedups[nodes, slots] = speedups
    found.batches[nodes, slots] = np.clip(batches, smallest, largest)
    return found


def efficiency(noise_scale: float | None, smallest: int, batch: Vector) -> Vector:
    """Return the statistical efficiency of each global batch, relative to the smallest batch."""
    if noise_scale is not None and math.isinf(noise_scale):
        return np.ones_like(batch)
    scale = noise_scale or 0.0
    return (scale + smallest) / (scale + batch)


def _best(
    noise_scale: float | None, limits: BatchLimits, candidates: tuple[Vector, Vector]
) -> tuple[Vector, Ints]:
    """Return the largest goodput for each combination of nodes and slots, and its batch."""
    batches, throughputs = candidates
    goodputs = throughputs * efficiency(noise_scale, limits.batches[0], batches)
    at = goodputs.argmax(axis=0), np.arange(goodputs.shape[1])
    return goodputs[at], batches[at].astype(int)


@lru_cache(maxsize=TABLES)
def _candidates(model: StepTime, limits: BatchLimits, shapes: Shapes) -> tuple[Vector, Vector]:
    return _evaluated(model, limits, *shapes.pairs())


def _evaluated(
    model: StepTime, limits: BatchLimits, nodes: Ints, slots: Ints
) -> tuple[Vector, Vector]:
    """Compute the batches to try for each combination, and their throughputs."""
    smallest, largest = limits.batches
    if limits.local_batches is None:
        shared = smallest / slots
        throughput = smallest / model.steps_s(slots.astype(float), nodes.astype(float), shared)
        return np.full((1, len(slots)), float(smallest)), throughput[None, :]
    least, most = limits.local_batches
    first = np.maximum(smallest, least * slots)
    count = CANDIDATES if largest > smallest else 1
    share = np.geomspace(first, np.full(first.shape, largest), count) / slots
    more = np.ceil(share / most - EPS) - 1
    noisy = (slots == 1) & (share > smallest + EPS)
    more = np.where(noisy, np.maximum(more, 1), more)
    local = np.ceil(share / (more + 1) - EPS)
    every = np.broadcast_to(slots.astype(float), local.shape)
    on = np.broadcast_to(nodes.astype(float), local.shape)
    compute_s = model.compute_s + model.each_sample_s * local
    step_s = model.steps_s(every, on, local) + more * compute_s
    batch = slots * local * (more + 1)
    fits = (local >= least) & (local <= most)
    return batch, np.where(fits, batch / step_s, 0.0)
