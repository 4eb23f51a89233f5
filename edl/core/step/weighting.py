"""How a step's gradients are weighted, and how many samples a worker takes.

The update of a step must be the mean gradient over its global batch of N samples, however
unevenly the workers share it (promise 5). A worker's local gradient is the mean over its own
n_i samples, so the update is  sum_i (n_i / N) g_i.

Horovod sends gradients before N is known and averages over the ``size`` workers, so the weight
is split: each worker scales what it sends by ``n_i / b`` (b: the nominal batch of one worker,
equal everywhere), and all scale the average by ``b * size / N`` afterwards. In a full step both
factors are 1 and no multiplication happens: such a step is plain Horovod's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from edl.errors import DataError


def send_weight(samples: int, batch_size: int) -> float:
    """n_i / b: what a worker multiplies its local mean gradient by before it is reduced."""
    return samples / batch_size


def average_correction(batch_size: int, size: int, total: int) -> float:
    """b * size / N: what all workers multiply Horovod's average by afterwards.

    Raises:
        DataError: N is 0; such a step has no update.
    """
    if total <= 0:
        raise DataError(f"a step of {size} workers has {total} samples")
    return batch_size * size / total


class Reduction(Enum):
    """How the mean of a step comes about. The same on every worker, from the same records."""

    NONE = "no worker has samples: there is no update"
    LOCAL = "there is one worker: its gradient is the mean"
    PLAIN = "all have n_i = b: Horovod's average is the mean"
    WEIGHTED = "what is sent and what comes back must be weighted"


def reduction(samples: Sequence[int], batch_size: int) -> Reduction:
    """What the step needs whose workers have ``samples``, in rank order."""
    if sum(samples) == 0:
        return Reduction.NONE
    if len(samples) == 1:
        return Reduction.LOCAL
    full = all(each == batch_size for each in samples)
    return Reduction.PLAIN if full else Reduction.WEIGHTED
