"""Compute which record is at which position of an epoch: a pure function of (seed, epoch).

The ledger leases positions, not records. Every worker computes the same order, so a lease of
positions names the same records everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

SORTED = 2**16  # up to so many records, an order is computed as a whole, in some milliseconds
BLOCK = 4096  # positions of a longer order that are computed at a time
ROUNDS = 8  # rounds of the Feistel network
_WORD = np.uint64(64)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class SampleOrder(Protocol):
    """The samples of each epoch in order; a sample may be there several times, or not at all."""

    total: int  # how many positions an epoch has

    def __call__(self, epoch: int) -> Indices:
        """Return the index of the sample at each position of the epoch `epoch`, from 0."""


class EpochOrder:
    """The order of an epoch: a permutation that maps each position to the index of its record."""

    def __init__(self, total: int, seed: int, epoch: int, shuffle: bool) -> None:
        self._total = total
        self._whole: Indices | None = None
        self._records: Callable[[], Indices] | None = None
        self._keys: npt.NDArray[np.uint64] | None = None
        self._block = -1, np.empty(0, dtype=np.int64)  # number and records of the newest block
        if not shuffle:
            return
        # numpy promises that this raw stream stays the same in later versions, but not
        # `Generator.permutation` (NEP 19): with another order, a job that is resumed from a
        # checkpoint would repeat some records and miss others.
        bits = np.random.PCG64(np.random.SeedSequence((seed & (2**63 - 1), epoch)))
        if total <= SORTED:
            keys = bits.random_raw(total)
            self._whole = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
        else:
            # of a Feistel network, computed around the positions asked for: no process holds a
            # hundred million numbers
            self._keys = bits.random_raw(ROUNDS)

    @classmethod
    def given(cls, total: int, records: Callable[[], Indices]) -> EpochOrder:
        """Return an order of `total` positions whose records another object chooses."""
        order = cls(total, 0, 0, False)
        order._records = records
        return order

    def __len__(self) -> int:
        return self._total

    def at(self, start: int, stop: int) -> Indices:
        """Return the indices of the records at the positions `start` to `stop - 1`, in order."""
        start, stop = min(start, self._total), min(stop, self._total)
        if self._whole is None and self._records is not None:
            self._whole = self._records()
        if self._whole is not None:
            return self._whole[start:stop]  # must not be changed: it is a part of the order itself
        if self._keys is None:
            return np.arange(start, stop, dtype=np.int64)
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            number = start // BLOCK
            first = number * BLOCK
            block = self._block  # another thread may read elsewhere meanwhile
            if block[0] != number:
                block = number, self._computed(first, min(first + BLOCK, self._total))
                self._block = block
            end = min(stop, first + BLOCK)
            parts.append(block[1][start - first : end - first])
            start = end
        return np.concatenate(parts)

    def _computed(self, start: int, stop: int) -> Indices:
        """Return the records at the positions `start` to `stop - 1` of a long, shuffled order."""
        total = np.uint64(self._total)
        found = self._permuted(np.arange(start, stop, dtype=np.uint64))
        while (outside := found >= total).any():  # no records: once more (cycle walking)
            found[outside] = self._permuted(found[outside])
        return found.astype(np.int64)

    def _permuted(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return `numbers` under the Feistel network, a permutation of range(2**width)."""
        assert self._keys is not None
        width = (self._total - 1).bit_length()
        low = width // 2
        bits = np.uint64(low), np.uint64(width - low)
        halves = [numbers & np.uint64(2**low - 1), numbers >> bits[0]]
        # Each half is changed by a function of the other one, which can be undone: a permutation.
        for turn, key in enumerate(self._keys):
            changed = turn % 2
            halves[changed] = halves[changed] ^ _mixed(halves[1 - changed] + key, bits[changed])
        joined: npt.NDArray[np.uint64] = halves[0] | (halves[1] << bits[0])
        return joined


def _mixed(words: npt.NDArray[np.uint64], bits: np.uint64) -> npt.NDArray[np.uint64]:
    """Return the highest `bits` bits, as a number, of a 64-bit hash of each item of `words`."""
    # The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    # generators); each of its bits depends on all bits of the word.
    words = (words ^ (words >> np.uint64(30))) * _FACTORS[0]
    words = (words ^ (words >> np.uint64(27))) * _FACTORS[1]
    mixed: npt.NDArray[np.uint64] = (words ^ (words >> np.uint64(31))) >> (_WORD - bits)
    return mixed
