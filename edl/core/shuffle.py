"""Which record stands at which position of an epoch: a pure function of (seed, epoch).

The ledger (:mod:`edl.core.ledger`) deals in positions only. Every worker computes the same
order, so a lease of positions names the same records everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def epoch_order(total: int, seed: int, epoch: int, shuffle: bool) -> npt.NDArray[np.int64]:
    """Index of the record at each position, shape ``(total,)``: a permutation of range(total).

    Without ``shuffle`` it is the identity. The generator is numpy's PCG64 seeded with
    (seed, epoch), whose stream numpy keeps stable across versions.
    """
    if not shuffle:
        return np.arange(total, dtype=np.int64)
    bits = np.random.PCG64(np.random.SeedSequence((seed & (2**63 - 1), epoch)))
    return np.random.Generator(bits).permutation(total).astype(np.int64)
