"""A state with tensors on its way through the ring; see :mod:`edl.framework.state`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import torch

from edl.errors import RingBroken
from edl.framework.state import Reference, map_leaves, pieces, references
from edl.ring.ring import CollectiveFailed, Ring
from edl.torch.collectives import broadcast_start, finish


def exchange(
    ring: Ring,
    root: int,
    state: Any,
    keep: bool,
    dumps: Callable[[Any], bytes] = pickle.dumps,
) -> Any:
    """The ``state`` of the rank ``root`` on all others that ``keep`` it.

    None on the root and on who does not keep it. ``state`` is None on all but the root.
    ``dumps`` pickles it, without its tensors.

    Raises:
        RingBroken: a worker is gone.
    """
    tensors: list[torch.Tensor] = []
    sending = ring.place.rank == root
    mine = dumps(_describe(state, tensors)) if sending else b""
    description = pickle.loads(ring.broadcast(mine, root, "edl.state"))
    try:
        received = _broadcast(references(description), tensors if sending else None, root, keep)
    except CollectiveFailed as error:
        raise RingBroken(ring.generation, str(error)) from error
    return _fill(description, received) if keep else None


def _describe(state: Any, tensors: list[torch.Tensor]) -> Any:
    """``state`` with each tensor moved to ``tensors`` and a reference in its place."""

    def leaf(value: Any, _where: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value.detach())
        dtype = str(value.dtype).removeprefix("torch.")
        size = value.numel() * value.element_size()
        return Reference(len(tensors) - 1, tuple(value.shape), dtype, size, value.device.type)

    return map_leaves(state, leaf)


def _fill(description: Any, tensors: dict[int, torch.Tensor]) -> Any:
    """The inverse of :func:`_describe`."""

    def leaf(value: Any, _where: str) -> Any:
        if not isinstance(value, Reference):
            return value
        if value.index in tensors:
            return tensors[value.index]
        device = _own_device(value.device)
        return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device=device)

    return map_leaves(description, leaf)


def _broadcast(
    sent: Iterable[Reference],
    tensors: list[torch.Tensor] | None,
    root: int,
    keep: bool,
) -> dict[int, torch.Tensor]:
    """Send ``tensors``, or take part; returns those received by index, if they are to be kept.

    Everything is under way at once. A large tensor goes as it is, without a copy on either
    side; small ones share a piece. Who has the state already lets all of it run into one
    scratch buffer: touching new memory would cost it more than the transfer.
    """
    parts_sent = list(pieces(sent))
    buffers: list[torch.Tensor] = []
    handles: list[int] = []
    scratch: dict[str, torch.Tensor] = {}
    for number, piece in enumerate(parts_sent):
        size, kind = sum(reference.size for reference in piece), piece[0].device
        if tensors is not None:
            parts = [_as_bytes(tensors[reference.index]) for reference in piece]
            flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        elif keep:
            flat = torch.empty(size, dtype=torch.uint8, device=_own_device(kind))
        else:
            if kind not in scratch or len(scratch[kind]) < size:
                scratch[kind] = torch.empty(size, dtype=torch.uint8, device=_own_device(kind))
            flat = scratch[kind][:size]
        buffers.append(flat)
        handles.append(broadcast_start(flat, root, f"edl.state.{number}"))
    failures: list[CollectiveFailed] = []
    for handle in handles:  # all of them, so that Horovod lets go of all buffers
        try:
            finish(handle)
        except CollectiveFailed as error:
            failures.append(error)
    if failures:
        raise failures[0]
    received: dict[int, torch.Tensor] = {}
    for piece, flat in zip(parts_sent, buffers, strict=True) if keep and tensors is None else ():
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


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _own_device(kind: str) -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    )
