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

from edl.core.policy.least_squares import Vector
from edl.core.policy.step_time import StepTime

Ints = npt.NDArray[np.int64]

CANDIDATES = 50
EPS = 1e-8  # so that a quotient of whole numbers is rounded up only if it is not whole
TABLES = 128  # the most that are cached; one takes up to 0.4 MB


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a job's batches, all in samples.

    Attributes:
        batches: the smallest and the largest global batch.
        local_batches: the fewest and the most samples that a slot trains at once; a larger share is
            accumulated. None: the batch is always the smallest of ``batches``, and is shared evenly
            among any number of slots.
    """

    batches: tuple[int, int]
    local_batches: tuple[int, int] | None


@dataclass(frozen=True)
class Shapes:
    """The combinations of a number of nodes and a number of slots that a job may have.

    With n nodes these are n slots (one on each node) to ``room[n - 1]`` slots, at most ``most``.

    Attributes:
        room: the slots of the largest node, of the two largest nodes together, and so on: the most
            slots on 1, 2, ... nodes.
        most: the most slots that the job may have.
    """

    room: tuple[int, ...]
    most: int

    def pairs(self) -> tuple[Ints, Ints]:
        """Return all combinations, as an array of their numbers of nodes and one of their slots.

        Both arrays have one entry for each combination, ascending by nodes, then by slots.
        """
        pairs = [
            (nodes, slots)
            for nodes, room in enumerate(self.room, 1)
            for slots in range(nodes, min(room, self.most) + 1)
        ]
        nodes, slots = np.array(pairs, int).reshape(-1, 2).T
        return nodes, slots


@dataclass(frozen=True)
class Choices:
    """The speedup of a job, and the batch that reaches it, by numbers of nodes and of slots.

    Both arrays have the shape (nodes + 1, slots + 1) and are indexed by the two numbers.

    Attributes:
        speedups: the goodput with the best batch, divided by the goodput on a fair share of the
            slots; 0 for combinations that the job may not have, or where no batch fits.
        batches: the best global batch in samples; 0 for combinations that the job may not have.
    """

    speedups: Vector
    batches: Ints


def choices(
    model: StepTime | None,
    noise_scale: float | None,
    limits: BatchLimits,
    shapes: Shapes,
    fair_slots: int,
) -> Choices:
    """Return the speedup and the best batch of a job for each combination of nodes and slots.

    Args:
        model: the fitted step time; None: the job has never trained, and its speed is taken to be
            proportional to its slots, with the smallest batch that so many slots can share.
        noise_scale: the gradient noise scale in samples. None: it is not known, and a larger batch
            is taken to bring no more progress than the smallest.
        limits: the limits of the job's batches.
        shapes: the combinations of nodes and slots that the job may have; all others get 0.
        fair_slots: the number of slots of the job's fair share; the speedup on so many slots of one
            node is 1.
    """
    nodes, slots = shapes.pairs()
    size = len(shapes.room) + 1, max((*shapes.room, 0)) + 1
    found = Choices(np.zeros(size), np.zeros(size, int))
    smallest, largest = limits.batches
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
    """Return the statistical efficiency of each global batch, relative to the smallest batch.

    It is the progress that a sample brings, as a fraction of the progress of a sample in the
    smallest batch; at most 1. The result has the shape of ``batch``.

    Args:
        noise_scale: the gradient noise scale in samples. None or 0: a larger batch brings no more
            progress than the smallest; infinite: the efficiency of every batch is 1.
        smallest: the smallest batch, in samples.
        batch: an array of global batches, in samples, none below ``smallest``.
    """
    if noise_scale is not None and math.isinf(noise_scale):
        return np.ones_like(batch)
    scale = noise_scale or 0.0
    return (scale + smallest) / (scale + batch)


def _best(
    noise_scale: float | None, limits: BatchLimits, candidates: tuple[Vector, Vector]
) -> tuple[Vector, Ints]:
    """Return the largest goodput for each combination of nodes and slots, and its batch.

    Goodput is throughput times statistical efficiency, in samples a second.

    Args:
        noise_scale: the gradient noise scale in samples; None: not known.
        limits: the limits of the job's batches.
        candidates: the batches to try and their throughputs, two arrays with one column for each
            combination. Of batches with equal goodput the first row is taken.

    Returns:
        The goodputs and the global batches in samples, with one entry for each column.
    """
    batches, throughputs = candidates
    goodputs = throughputs * efficiency(noise_scale, limits.batches[0], batches)
    at = goodputs.argmax(axis=0), np.arange(goodputs.shape[1])
    return goodputs[at], batches[at].astype(int)


@lru_cache(maxsize=TABLES)
def _candidates(model: StepTime, limits: BatchLimits, shapes: Shapes) -> tuple[Vector, Vector]:
    """Return the batches to try, and their throughputs in samples a second, from a cache.

    They are those of :func:`_evaluated` for all combinations of nodes and slots.

    Args:
        model: the fitted step time.
        limits: the limits of the job's batches.
        shapes: the combinations; both arrays have one column for each.
    """
    return _evaluated(model, limits, *shapes.pairs())


def _evaluated(
    model: StepTime, limits: BatchLimits, nodes: Ints, slots: Ints
) -> tuple[Vector, Vector]:
    """Compute the batches to try for each combination, and their throughputs.

    Args:
        model: the fitted step time.
        limits: the limits of the job's batches.
        nodes: the number of nodes of each combination.
        slots: the number of slots of each combination.

    Returns:
        The global batches in samples and their throughputs in samples a second: two arrays of the
        same shape, with a row for each candidate and a column for each combination. A throughput of
        0 says that the batch is not possible there.
    """
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
