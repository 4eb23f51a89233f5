"""Tell Hugging Face's libraries which rank and which device this worker has.

Accelerate keeps the process's rank in a state that all of its objects share, and reads it anew for
each decision: who logs, who saves. Without a process group it would be 0 on every worker. The
number of processes stays 1 there, so Accelerate exchanges nothing: that is edl's part.
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, PartialState

from edl.binding import process
from edl.errors import UsageError
from edl.torch.collectives import gpu_of_slot

FIRST_TIMEOUT_S = 3600.0  # for the first worker of the host, which may download
KEPT_S = 24 * 3600.0  # a file by which it says that it is done


def follow_rank() -> None:
    rank = process.rank()  # for the local index too: what a host does once, the job does once
    for state in (PartialState, AcceleratorState):
        shared: dict[str, Any] = state._shared_state
        if shared:
            shared["process_index"] = shared["local_process_index"] = rank


def use_one_gpu() -> torch.device | None:
    """Take the GPU of this worker's slot; Accelerate takes the first one of the host."""
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
    """Let `args` name one GPU, that of this worker's slot, where it names all GPUs of the host."""
    if args.n_gpu > 0 and (own := use_one_gpu()) is not None:
        args._n_gpu = 1  # else it spreads each batch over all GPUs, by `DataParallel`
        vars(args)["_setup_devices"] = own  # the cached property behind args.device


@contextmanager
def goes_first(call: int, timeout_s: float = FIRST_TIMEOUT_S) -> Iterator[None]:
    """Let the first worker of each host run the body of a `with` before the host's others."""
    worker = process.current_worker()
    if process.size() == 1 or process.is_warming_up():  # a newcomer's job has passed this place
        yield
        return
    one_host = process.cross_size() == 1
    is_first = (process.rank() if one_host else process.local_rank()) == 0
    run = zlib.crc32(worker.checkpointing.run.encode())
    done = Path(tempfile.gettempdir()) / f"edl-first-{os.getuid()}-{run:08x}-{call}"
    if not is_first:
        deadline = time.monotonic() + timeout_s
        while not done.exists():
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the first worker of this host has not left main_process_first() in "
                    f"{timeout_s:g} s; prepare the data in a script of its own, before the job"
                )
            time.sleep(0.05)
        yield
        return
    try:
        yield
    finally:
        for old in done.parent.glob(f"edl-first-{os.getuid()}-*"):  # of jobs of before
            if time.time() - old.stat().st_mtime > KEPT_S:
                old.unlink(missing_ok=True)
        done.touch()


def without_wrapper(optimizer: Any) -> Any:
    """Return the optimizer of PyTorch inside of Accelerate's wrapper, or `optimizer` itself."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
