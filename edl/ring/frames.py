"""Send messages of different lengths in one allgather, each as int64 numbers after its length.

In Horovod's allgather each worker may contribute a different number of rows. So one collective
carries the messages of all workers, and a short message is not padded to the longest one. The
sender calls :func:`pack_frame`, and each receiver calls :func:`unpack` on the gathered vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from edl.step.record import Table

WORD_BYTES = 8  # the size of an integer in a Table


def pack_frame(payload: bytes | memoryview) -> Table:
    """Return `payload` as a vector of int64: its length in bytes, then its bytes, 8 to a number."""
    size = len(payload)
    frame: Table = np.empty(1 + -(-size // WORD_BYTES), dtype=np.int64)
    frame[-1] = 0  # what fills up the last word
    frame[0] = size
    frame.view(np.uint8)[WORD_BYTES : WORD_BYTES + size] = np.frombuffer(payload, dtype=np.uint8)
    return frame


def unpack(frames: Table) -> list[bytes]:
    """Return the payloads in `frames`, a concatenation of vectors made by `pack_frame`."""
    payloads, at = [], 0
    data = np.ascontiguousarray(frames).view(np.uint8)
    while at < len(frames):
        size, begin = int(frames[at]), (at + 1) * WORD_BYTES
        payloads.append(data[begin : begin + size].tobytes())
        at += 1 + -(-size // WORD_BYTES)
    return payloads


def split_bytes(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut `data` into consecutive pieces, one for each number of bytes in `sizes`, in order."""
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
