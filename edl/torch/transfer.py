"""Send PyTorch's tensors through the ring, by broadcasts: :class:`TorchArrays`.

:mod:`edl.framework.state` sends the rest of a state, and calls it for the tensors.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from edl.framework import state
from edl.framework.state import Reference, transfers
from edl.ring.ring import CollectiveFailed
from edl.torch.collectives import broadcast_start, finish

COLLECTIVE_BYTES = 2**22  # what a worker receives and does not keep stays in the processor's cache


class TorchArrays:
    """The PyTorch part of sending a state: describe, allocate and broadcast its tensors."""

    def __init__(self) -> None:
        self._reserved: dict[int, list[torch.Tensor]] = {}  # buffers in CPU memory, by their size

    def reserve(self, sent: list[Reference]) -> None:
        """Allocate the memory into which the next `broadcast` receives a state to be kept."""
        self._reserved.clear()
        for piece in transfers(sent):
            if piece[0].device == "cpu":
                size = sum(reference.size for reference in piece)
                # Written to now: that takes longer than the transfer, for which all workers wait.
                flat = torch.empty(size, dtype=torch.uint8).zero_()
                self._reserved.setdefault(size, []).append(flat)

    def refer(self, value: Any, index: int) -> tuple[torch.Tensor, Reference] | None:
        """Return the tensor to send for `value`, and its placeholder in the sent state."""
        if not isinstance(value, torch.Tensor):
            return None
        tensor = value.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() * tensor.element_size()
        return tensor, Reference(index, tuple(tensor.shape), dtype, size, tensor.device.type)

    def empty(self, reference: Reference) -> torch.Tensor:
        """Return a tensor without elements, of the shape, dtype and device type in `reference`."""
        dtype, device = getattr(torch, reference.dtype), _own_device(reference.device)
        return torch.empty(reference.shape, dtype=dtype, device=device)

    def broadcast(
        self,
        sent: list[Reference],
        arrays: list[torch.Tensor] | None,
        root: int,
        keep: bool,
    ) -> dict[int, torch.Tensor]:
        """Broadcast the tensors of a state from rank `root`; all workers call it."""
        parts_sent = list(transfers(sent))
        buffers: list[torch.Tensor] = []
        handles: list[int] = []
        scratch: dict[str, torch.Tensor] = {}
        for number, piece in enumerate(parts_sent):
            size, kind = sum(reference.size for reference in piece), piece[0].device
            if arrays is not None:
                parts = [_as_bytes(arrays[reference.index]) for reference in piece]
                flat = parts[0] if len(parts) == 1 else torch.cat(parts)
            elif keep:
                flat = self._kept_buffer(size, kind)
            else:  # one buffer for all: to touch new memory would cost more than the transfer
                if kind not in scratch:
                    scratch[kind] = _new_buffer(COLLECTIVE_BYTES, kind)
                flat = scratch[kind]
            buffers.append(flat)
            handles += _start_broadcasts(flat, size, root, f"edl.state.{number}")
        self._reserved.clear()
        failures: list[CollectiveFailed] = []
        for handle in handles:  # all of them, so that Horovod lets go of all buffers
            try:
                finish(handle)
            except CollectiveFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]
        received: dict[int, torch.Tensor] = {}
        for piece, flat in zip(parts_sent, buffers, strict=True) if keep else ():
            start = 0
            for reference in piece:
                stop = start + reference.size
                # In a shared piece a copy of its own: a view must be aligned to its type.
                own = flat if len(piece) == 1 else flat[start:stop].clone()
                received[reference.index] = own.view(getattr(torch, reference.dtype)).reshape(
                    reference.shape
                )
                start = stop
        return received

    def _kept_buffer(self, size: int, kind: str) -> torch.Tensor:
        """Return a flat uint8 tensor of any content, into which a part of a state is received."""
        if kind == "cpu" and self._reserved.get(size):
            return self._reserved[size].pop()
        return _new_buffer(size, kind)


exchange = functools.partial(state.exchange_state, TorchArrays())


def _start_broadcasts(flat: torch.Tensor, size: int, root: int, name: str) -> list[int]:
    """Start the broadcasts of one flat buffer, of at most `COLLECTIVE_BYTES` each."""
    handles = []
    for start in range(0, size, COLLECTIVE_BYTES):
        begin = start if size <= len(flat) else 0  # each overwrites a scratch buffer
        part = flat[begin : begin + min(COLLECTIVE_BYTES, size - start)]
        handles.append(broadcast_start(part, root, f"{name}.{start}"))
    return handles


def _new_buffer(size: int, kind: str) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=_own_device(kind))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _own_device(kind: str) -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    )
