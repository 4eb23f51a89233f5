"""How a step's gradients are weighted, and how many samples a worker takes.

The update of a step must be the mean gradient over its global batch of N samples, however
unevenly the workers share it (promise 5). A worker's local gradient is the mean over its own
n_i samples, so the update is  sum_i (n_i / N) g_i.

Horovod sends gradients before N is known and averages over the ``size`` workers, so the weight
is split: each worker scales what it sends by ``n_i / b`` (b: the nominal batch of one worker,
equal everywhere), and all scale the average by ``b * size / N`` afterwards. In a full step both
factors are 1 and no multiplication happens: such a step is plain Horovod's, bit for bit.

A worker that accumulates gradients adds up those of m_i batches, ``sum_k (n_ik / b) g_ik``, which
is sent as it is; all scale the average by ``b * sum_i m_i / N``. When all batches are full, that
is the mean over the workers of the sums of their gradients, as in PyTorch's DDP. When they are
not, the script's division of each loss by m still gives the mean over the N samples, as long as
all workers have m batches, padding included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from edl.core.step.step_record import Column
from edl.errors import DataError


def send_weight(samples: int, batch_size: int) -> float:
    """n_i / b: what a worker multiplies its local mean gradient by before it is reduced."""
    return samples / batch_size


def average_correction(batch_size: int, batches: int, total: int) -> float:
    """b * sum_i m_i / N: what all workers multiply Horovod's average by afterwards.

    ``batches``: of all workers together; their number, unless they accumulate gradients.

    Raises:
        DataError: N is 0; such a step has no update.
    """
    if total <= 0:
        raise DataError(f"a step of {batches} batches has {total} samples")
    return batch_size * batches / total


@dataclass(frozen=True)
class Share:
    """What one worker brings into a step.

    ``summed``: its gradients are those of ``batches`` batches, or of parts of one, added up and
    weighted already.
    """

    samples: int
    batches: int = 1
    summed: bool = False

    def send_weight(self, batch_size: int) -> float:
        """What it multiplies its local gradients by before they are reduced; 0 without samples."""
        if self.summed:
            return float(self.samples > 0)
        return send_weight(self.samples, batch_size)


class Averaging(Enum):
    """How the mean of a step comes about. The same on every worker, from the same records."""

    NONE = "no worker has samples: there is no update"
    LOCAL = "there is one worker: its gradient is the mean"
    PLAIN = "all batches are full: Horovod's average is the mean"
    WEIGHTED = "what is sent and what comes back must be weighted"


@dataclass(frozen=True)
class Weights:
    """What one worker multiplies gradients by in a step: what it sends, and what comes back.

    Where nothing is sent, ``received`` is for the local gradients.
    """

    averaging: Averaging
    sent: float = 1.0
    received: float = 1.0

    @property
    def sends(self) -> bool:
        """Whether gradients are sent at all: by all workers, or by none."""
        return self.averaging in (Averaging.PLAIN, Averaging.WEIGHTED)


def weigh(samples: Column, batches: Column, own: Share, batch_size: int) -> Weights:
    """The weights of the worker with the share ``own``.

    Args:
        samples: what each worker of the ring brings, shape ``(size,)``, ``own`` among them.
        batches: of how many batches, likewise.
    """
    total = int(samples.sum())
    if total == 0:
        return Weights(Averaging.NONE)
    correction = average_correction(batch_size, int(batches.sum()), total)
    if len(samples) == 1:
        return Weights(Averaging.LOCAL, received=correction if own.summed else 1.0)
    full = bool((samples == batches * batch_size).all())
    averaging = Averaging.PLAIN if full else Averaging.WEIGHTED
    return Weights(averaging, own.send_weight(batch_size), correction)


def presence(own: int, has_gradient: Iterable[bool], is_void: bool = False) -> list[float]:
    """What a worker with ``own`` samples says of its parameters: 1 where it has a gradient.

    What a worker without samples has computed counts for nothing in this, too. The last number is
    1 where what it has sent is void: an exception broke off its backward pass.
    """
    return [*(float(own > 0 and each) for each in has_gradient), float(is_void)]


def present(averages: Iterable[float]) -> tuple[list[bool], bool]:
    """Which parameters have a gradient in the job, from the averages of :func:`presence`.

    A parameter that somebody has a gradient of gets one everywhere. One that nobody has a gradient
    of has none anywhere, so that weight decay and momentum leave it alone, as in one process.

    Returns:
        For each parameter whether somebody has a gradient of it; and whether what somebody has
        sent is void, so that all send once more.
    """
    *gradients, void = (average > 0 for average in averages)
    return gradients, void
