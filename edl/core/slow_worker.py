"""Decide whether the other workers of a ring wait for a slow one: :func:`holds_up`."""

from __future__ import annotations

FACTOR = 2.0  # a slow worker takes this many times as long as the others
LEAST_S = 0.01  # and this much longer; a smaller difference is the noise of a busy host


def holds_up(own_s: float, others_s: float) -> bool:
    """Return whether a worker is so slow that the others wait for it in each step.

    It takes at least :data:`FACTOR` (2) times as long as the others, and at least :data:`LEAST_S`
    (0.01) seconds longer.

    Args:
        own_s: the worker's usual time in a step, in seconds, without waiting for other workers.
        others_s: that of the other workers, in seconds.
    """
    return own_s >= FACTOR * others_s and own_s - others_s >= LEAST_S
