"""Messages of any size in one allgather: each as a row of integers that begins with its length.

Horovod gathers rows of which each worker has another number. So the messages of all workers travel
in one collective, which for a short message is as small as one of a fixed size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from edl.core.step.step_record import Table

WORD_BYTES = 8  # of an integer of a Table


def pack(payload: bytes | memoryview) -> Table:
    """Return ``payload`` as a vector of integers: its length in bytes, then itself."""
    size = len(payload)
    frame: Table = np.empty(1 + -(-size // WORD_BYTES), dtype=np.int64)
    frame[-1] = 0  # what fills up the last word
    frame[0] = size
    frame.view(np.uint8)[WORD_BYTES : WORD_BYTES + size] = np.frombuffer(payload, dtype=np.uint8)
    return frame


def unpack(frames: Table) -> list[bytes]:
    """Return the payloads of the frames that lie one behind the other in ``frames``."""
    payloads, at = [], 0
    data = np.ascontiguousarray(frames).view(np.uint8)
    while at < len(frames):
        size, begin = int(frames[at]), (at + 1) * WORD_BYTES
        payloads.append(data[begin : begin + size].tobytes())
        at += 1 + -(-size // WORD_BYTES)
    return payloads


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return the parts of ``data``, which are ``sizes`` bytes long, one behind the other."""
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
