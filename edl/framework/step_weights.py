"""Compute the factors for one optimizer's gradients in the open step."""

from __future__ import annotations

from edl.core.step.step_record import samples_for
from edl.core.step.weighting import Averaging, Share, Weights, weigh
from edl.worker.worker import Worker

ALONE = Weights(Averaging.LOCAL)


class StepWeights:
    """The factors for the gradients of the optimizer ``number`` in a step of ``worker``.

    Attributes:
        agreed: the weights that the step records of all workers give; None: not known yet, or no
            longer valid.
        sends_early: whether gradients may be sent in this step before the records have arrived.
        sent: the factor for what this worker sends; 0 without samples.
        part: the factor for gradients of the present batch before they are added to those of
            others.
    """

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker = worker
        self._number = number
        self.agreed: Weights | None = None
        self.sends_early = False
        self.sent = 0.0
        self.part = 0.0

    @property
    def share(self) -> Share:
        """What this worker contributes to the step: its samples and batches."""
        return self._worker.loader.step_input.share(self._number)

    @property
    def local_scale(self) -> float:
        """The factor that makes local gradients the mean, in a step in which nothing is sent."""
        if self.agreed is None or self.agreed.averaging is not Averaging.LOCAL:
            return 1.0
        return self.agreed.received

    def weigh(self, early: bool = True) -> None:
        """Compute this worker's factors anew, from the batches that it has now.

        Args:
            early: whether gradients may be sent before the step records have arrived, if this
                worker has samples and is not alone.
        """
        worker, share = self._worker, self.share
        self.sent = share.send_weight(self._batch_size)
        part = Share(worker.loader.batch_weight if share.samples else 0)
        self.part = part.send_weight(self._batch_size)
        alone = (
            worker.warming_up or worker.ring.alone or worker.loader.step_input.completed_by_peers
        )
        self.sends_early = early and self.sent > 0 and not alone

    def agree(self) -> Weights:
        """Return the weights that the step records of the present ring give; wait for the records.

        Raises:
            RingBroken: if the ring is broken.
        """
        worker, self.agreed = self._worker, None
        if worker.warming_up:
            self.agreed = ALONE
        else:
            records = worker.loader.records()
            samples, batches = samples_for(records, self._number), records.column("batches")
            self.agreed = weigh(samples, batches, self.share, self._batch_size)
        return self.agreed

    @property
    def _batch_size(self) -> int:
        """The nominal batch size of one worker."""
        return self._worker.loader.progress.source.batch_size
