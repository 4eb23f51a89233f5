"""The state that all workers share: model, optimizer and tracked objects, sent to newcomers.

How it travels: :mod:`edl.torch.transfer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from edl.daemon.position import Receive
from edl.errors import CheckpointError, UsageError
from edl.framework.process import Stateful
from edl.ring.ring import Ring
from edl.torch.capture import Copier, check_model, to_tensors
from edl.torch.reduction import optimizer_parameters
from edl.torch.transfer import exchange


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
        keep = receive is not Receive.NOTHING and not sending
        state = exchange(ring, root, self._state() if sending else None, keep)
        if keep:
            self._load(state, receive)

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
