"""Call Horovod's PyTorch collectives for edl, and translate Horovod's errors into edl's."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_ops

from edl.binding import process
from edl.binding.process import classify_error
from edl.binding.replica import broadcast_message
from edl.errors import UsageError
from edl.horovod_build import SLEEPING, applied
from edl.job.stall import FOR_GRADIENTS
from edl.ring.gloo import call_init
from edl.ring.ring import CollectiveFailed
from edl.step.record import Table
from edl.text import counted
from edl.worker.activity import waits


def gpu_of_slot() -> torch.device:
    # If the job is limited to some devices, the agent has numbered the visible ones by slots.
    slot, count = process.local_rank(), torch.cuda.device_count()
    if slot >= count:  # NCCL refuses two workers on one GPU; by Gloo they would share its memory
        raise UsageError(
            f"this worker has slot {slot} of its host, which has {counted(count, 'GPU')}, and each "
            f"worker needs one of its own: start edl run and edl join there with --slots "
            f"{max(count, 1)} (docs/guides/gpus.md)"
        )
    return torch.device("cuda", slot)


WAITS_ASLEEP = SLEEPING in applied()  # whether Horovod's own wait leaves the processor to others
# Else, pauses between looks whether a collective is done. They grow with the wait, so that it
# becomes longer by a tenth at most, up to a tenth of Horovod's own cycle (1 ms).
FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH = 2e-5, 1e-4, 1.1

# Horovod's binding knows no bfloat16; such gradients travel as float32.
WIRE_DTYPE = {torch.bfloat16: torch.float32}
_OPERATIONS = {"average": hvd.Average, "sum": hvd.Sum, "max": hvd.Max}
_OF_GPUS = "horovod_torch_allreduce_async_torch_cuda_FloatTensor"  # only a build for GPUs has it


def guarded(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return function(*arguments, **named)
    except HorovodInternalError as error:
        raise classify_error(str(error)) from error
    except (ValueError, TypeError, NotImplementedError) as error:
        for_cpus = "torch.cuda." in str(error) and not hasattr(mpi_ops.mpi_lib, _OF_GPUS)
        advice = " (Horovod was built for CPUs: `edl build-horovod --gpu`)" if for_cpus else ""
        raise UsageError(f"Horovod cannot reduce this: {error}{advice}") from error


class TorchCollectives:
    def init(self) -> None:
        try:
            call_init(hvd.init)
        except (HorovodInternalError, ValueError, RuntimeError) as error:
            raise CollectiveFailed(str(error)) from error
        # Horovod registers this anew at every init; one worker may see hundreds of them.
        atexit.unregister(hvd.shutdown)

    def shutdown(self) -> None:
        hvd.shutdown()

    def allgather_start(self, row: Table, name: str, same_shape: bool = False) -> Any:
        size, rows = hvd.size(), len(row)
        if not (same_shape and hvd.local_size() == size):
            return guarded(hvd.allgather_async, torch.from_numpy(row), name=name)
        # A sum of tables, with zeros for the others' rows: on one host edl's Horovod sums in shared
        # memory, while it gathers by Gloo.
        table = np.zeros((size * rows, *row.shape[1:]), dtype=row.dtype)
        table[hvd.rank() * rows :][:rows] = row
        rows_of_all = torch.from_numpy(table)
        return average_start(rows_of_all, rows_of_all, name, "sum")

    def allgather_finish(self, handle: Any) -> Table:
        rows: Table = guarded(_synchronize, handle).numpy()
        return rows

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:
        def broadcast(data: bytearray, piece: str) -> bytearray:
            return self._broadcast(data, root, piece)

        return broadcast_message(payload, hvd.rank() == root, name, broadcast)

    @staticmethod
    def _broadcast(data: bytearray, root: int, name: str) -> bytearray:
        tensor = torch.from_numpy(np.frombuffer(data, dtype=np.uint8))  # shares its memory
        guarded(_synchronize, guarded(hvd.broadcast_async_, tensor, root, name=name))
        return data


@waits("exchanging the state with the others")
def broadcast_start(tensor: torch.Tensor, root: int, name: str) -> int:
    """Start to overwrite `tensor`, in place, with the tensor of rank `root`; return at once."""
    handle: int = guarded(hvd.broadcast_async_, tensor, root, name=name)
    return handle


def average_start(
    tensor: torch.Tensor, output: torch.Tensor, name: str, kind: str = "average"
) -> int:
    """Start to average `tensor`, which must not change until `finish` returns, into `output`."""
    # Horovod's public calls overwrite the input, or allocate an output for each call.
    handle: int = guarded(
        mpi_ops._allreduce_async,
        tensor,
        output,
        name,
        _OPERATIONS[kind],
        1.0,
        1.0,
        hvd.global_process_set,
    )
    return handle


@waits(FOR_GRADIENTS)
def finish(handle: int) -> torch.Tensor:
    output: torch.Tensor = guarded(_synchronize, handle)
    return output


def _synchronize(handle: int) -> Any:
    """Wait for the collective of `handle` as `hvd.synchronize` does, without a busy processor."""
    if WAITS_ASLEEP and handle in mpi_ops._handle_map:
        # As `hvd.synchronize`, whose own frame stands for a wait of the script's.
        try:
            mpi_ops.mpi_lib.horovod_torch_wait_and_clear(handle)
        except RuntimeError as error:
            mpi_ops._handle_map.pop(handle, None)
            raise HorovodInternalError(error) from error
        return mpi_ops._handle_map.pop(handle)[-1]
    # Horovod's own wait (WaitAndClear in torch/mpi_ops_v2.cc) polls without a pause.
    pause_s = FIRST_PAUSE_S
    while handle in mpi_ops._handle_map and not hvd.poll(handle):
        time.sleep(pause_s)
        pause_s = min(pause_s * PAUSE_GROWTH, LONGEST_PAUSE_S)
    return hvd.synchronize(handle)
