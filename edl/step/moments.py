"""Combine the means and variances of several workers' samples into those of all samples.

:func:`combined` does that with the :class:`Moments` of the workers. This is the parallel form of
the two-pass algorithm (Chan, Golub, LeVeque, 1979). It subtracts no large numbers from each other,
as sums of squares would need. Batch normalisation over the samples of all workers uses it
(:mod:`edl.torch.sync_batch_norm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Channels = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """The mean and the squared deviations of each channel of a batch."""

    elements: float  # of each channel; 0: an empty batch
    mean: Channels  # of shape (channels,)
    squares: Channels  # the sums of the squared deviations from the mean, of shape (channels,)

    @property
    def variance(self) -> Channels:
        """The biased variance of each channel, divided by `elements`."""
        return self.squares / max(self.elements, 1.0)

    def encode(self) -> bytes:
        return np.concatenate([[self.elements], self.mean, self.squares]).tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Moments:
        values = np.frombuffer(payload).copy()  # PyTorch wants memory that it may write to
        channels = (len(values) - 1) // 2
        return cls(float(values[0]), values[1 : 1 + channels], values[1 + channels :])


def combined(parts: Sequence[Moments]) -> Moments:
    """Return the moments of the elements of all `parts` together."""
    some = [part for part in parts if part.elements > 0]
    if not some:
        return parts[0]
    counts = np.array([part.elements for part in some])
    means = np.stack([part.mean for part in some])
    count = float(counts.sum())
    mean = (counts[:, None] * means).sum(axis=0) / count
    apart = (counts[:, None] * (means - mean) ** 2).sum(axis=0)
    return Moments(count, mean, np.stack([part.squares for part in some]).sum(axis=0) + apart)


def weighted_sum(payloads: Sequence[bytes]) -> Channels:
    """Return the weighted sum of vectors, each sent as float64: its weight, then its elements."""
    rows = [np.frombuffer(payload) for payload in payloads]
    found: Channels = np.zeros(len(rows[0]) - 1)
    for row in rows:
        if row[0] > 0:  # a vector of weight 0 may hold infinite numbers
            found = found + row[0] * row[1:]
    return found
