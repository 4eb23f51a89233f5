"""Order the samples of an epoch as the replicas of a distributed sampler train them.

PyTorch's ``DistributedSampler`` gives sample i of a shuffled epoch to replica i modulo the number
of replicas, and each replica's loader cuts its samples into batches. :func:`by_steps` orders the
samples by steps, and within a step by replicas, so that the batch of each replica is a slice.
"""

from __future__ import annotations

import numpy as np

from edl.core.step.shuffle import Indices


def samples_of_replica(samples: int, replicas: int, drop_last: bool) -> int:
    """Return how many samples of an epoch each replica gets."""
    return samples // replicas if drop_last else -(-samples // replicas)  # else some are repeated


def by_steps(shuffled: Indices, replicas: int, each: int, batch_size: int) -> Indices:
    """Return the indices of an epoch's samples in the order of steps, then of replicas."""
    columns = np.resize(shuffled, replicas * each).reshape(each, replicas)  # repeats the first
    whole = each - each % batch_size
    full = columns[:whole].reshape(-1, batch_size, replicas).transpose(0, 2, 1)
    return np.concatenate([full.ravel(), columns[whole:].T.ravel()])
