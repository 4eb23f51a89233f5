"""How far a job's training is, as one worker says it of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edl.core.record import Record


@dataclass(frozen=True)
class Progress(Record):
    """How far one worker has trained. Written at the end of each step."""

    generation: int = 0
    size: int = 0
    step: int = 0
    epoch: int = 0
    epoch_done: int = 0
    epoch_total: int = 0
    samples_total: int = 0  # over all workers, since this worker joined
    median_step_s: float = 0.0
    slowest: int = -1  # worker that computes far longer in a step than the others; -1: none does
    slowest_s: float = 0.0
    others_s: float = 0.0
    counted_at: float = 0.0  # when step and samples were as above, by the clock of that worker
    updated_at: float = 0.0  # on the monotonic clock of that worker's process
    untrained: int = 0  # samples of epochs that all workers have left before their end
    epochs: int = 0  # that the script trains; 0: it has not said
    noise_scale: float | None = None  # of the gradients, in samples; None: nobody can say
    noise_is_biased: bool = False  # it was measured by a single worker
    global_batch: int = 0  # samples of a batch of all workers; 0: nobody can say

    @property
    def left(self) -> float | None:
        """Samples to train until the end of the job; None: nobody knows."""
        if not self.epochs or not self.epoch_total:
            return None
        return float((self.epochs - self.epoch) * self.epoch_total - self.epoch_done)

    def for_others(self, now_s: float) -> dict[str, Any]:
        """For other processes, which have another clock: ``quiet_s`` ago in place of a time."""
        values = self.to_json()
        return values | {"quiet_s": round(now_s - values.pop("updated_at"), 3)}
