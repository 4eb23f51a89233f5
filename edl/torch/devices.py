"""Choose the GPU of a worker: :func:`gpu_of_slot`."""

from __future__ import annotations

import torch

from edl.core.plural import counted
from edl.errors import UsageError
from edl.framework import process


def gpu_of_slot() -> torch.device:
    """Return the GPU with the number of this worker's slot on its host, for all adapters."""
    # If the job is limited to some devices, the agent has numbered the visible ones by slots.
    slot, count = process.local_rank(), torch.cuda.device_count()
    if slot >= count:  # NCCL refuses two workers on one GPU; by Gloo they would share its memory
        raise UsageError(
            f"this worker has slot {slot} of its host, which has {counted(count, 'GPU')}, and each "
            f"worker needs one of its own: start edl run and edl join there with --slots "
            f"{max(count, 1)} (docs/guides/gpus.md)"
        )
    return torch.device("cuda", slot)
