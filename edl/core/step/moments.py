"""Mean and variance over the samples of several workers, from those of each.

The parallel form of the two-pass algorithm (Chan, Golub, LeVeque, 1979): no difference of large
numbers, as sums of squares would need. Batch normalisation over a step uses it
(:mod:`edl.torch.sync_batch_norm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Channels = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """The first two moments of each channel.

    Attributes:
        elements: of a channel.
        mean: of shape (channels,).
        squares: sum of the squared deviations from the mean, of shape (channels,).
    """

    elements: float
    mean: Channels
    squares: Channels

    @property
    def variance(self) -> Channels:
        """The biased variance of each channel, of shape (channels,)."""
        return self.squares / max(self.elements, 1.0)

    def encode(self) -> bytes:
        """Return them as the payload of an exchange."""
        return np.concatenate([[self.elements], self.mean, self.squares]).tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Moments:
        """Return what :meth:`encode` has packed."""
        values = np.frombuffer(payload).copy()  # PyTorch wants memory that it may write to
        channels = (len(values) - 1) // 2
        return cls(float(values[0]), values[1 : 1 + channels], values[1 + channels :])


def combined(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all elements together; a part without any does not enter."""
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
    """Return the sum of vectors, each times its weight, which is the first number of its payload.

    A vector of weight 0 does not enter, whatever it holds.
    """
    rows = [np.frombuffer(payload) for payload in payloads]
    found: Channels = np.zeros(len(rows[0]) - 1)
    for row in rows:
        if row[0] > 0:
            found = found + row[0] * row[1:]
    return found
