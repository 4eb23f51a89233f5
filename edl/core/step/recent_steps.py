"""Compute how many samples an update of the job has had lately, in global batches.

The number is no constant of the job. A script that adds up gradients trains several global batches
for an update, and may change how many; one with several optimizers may make several updates with
the same batch.
"""

from __future__ import annotations

from collections import deque

STEPS = 32  # enough for a period of two optimizers, of which one makes few updates


class RecentSteps:
    """The samples of a job's last `STEPS` steps, as one worker knows them."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=STEPS)

    def add(self, samples: int, batch: int) -> None:
        """Add a complete step; `samples` is 0 if the step before it has trained the same batch."""
        self._steps.append((samples, batch))

    @property
    def batches(self) -> float | None:
        """How many global batches a step has on the average; None: no samples are known yet."""
        samples, batches = map(sum, zip(*self._steps, strict=True)) if self._steps else (0, 1)
        return samples / batches if samples else None
