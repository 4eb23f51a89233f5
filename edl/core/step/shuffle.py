"""Which record stands at which position of an epoch: a pure function of (seed, epoch).

The ledger (:mod:`edl.core.step.ledger`) deals in positions only. Every worker computes the same
order, so a lease of positions names the same records everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def epoch_order(total: int, seed: int, epoch: int, shuffle: bool) -> npt.NDArray[np.int64]:
    """Index of the record at each position, shape ``(total,)``: a permutation of range(total).

    Without ``shuffle`` it is the identity. The order is that of random 64-bit keys from numpy's
    PCG64 seeded with (seed, epoch). Only this raw stream is promised to stay as it is in later
    versions of numpy; ``Generator.permutation`` is not (NEP 19), and a job that is resumed from
    a checkpoint with another numpy would repeat some records and miss others.
    """
    if not shuffle:
        return np.arange(total, dtype=np.int64)
    bits = np.random.PCG64(np.random.SeedSequence((seed & (2**63 - 1), epoch)))
    return np.argsort(bits.random_raw(total), kind="stable").astype(np.int64, copy=False)
