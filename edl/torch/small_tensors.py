"""Send small tensors from a loader process by value (:func:`send_small_tensors_by_value`).

PyTorch sends each tensor of a batch as a piece of shared memory: the training process connects to
the loader process, is asked for its key, and receives a file descriptor. For the labels of a batch,
or for batches of small samples, this takes longer than the copies that it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

MOST_BYTES = 131_072  # of a tensor that is sent by value: 128 KiB

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def send_small_tensors_by_value() -> None:
    """Let this process send tensors of up to `MOST_BYTES` by value through its queues."""
    # The receiver's memory is its own, shared neither with the sender nor with another tensor.
    ForkingPickler.register(torch.Tensor, _reduced)


def _reduced(tensor: torch.Tensor) -> Reduced:
    """Return a function and its arguments that make `tensor` again in the receiving process."""
    if not (_is_plain(tensor) and 0 < tensor.nbytes <= MOST_BYTES):
        reduced: Reduced = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return reduced
    return _rebuilt, (_memory(tensor).tobytes(), tensor.dtype, tensor.shape, tensor.stride())


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
        and not (tensor.is_conj() or tensor.is_neg())  # its memory has other numbers
    )


def _rebuilt(
    data: bytes, dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]
) -> torch.Tensor:
    # In PyTorch's own memory, which is aligned: the bits of a product of matrices may depend on
    # that, and those of a convolution on the strides of dimensions of one element.
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    _memory(tensor)[:] = np.frombuffer(data, np.uint8)
    return tensor


def _memory(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found: np.ndarray[Any, np.dtype[np.uint8]] = tensor.reshape(-1).view(torch.uint8).numpy()
    return found
