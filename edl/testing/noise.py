"""Make a known gradient noise scale, to test learning rates and batch sizes that follow it.

:func:`known_noise` makes it.
"""

from __future__ import annotations

from edl.step.noise import UNKNOWN, NoiseSample, NoiseScale

ENOUGH = 20  # measurements that all say the same


def known_noise(noise: float, signal: float, batch: int, update: int = 0) -> NoiseScale:
    """Return a gradient noise scale after ENOUGH (20) measurements with equal values."""
    known = UNKNOWN
    for _ in range(ENOUGH):
        known = known.after(NoiseSample(noise, signal), batch, update)
    return known
