"""Choose the GPU of a worker: :func:`gpu_of_slot`."""

from __future__ import annotations

import torch

from edl.errors import UsageError
from edl.framework import process


def gpu_of_slot() -> torch.device:
    """Return the GPU with the number of this worker's slot on its host.

    Raises:
        UsageError: the host has fewer GPUs than slots.
    """
    slot, count = process.local_rank(), torch.cuda.device_count()
    if slot >= count:
        raise UsageError(
            f"this worker has slot {slot} of its host, which has {count} GPUs: start edl run and "
            f"edl join there with --slots {count} (docs/guides/gpus.md)"
        )
    return torch.device("cuda", slot)
