"""Make a known gradient noise scale, to test learning rates and batch sizes that follow it."""

from __future__ import annotations

from edl.core.step.noise_scale import UNKNOWN, NoiseSample, NoiseScale

ENOUGH = 20  # measurements that all say the same


def known_noise(noise: float, signal: float, batch: int, update: int = 0) -> NoiseScale:
    """Return the noise scale after ENOUGH measurements with equal values.

    Args:
        noise: S of each measurement, the trace of the covariance of a sample's gradient.
        signal: |G|^2 of each, the squared norm of the gradient; the scale is noise / signal.
        batch: the global batch of each measured step.
        update: the number of the first update that is made with this scale.
    """
    known = UNKNOWN
    for _ in range(ENOUGH):
        known = known.after(NoiseSample(noise, signal), batch, update)
    return known
