"""Send messages of different sizes in one allgather, each as integers that begin with its length.

In Horovod's allgather each worker may bring another number of rows. So one collective carries the
messages of all workers, and short messages cost no more than messages of a fixed size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from edl.core.step.step_record import Table

WORD_BYTES = 8  # the size of an integer in a Table


def pack_frame(payload: bytes | memoryview) -> Table:
    """Return a vector of integers with the length of ``payload`` in bytes, and its bytes.

    The last integer is filled up with zeros.
    """
    size = len(payload)
    frame: Table = np.empty(1 + -(-size // WORD_BYTES), dtype=np.int64)
    frame[-1] = 0  # what fills up the last word
    frame[0] = size
    frame.view(np.uint8)[WORD_BYTES : WORD_BYTES + size] = np.frombuffer(payload, dtype=np.uint8)
    return frame


def unpack(frames: Table) -> list[bytes]:
    """Return the payloads of ``frames``, a concatenation of what :func:`pack` has returned."""
    payloads, at = [], 0
    data = np.ascontiguousarray(frames).view(np.uint8)
    while at < len(frames):
        size, begin = int(frames[at]), (at + 1) * WORD_BYTES
        payloads.append(data[begin : begin + size].tobytes())
        at += 1 + -(-size // WORD_BYTES)
    return payloads


def split_bytes(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut ``data`` into consecutive parts of the given sizes in bytes."""
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
