"""A gradient noise scale that is known, for tests of what follows it."""

from __future__ import annotations

from edl.core.step.noise_scale import UNKNOWN, Measured, NoiseScale

ENOUGH = 20  # measurements that all say the same


def known_noise(noise: float, signal: float, batch: int, update: int = 0) -> NoiseScale:
    """Return what is known when all measurements have said the same.

    Args:
        noise: S of each of them; ``signal``: |G|^2.
        batch: the global batch of each.
        update: the first one that is made with it.
    """
    known = UNKNOWN
    for _ in range(ENOUGH):
        known = known.after(Measured(noise, signal), batch, update)
    return known
