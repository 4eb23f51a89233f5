"""Compute how many steps a training by epochs has left."""

from __future__ import annotations

import math


def steps_left(epochs: float, epoch: int, done: int, total: int, batch: int) -> int:
    """Return about how many steps are left: workers come and go, and last steps may be small."""
    now = min(1.0, epochs - epoch) * total - done
    later = max(0.0, epochs - epoch - 1)
    whole = math.floor(later)
    steps = whole * math.ceil(total / batch) + math.ceil((later - whole) * total / batch)
    return steps + max(0, math.ceil(now / batch))
