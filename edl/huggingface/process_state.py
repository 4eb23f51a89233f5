"""Tell Hugging Face's libraries which rank and which device this worker has.

Accelerate keeps the process's rank in a state that all of its objects share, and reads it anew for
each decision: who logs, who saves, who shows a progress bar. Without a process group of
``torch.distributed`` it would be 0 on every worker. The number of processes stays 1 there, so
Accelerate exchanges nothing: that is edl's part.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, PartialState

from edl.framework import process
from edl.torch.devices import gpu_of_slot


def follow_rank() -> None:
    """Set Accelerate's process index to this worker's present rank, in the states that exist.

    A newcomer that warms up has no rank 0. The local index is 0 on rank 0 only, so that what each
    host does once is done once in the job.
    """
    rank = process.rank()
    for state in (PartialState, AcceleratorState):
        shared: dict[str, Any] = state._shared_state
        if shared:
            shared["process_index"] = shared["local_process_index"] = rank


def use_one_gpu() -> torch.device | None:
    """Take the GPU of this worker's slot; Accelerate takes the first one of the host.

    Returns:
        The GPU; None on a CPU, where nothing is changed.

    Raises:
        UsageError: the host has fewer GPUs than slots.
    """
    device = PartialState._shared_state.get("device")
    if device is None or device.type != "cuda":
        return None
    own = gpu_of_slot()
    torch.cuda.set_device(own)
    for state in (PartialState, AcceleratorState):
        if state._shared_state:
            state._shared_state["device"] = own
    return own


def use_one_device(args: Any) -> None:
    """Let ``args`` name one GPU, that of this worker's slot, where it names all GPUs of the host.

    Without a process group, ``TrainingArguments`` would spread each batch over all GPUs that the
    process sees, by ``DataParallel``. On a CPU nothing is changed.

    Args:
        args: the ``TrainingArguments`` of the script.

    Raises:
        UsageError: the host has fewer GPUs than slots.
    """
    if args.n_gpu > 0 and (own := use_one_gpu()) is not None:
        args._n_gpu = 1
        vars(args)["_setup_devices"] = own  # the cached property behind args.device


def without_wrapper(optimizer: Any) -> Any:
    """Return the optimizer of PyTorch inside of Accelerate's wrapper, or ``optimizer`` itself."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
