"""What a script trains on, made known to its worker and to the job's event log."""

from __future__ import annotations

from typing import Any

from edl.core.events import DataSkippedDetails
from edl.core.step.source import Source
from edl.daemon.worker import Worker
from edl.data.dataset import fingerprint_of, skip_events


def attach_source(
    worker: Worker,
    dataset: Any,
    total: int,
    batch_size: int,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
) -> Source:
    """Declare ``dataset`` with its ``total`` samples, and log what was left out of it.

    Raises:
        DataError, UsageError: see :meth:`edl.daemon.progress.TrainingProgress.attach`.
    """
    fingerprint = fingerprint_of(dataset)
    source = Source(total, batch_size, shuffle, seed, prefetch_batches, fingerprint)
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source
