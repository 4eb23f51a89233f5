"""Compute the weights of a step's gradients from the samples that each worker has trained.

The update of a step must be the mean gradient over its global batch of N samples, however unevenly
the workers share it (promise 5 in docs/explanation/guarantees.md). A worker's local gradient is the
mean over its own n_i samples, so the update is  sum_i (n_i / N) g_i. :func:`weigh` returns the
factors for one worker. By :func:`presence` and :func:`present` the workers agree which parameters
have a gradient.

Horovod sends gradients before N is known and averages over the ``size`` workers, so the weight is
split: each worker scales what it sends by ``n_i / b``, and all scale the average by
``b * size / N`` afterwards. Here b is the nominal batch, equal on all workers: the job's global
batch if it has one (the smallest of a range), else the batch of one worker
(:attr:`edl.step.source.Source.batch_size`). In a full step, in which each n_i is b, both
factors are 1 and no multiplication happens: such a step is plain Horovod's, bit for bit.

A worker that accumulates gradients adds up those of m_i batches, ``sum_k (n_ik / b) g_ik``, which
is sent as it is; all scale the average by ``b * sum_i m_i / N``. When all batches are full, that is
the mean over the workers of the sums of their gradients, as in PyTorch's DDP. When they are not,
the script's division of each loss by m still gives the mean over the N samples, as long as all
workers have m batches, padding included.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from edl.errors import DataError
from edl.step.record import Column

# ------------------------------------------------------------
# Decide how batches are weighted whose losses are means over labels, and not over samples.
#
# A language model's loss is the mean over the labels that are not masked (tokens). Hugging Face's
# `Trainer` divides each batch's sum by the labels of the whole step, over all accumulated batches
# and all processes, so that each label counts alike. edl averages gradients over samples. This
# module has the factors that turn one into the other.
#
# With i over the workers and b over the accumulated batches of a step, let n_ib be a batch's
# samples, t_ib its labels, m_ib the mean loss over its labels, and k the number of accumulated
# batches. edl turns losses L_ib into the gradient of `k * sum(n_ib * L_ib) / N`, where N is the sum
# of n_ib. The gradient that is wanted is that of `sum(t_ib * m_ib) / T`, where T is the sum of
# t_ib. So
#
# - each batch's loss is multiplied by `t_ib / (n_ib * k)` (`batch_factor`), which needs no other
#   worker;
# - the averaged gradient is multiplied by `N / T` (`step_factor`), where the sums are over the
#   workers whose gradients were averaged.


class Counts(NamedTuple):
    """The numbers of samples and of labels that one worker trains in a step."""

    worker: int
    samples: int  # over all accumulated batches, without padding
    labels: int  # of these samples, that enter the loss


def batch_factor(samples: int, labels: int, batches: int) -> float:
    """Return the factor for the loss of one batch, which is a mean over its labels."""
    return labels / (samples * batches) if samples else 1.0 / batches


def step_factor(counts: Iterable[Counts], averaged: Collection[int]) -> float:
    counted = [one for one in counts if one.worker in averaged]
    samples = sum(one.samples for one in counted)
    labels = sum(one.labels for one in counted)
    return samples / labels if labels else 1.0  # all are masked: the gradient is 0 anyway


# ------------------------------------------------------------
# Decide whether the loss of a batch is a mean over its samples, as the weights of a step assume.
#
# `why_no_mean` decides about one `LossTerm`. The update of a step is `sum_i (n_i / N) g_i`: worker
# i has the gradient g_i over its n_i samples, and all workers have N (`weighting`). That is the
# gradient of the mean over all N samples when the loss of each worker is a sum over its batch that
# is divided by `n_i` times a constant. It is not that gradient for a sum that is not divided, nor
# for a mean over the entries that are no padding, or over the weights of the classes: the divisor
# of such a mean changes from batch to batch, so an entry of a batch with few entries counts more
# than an entry of a batch with many.


TOLERANCE = 1e-4  # relative difference of divisors that count as equal; they may be float32
# In a packed batch, a dict or a tuple, len(x) is another number.
SAMPLES = "which is {count} here (len(x) only if x is a tensor with a row for each sample)"
SEE = 'see "The loss is a mean over the samples" in docs/get-started/your-script.md'


@dataclass(frozen=True)
class LossTerm:
    """One term of a loss: a sum over the batch, divided by a number."""

    name: str  # of the function that computes the sum, for messages
    samples: int  # of the batch
    # what the sum is divided by, in the function if `is_mean`, else in the script; 1.0: it is not
    divisor: float
    is_mean: bool  # whether the function itself divides the sum
    # the product of the numbers from 0 to 1 that the script multiplies the sum by. No part of
    # `divisor`: it may be 1 / n, or a coefficient that changes during a training, so it is not
    # compared between batches.
    factor: float = 1.0

    @property
    def per_sample(self) -> float:
        """`divisor`, divided by the number of samples of the batch."""
        return self.divisor / self.samples


def why_no_mean(term: LossTerm, before: LossTerm | None) -> str | None:
    """Return why `term` is not a mean over the samples of its batch, as an error message."""
    # A factor below 1 counts as dividing.
    if not term.is_mean and term.divisor / term.factor < term.samples:
        return (
            f"the loss ({term.name}) is a sum over the {term.samples} samples of a batch, and edl "
            "weights the gradient of each worker with its samples, as for a mean: divide the sum "
            f"by the number of samples, {SAMPLES.format(count=term.samples)}; {SEE}"
        )
    is_divided = term.is_mean or term.divisor >= term.samples
    if before is None or not is_divided:
        return None
    if abs(term.per_sample - before.per_sample) <= TOLERANCE * abs(before.per_sample):
        return None
    return (
        f"the loss ({term.name}) is a mean over {before.divisor:g} entries (or weights) in a batch "
        f"of {before.samples} samples and over {term.divisor:g} in one of {term.samples}, and edl "
        "weights the gradient of each worker with its samples: entries of a batch with few of them "
        "count more, and the update depends on who trains which samples. Divide the sum of the "
        f"entries by the number of samples, {SAMPLES.format(count=term.samples)}, times a "
        f"constant, such as {before.per_sample:.3g}; {SEE}"
    )


# ------------------------------------------------------------
# Compute means over all workers' samples from each worker's means.


def weighted_means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column of `rows` but the first, weighted by the first column."""
    counted = [row for row in rows if row[0] > 0]  # a row of weight 0 may hold infinite values
    total = math.fsum(row[0] for row in counted)
    if total == 0:
        return [math.nan] * (len(rows[0]) - 1)
    return [
        sum(row[0] * row[column] for row in counted) / total for column in range(1, len(rows[0]))
    ]


def send_weight(samples: int, batch_size: int) -> float:
    """Return n_i / b, the factor that a worker scales its mean gradient by before it is reduced."""
    return samples / batch_size


def average_correction(batch_size: int, batches: int, total: int) -> float:
    """Return b * sum_i m_i / N, the factor that all workers scale Horovod's average by."""
    if total <= 0:
        raise DataError(f"a step of {batches} batches has {total} samples")
    return batch_size * batches / total


@dataclass(frozen=True)
class Share:
    """The samples and batches that one worker contributes to a step."""

    samples: int
    batches: int = 1  # padding too; more than one if it accumulates gradients
    # The gradients are a sum over several batches, or over the pieces of one, each times its n / b
    # already; else they are the mean over the samples.
    summed: bool = False

    def send_weight(self, batch_size: int) -> float:
        """Return the factor that the worker scales its gradients by before they are reduced."""
        if self.summed:
            return float(self.samples > 0)
        return send_weight(self.samples, batch_size)


class Averaging(Enum):
    """The way in which the mean gradient of a step is computed; equal on all workers."""

    NONE = "no worker has samples: there is no update"
    LOCAL = "there is one worker: its gradient is the mean"
    PLAIN = "all batches are full: Horovod's average is the mean"
    WEIGHTED = "what is sent and what comes back must be weighted"


@dataclass(frozen=True)
class Weights:
    """The factors that one worker scales the gradients of a step by, made by `weigh`."""

    averaging: Averaging
    sent: float = 1.0  # for the gradients that the worker sends
    received: float = 1.0  # for Horovod's average; where nothing is sent, for the local gradients
    total: int = 0  # samples of all workers in the step

    @property
    def sends(self) -> bool:
        """Whether gradients are averaged with other workers in this step; equal on all workers."""
        return self.averaging in (Averaging.PLAIN, Averaging.WEIGHTED)


def weigh(samples: Column, batches: Column, own: Share, batch_size: int) -> Weights:
    """Return the factors that one worker scales the gradients of a step by."""
    total = int(samples.sum())
    if total == 0:
        return Weights(Averaging.NONE)
    correction = average_correction(batch_size, int(batches.sum()), total)
    if len(samples) == 1:
        return Weights(Averaging.LOCAL, received=correction if own.summed else 1.0, total=total)
    full = bool((samples == batches * batch_size).all())
    averaging = Averaging.PLAIN if full else Averaging.WEIGHTED
    return Weights(averaging, own.send_weight(batch_size), correction, total)


def presence(own: int, has_gradient: Iterable[bool], is_void: bool = False) -> list[float]:
    """Return which parameters a worker has a gradient of; `present` reads the averages."""
    # Void: an exception broke off the backward pass, so what was sent must not be used.
    return [*(float(own > 0 and each) for each in has_gradient), float(is_void)]


def present(averages: Iterable[float]) -> tuple[list[bool], bool]:
    """Return which parameters have a gradient in the job; whether all must send again."""
    # Without one anywhere there is none, so that weight decay and momentum leave the parameter
    # alone, as in one process.
    *gradients, void = (average > 0 for average in averages)
    return gradients, void
