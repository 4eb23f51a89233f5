"""The state that all workers share, as PyTorch has it; see :mod:`edl.framework.replica`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from edl.daemon.position import Receive
from edl.errors import UsageError
from edl.framework.replica import FrameworkReplica, Stateful
from edl.framework.state import Reference, pieces
from edl.ring.ring import CollectiveFailed
from edl.torch.capture import Copier, check_model, to_tensors
from edl.torch.collectives import broadcast_start, finish
from edl.torch.reduction import optimizer_parameters


class TorchReplica(FrameworkReplica[torch.Tensor]):
    """Model, optimizer and tracked objects of this process."""

    framework = "torch"
    misfits = (*FrameworkReplica.misfits, RuntimeError)

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(type(optimizer).__name__)
        self._model = model
        self._optimizer = optimizer
        self._copier = Copier()

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        for name, thing in objects.items():
            if not isinstance(thing, Stateful):
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has no state_dict() and "
                    "load_state_dict()"
                )

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: tensor.detach() for name, tensor in self._model_tensors()},
            "optimizer": self._optimizer.state_dict(),
            "tracked": self.states_of_things(),
        }

    def load(self, state: dict[str, Any], receive: Receive) -> None:
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
        if receive is not Receive.STEP:
            self.load_things(state["tracked"])

    def refer(self, value: Any, index: int) -> tuple[torch.Tensor, Reference] | None:
        if not isinstance(value, torch.Tensor):
            return None
        tensor = value.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() * tensor.element_size()
        return tensor, Reference(index, tuple(tensor.shape), dtype, size, tensor.device.type)

    def empty(self, reference: Reference) -> torch.Tensor:
        dtype, device = getattr(torch, reference.dtype), _own_device(reference.device)
        return torch.empty(reference.shape, dtype=dtype, device=device)

    def broadcast(
        self,
        sent: list[Reference],
        arrays: list[torch.Tensor] | None,
        root: int,
        keep: bool,
    ) -> dict[int, torch.Tensor]:
        return _broadcast(sent, arrays, root, keep)

    def copied(self, state: dict[str, Any]) -> Any:
        return self._copier.copy(state)

    def uncopied(self, state: Any) -> dict[str, Any]:
        loaded: dict[str, Any] = to_tensors(state)
        check_model(dict(self._model_tensors()), loaded["model"])
        return loaded

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers: all of the model, and what else the optimizer trains."""
        yield from self._model.named_parameters()
        yield from self._model.named_buffers()
        inside = set(self._model.parameters())
        for name, parameter in optimizer_parameters(self._optimizer, self._model):
            if parameter not in inside:
                yield name, parameter


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


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _own_device(kind: str) -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    )
