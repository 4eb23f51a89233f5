"""Decide whether the other workers of a ring wait for a slow one: :func:`holds_up`."""

from __future__ import annotations

FACTOR = 2.0  # a slow worker takes this many times as long as the others
LEAST_S = 0.01  # and this much longer; a smaller difference is the noise of a busy host


def holds_up(own_s: float, others_s: float) -> bool:
    """Return whether a worker is so slow that the others wait for it in each step."""
    return own_s >= FACTOR * others_s and own_s - others_s >= LEAST_S
