"""The state that all workers share: model, optimizer and tracked objects, sent to newcomers.

How it travels: :mod:`edl.framework.state`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from edl.daemon.position import Receive
from edl.errors import CheckpointError, RingBroken, UsageError
from edl.framework.process import Stateful
from edl.framework.state import Reference, map_leaves, pieces, references
from edl.ring.ring import CollectiveFailed, Ring
from edl.torch.capture import Copier, check_model, to_tensors
from edl.torch.collectives import broadcast_start, finish
from edl.torch.reduction import optimizer_parameters


class TorchReplica:
    """Model, optimizer and tracked objects of this process."""

    framework = "torch"

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._tracked: dict[str, Stateful] = {}
        self._copier = Copier()

    def track(self, objects: dict[str, Stateful]) -> None:
        """Let more objects follow the job.

        Raises:
            UsageError: an object cannot give and take its state, or the name is taken.
        """
        self.check(objects)
        for name, thing in objects.items():
            if self._tracked.get(name, thing) is not thing:
                raise UsageError(f"edl.track({name}=...): another object is tracked as {name}")
            self._tracked[name] = thing

    @staticmethod
    def check(objects: dict[str, Stateful]) -> None:
        """Raise UsageError for an object that cannot give and take its state."""
        for name, thing in objects.items():
            if not isinstance(thing, Stateful):
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has no state_dict() and "
                    "load_state_dict()"
                )

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """See :class:`edl.daemon.switching.Replica`.

        Raises:
            RingBroken: a worker is gone; a receiver's state is then undefined.
            UsageError: the receiver's script tracks other objects than the job's.
        """
        if ring.alone:
            return
        sending = ring.place.rank == root
        tensors: list[torch.Tensor] = []
        mine = pickle.dumps(_describe(self._state(), tensors)) if sending else b""
        description = pickle.loads(ring.broadcast(mine, root, "edl.state"))
        try:
            keep = receive is not Receive.NOTHING
            received = _broadcast(references(description), tensors if sending else None, root, keep)
        except CollectiveFailed as error:
            raise RingBroken(ring.generation, str(error)) from error
        if keep and not sending:
            self._load(_fill(description, received), receive)

    def capture(self) -> Any:
        """See :class:`edl.daemon.checkpoint.Durable`."""
        kind = type(self._optimizer).__name__
        return self._copier.copy({**self._state(), "optimizer_kind": kind})

    def restore(self, state: Any) -> None:
        """See :class:`edl.daemon.checkpoint.Durable`."""
        kind = type(self._optimizer).__name__
        if state["optimizer_kind"] != kind:
            raise CheckpointError(
                f"the checkpoint is of a job with {state['optimizer_kind']}, and this script "
                f"trains with {kind}"
            )
        loaded = to_tensors(state)
        check_model(dict(self._model_tensors()), loaded["model"])
        if odd := sorted(self._tracked.keys() ^ loaded["tracked"].keys()):
            raise CheckpointError(
                f"edl.track: only one of checkpoint and script tracks {', '.join(odd)}"
            )
        try:
            self._load(loaded, Receive.ALL)
        except (UsageError, ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this script: {error}") from error

    def _state(self) -> dict[str, Any]:
        return {
            "model": {name: tensor.detach() for name, tensor in self._model_tensors()},
            "optimizer": self._optimizer.state_dict(),
            "tracked": {name: thing.state_dict() for name, thing in self._tracked.items()},
        }

    def _load(self, state: dict[str, Any], receive: Receive) -> None:
        mine = dict(self._model_tensors())
        if mine.keys() != state["model"].keys():
            odd = sorted(mine.keys() ^ state["model"].keys())
            raise UsageError(f"this worker's model differs from the job's in {', '.join(odd)}")
        with torch.no_grad():
            for name, tensor in state["model"].items():
                mine[name].copy_(tensor)
        if receive is Receive.STEP:
            # The learning rate and its like belong to the script's place in its loop, and this
            # script's schedulers have yet to do what the sender's have done.
            state["optimizer"]["param_groups"] = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict(state["optimizer"])
        if receive is Receive.STEP:
            return
        if self._tracked.keys() != state["tracked"].keys():
            odd = sorted(self._tracked.keys() ^ state["tracked"].keys())
            raise UsageError(f"edl.track: only some workers track {', '.join(odd)}")
        for name, thing_state in state["tracked"].items():
            self._tracked[name].load_state_dict(thing_state)

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers: all of the model, and what else the optimizer trains."""
        yield from self._model.named_parameters()
        yield from self._model.named_buffers()
        inside = set(self._model.parameters())
        for name, parameter in optimizer_parameters(self._optimizer, self._model):
            if parameter not in inside:
                yield name, parameter


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
