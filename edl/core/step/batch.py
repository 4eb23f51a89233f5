"""Define :class:`Batch`, the samples that one worker trains at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Batch:
    """The samples that one worker trains at once: a whole batch, or a microbatch of it."""

    position: int  # the epoch position of the first sample
    indices: npt.NDArray[np.int64]  # of the samples in the data set, of shape (samples,)
    # the optimizers (bit i for the one with number i) that have already made an update with these
    # samples on another worker; their next update leaves the samples out
    counted: int = 0
    follow: int = 0  # how many microbatches of the same batch follow this one
    repeats: bool = False  # another worker's samples, computed again to compare; count for nothing

    @property
    def samples(self) -> int:
        return len(self.indices)

    @property
    def items(self) -> list[Any]:
        """The items of which the loader makes the batch: the samples' indices in the data set."""
        items: list[Any] = self.indices.tolist()
        return items

    @property
    def keys(self) -> list[int]:
        """The numbers that identify the samples in the epoch, equal on all workers."""
        keys: list[int] = self.indices.tolist()
        return keys
