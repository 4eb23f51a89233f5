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
(:attr:`edl.core.step.source.Source.batch_size`). In a full step, in which each n_i is b, both
factors are 1 and no multiplication happens: such a step is plain Horovod's, bit for bit.

A worker that accumulates gradients adds up those of m_i batches, ``sum_k (n_ik / b) g_ik``, which
is sent as it is; all scale the average by ``b * sum_i m_i / N``. When all batches are full, that is
the mean over the workers of the sums of their gradients, as in PyTorch's DDP. When they are not,
the script's division of each loss by m still gives the mean over the N samples, as long as all
workers have m batches, padding included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from edl.core.step.step_record import Column
from edl.errors import DataError


def send_weight(samples: int, batch_size: int) -> float:
    """Return n_i / b, the factor that a worker scales its mean gradient by before it is reduced.

    n_i is ``samples``, the samples of the worker in the step; b is ``batch_size``, the nominal
    batch, equal on all workers.
    """
    return samples / batch_size


def average_correction(batch_size: int, batches: int, total: int) -> float:
    """Return b * sum_i m_i / N, the factor that all workers scale Horovod's average by.

    After it the average is the mean gradient over the N samples.

    Args:
        batch_size: b, the nominal batch, in samples.
        batches: the sum of m_i, the batches of all workers together: the number of workers, unless
            they accumulate gradients.
        total: N, the samples of all workers in the step.

    Raises:
        DataError: N is 0; such a step has no update.
    """
    if total <= 0:
        raise DataError(f"a step of {batches} batches has {total} samples")
    return batch_size * batches / total


@dataclass(frozen=True)
class Share:
    """The samples and batches that one worker contributes to a step.

    Attributes:
        samples: how many samples.
        batches: how many batches, padding included; more than one if it accumulates gradients.
        summed: whether the worker's gradients are a sum over several batches, or over the pieces of
            one, in which each summand was multiplied by its n / b already. False: they are the mean
            over its samples.
    """

    samples: int
    batches: int = 1
    summed: bool = False

    def send_weight(self, batch_size: int) -> float:
        """Return the factor that the worker scales its gradients by before they are reduced.

        It is 0 without samples, 1 if ``summed`` is True, else ``samples / batch_size``.
        ``batch_size`` is the nominal batch, in samples, equal on all workers.
        """
        if self.summed:
            return float(self.samples > 0)
        return send_weight(self.samples, batch_size)


class Averaging(Enum):
    """The way in which the mean gradient of a step is computed; equal on all workers.

    Each worker derives it from the same step records. ``NONE``: no worker has samples, so there is
    no update. ``LOCAL``: there is one worker, whose gradient is the mean. ``PLAIN``: all batches
    are full, so Horovod's average is the mean. ``WEIGHTED``: gradients are scaled before and after
    Horovod averages them.
    """

    NONE = "no worker has samples: there is no update"
    LOCAL = "there is one worker: its gradient is the mean"
    PLAIN = "all batches are full: Horovod's average is the mean"
    WEIGHTED = "what is sent and what comes back must be weighted"


@dataclass(frozen=True)
class Weights:
    """The factors that one worker scales the gradients of a step by, made by :func:`weigh`.

    Attributes:
        averaging: the way in which the mean gradient is computed.
        sent: the factor for the gradients that the worker sends.
        received: the factor for Horovod's average; where nothing is sent, for the local gradients.
        total: how many samples all workers together train in the step.
    """

    averaging: Averaging
    sent: float = 1.0
    received: float = 1.0
    total: int = 0

    @property
    def sends(self) -> bool:
        """Whether gradients are averaged with other workers in this step; equal on all workers."""
        return self.averaging in (Averaging.PLAIN, Averaging.WEIGHTED)


def weigh(samples: Column, batches: Column, own: Share, batch_size: int) -> Weights:
    """Return the factors that one worker scales the gradients of a step by.

    If no worker has samples, both factors are 1 and ``averaging`` is ``NONE``. It raises nothing.

    Args:
        samples: how many samples each worker of the ring contributes, ``own`` among them, of shape
            ``(size,)``.
        batches: how many batches each worker contributes, of shape ``(size,)``.
        own: the share of the worker that calls this.
        batch_size: the nominal batch, in samples, equal on all workers.
    """
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
    """Return which parameters a worker has a gradient of, as numbers that the workers average.

    :func:`present` reads the averages.

    Args:
        own: how many samples the worker has trained. Without samples its gradients count for
            nothing, so no parameter has one.
        has_gradient: for each parameter, whether the worker has a gradient of it.
        is_void: whether the gradients that the worker has sent must not be used, because an
            exception broke off its backward pass.

    Returns:
        For each parameter 1.0 if it has a gradient, else 0.0; then, as the last number, 1.0 if the
        gradients are void, else 0.0.
    """
    return [*(float(own > 0 and each) for each in has_gradient), float(is_void)]


def present(averages: Iterable[float]) -> tuple[list[bool], bool]:
    """Return which parameters have a gradient in the job.

    If any worker has a gradient of a parameter, the parameter gets one on all workers. If none has,
    it gets none anywhere, so that weight decay and momentum leave it alone, as in one process.

    Args:
        averages: the averages over all workers of the numbers that :func:`presence` returned on
            each, in the same order.

    Returns:
        (for each parameter, whether any worker has a gradient of it; whether the gradients of any
        worker are void, so that all workers must send theirs once more).
    """
    *gradients, void = (average > 0 for average in averages)
    return gradients, void
