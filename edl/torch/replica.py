"""The state that all workers share, as PyTorch has it; see :mod:`edl.framework.replica`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from edl.daemon.progress import Receive
from edl.errors import UsageError
from edl.framework.replica import FrameworkReplica, Stateful
from edl.torch.capture import Copier, check_model, to_tensors
from edl.torch.digest import digests
from edl.torch.reduction import LastStep, optimizer_parameters
from edl.torch.scalers import Scalers
from edl.torch.transfer import TorchArrays


class TorchReplica(FrameworkReplica):
    """Model, optimizer, gradient scalers and tracked objects of this process."""

    framework = "torch"
    arrays = TorchArrays()
    misfits = (*FrameworkReplica.misfits, RuntimeError)

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        last_step: LastStep | None = None,
    ) -> None:
        super().__init__(type(optimizer).__name__)
        self._last_step = last_step or LastStep()
        self._scalers = Scalers()
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

    def see_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """The script is about to use ``scaler``, which follows the job by itself from now on."""
        if not any(thing is scaler for thing in self.things().values()):
            self._scalers.see(scaler)

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: tensor.detach() for name, tensor in self._model_tensors()},
            "optimizer": self._optimizer.state_dict(),
            "scalers": self._scalers.states(),
            "skipped": bool(self._last_step.skipped),
            "tracked": self.states_of_things(),
        }

    def compared(self) -> dict[str, Any]:
        trained = dict(optimizer_parameters(self._optimizer, self._model))
        inside = set(self._model.parameters())
        optimizer = self._optimizer.state_dict()
        names = list(trained)
        return {
            "model": {
                **dict(self._model.named_parameters()),
                **{name: each for name, each in trained.items() if each not in inside},
            },
            "optimizer": {
                **{names[index]: state for index, state in optimizer["state"].items()},
                "param_groups": optimizer["param_groups"],
            },
            "tracked": {
                name: dict(thing.named_parameters())
                if isinstance(thing, torch.nn.Module)
                else thing.state_dict()
                for name, thing in self.compared_things().items()
            },
            "scalers": self._scalers.states(),
        }

    def digested(self, parts: Iterable[tuple[str, Any]]) -> dict[str, int]:
        return digests(parts)

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
        self._last_step.skipped = state["skipped"]
        if receive is not Receive.STEP:
            self._scalers.load(state["scalers"])
            self.load_things(state["tracked"])

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
