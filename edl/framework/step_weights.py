"""What one optimizer's gradients are multiplied by in the step that is open."""

from __future__ import annotations

from edl.core.step.step_record import samples_for
from edl.core.step.weighting import Averaging, Share, Weights, weigh
from edl.worker.worker import Worker

ALONE = Weights(Averaging.LOCAL)


class StepWeights:
    """The weights of the optimizer ``number`` in a step of ``worker``.

    Attributes:
        agreed: what the records of all workers say; None: not known yet, or of no use.
        sends_early: gradients may be sent in this step before the records are in.
        sent: what is sent is multiplied by this; 0 without samples.
        part: what gradients of this batch are multiplied by before they are added to others.
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
        """What this worker brings into the step."""
        return self._worker.loader.step_input.share(self._number)

    @property
    def local_scale(self) -> float:
        """What the local gradients are multiplied by to be the mean, where nothing was sent."""
        if self.agreed is None or self.agreed.averaging is not Averaging.LOCAL:
            return 1.0
        return self.agreed.received

    def weigh(self, early: bool = True) -> None:
        """Look at what this worker has in hand; ``early``: what is sent may go before records."""
        worker, share = self._worker, self.share
        self.sent = share.send_weight(self._batch_size)
        part = Share(worker.loader.batch_weight if share.samples else 0)
        self.part = part.send_weight(self._batch_size)
        alone = (
            worker.warming_up or worker.ring.alone or worker.loader.step_input.completed_by_peers
        )
        self.sends_early = early and self.sent > 0 and not alone

    def agree(self) -> Weights:
        """What the records of the present ring say.

        Raises:
            RingBroken: it is.
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
