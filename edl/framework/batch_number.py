"""Compute the number of the job's current batch in its epoch: :func:`batch_in_epoch`."""

from __future__ import annotations

from edl.core.step.aligned import first_untrained
from edl.worker.worker import Worker


def batch_in_epoch(worker: Worker) -> int:
    """Return the number, from 0, of the batch that the job trains now; the same on all workers."""
    progress = worker.loader.progress
    if worker.logical:
        return first_untrained(worker.loader.ledger, progress.source.batch_size)
    return progress.update_order.batch  # from 0 again after a resume within the epoch
