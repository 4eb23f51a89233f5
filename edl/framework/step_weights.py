"""Compute the factors that one optimizer's gradients are multiplied by (:class:`StepWeights`)."""

from __future__ import annotations

from edl.core.step.step_record import samples_for
from edl.core.step.weighting import Averaging, Share, Weights, weigh
from edl.worker.worker import Worker

ALONE = Weights(Averaging.LOCAL)


class StepWeights:
    """The factors that the gradients of one optimizer are multiplied by in the open step.

    :class:`edl.framework.reduction.StepReduction` has one, and calls :meth:`weigh` for each batch
    and :meth:`agree` before gradients are sent. The factors are 0 before the first batch.

    Args:
        worker: the worker that this process is.
        number: the number of the optimizer in the script, from 0.

    Attributes:
        agreed: the factors before and after the average, from the step records (numbers of samples
            and batches) of all workers; None: the records are not there yet, or are of a broken
            ring.
        sends_early: whether gradients may be sent in this step before the records have arrived.
        sent: the factor for the gradients that this worker sends: its samples over the nominal
            batch size, or 1 if its gradients are added up over batches; 0 without samples.
        part: with accumulated gradients, the factor for the gradients of the batch that was handed
            out last, before they are added to those of the earlier batches.
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
        """How many samples and batches this worker has for this optimizer in the open step.

        The samples are 0 if the optimizer has made an update with them on another worker.
        """
        return self._worker.loader.step_input.share(self._number)

    @property
    def local_scale(self) -> float:
        """The factor that turns a lone worker's gradients into the mean over its samples.

        It is 1 in a step in which gradients are sent to other workers, and before :meth:`agree`.
        """
        if self.agreed is None or self.agreed.averaging is not Averaging.LOCAL:
            return 1.0
        return self.agreed.received

    def weigh(self, early: bool = True) -> None:
        """Compute ``sent``, ``part`` and ``sends_early`` anew, from the batches of the open step.

        ``sent`` and ``part`` are factors for this worker's gradients; ``sends_early`` says whether
        they may be sent before the step records have arrived.

        Args:
            early: whether that is allowed at all. ``sends_early`` is still False if this worker has
                no samples, is alone in its ring or warms up, or the others have completed the step.
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
        """Wait for the step records of all workers; return the factors that follow from them.

        A step record has the numbers of samples and batches of a worker in the step. The result is
        stored in ``agreed``, too. A newcomer that warms up does not wait: it uses its own gradient
        in place of the mean.

        Raises:
            RingBroken: if the ring is broken; ``agreed`` is None then.
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
        """The nominal batch size, in samples, equal on all workers.

        It is the job's global batch if it has one (the smallest of a range), else the batch of one
        worker.
        """
        return self._worker.loader.progress.source.batch_size
