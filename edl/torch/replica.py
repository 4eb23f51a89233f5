"""The state that all workers share, as PyTorch has it; see :mod:`edl.framework.replica`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from edl.core.plural import counted
from edl.daemon.progress import Receive
from edl.errors import UsageError
from edl.framework.digest import Part
from edl.framework.replica import FrameworkReplica
from edl.framework.state import Stateful
from edl.torch.capture import Copier, check_model, to_tensors
from edl.torch.digest import digests, size_of
from edl.torch.reduction import LastStep, optimizer_parameters
from edl.torch.scalers import Scalers
from edl.torch.schedulers import Schedulers
from edl.torch.transfer import TorchArrays

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Trained:
    """One of the script's optimizers, and the model that it trains."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    last_step: LastStep


class TorchReplica(FrameworkReplica):
    """Models, optimizers, LR schedulers, gradient scalers and tracked objects of this process.

    With several models, the names of the tensors of each begin with its number: `0.`, `1.`.
    """

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
        self._scalers = Scalers()
        self._schedulers = Schedulers()
        self._schedulers.add(optimizer)
        self._trained = [_Trained(model, optimizer, last_step or LastStep())]
        self._copier = Copier()

    def add(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, last_step: LastStep
    ) -> None:
        """One more; several may train parts of one model."""
        self._schedulers.add(optimizer)
        self._trained.append(_Trained(model, optimizer, last_step))
        self.rename([type(each.optimizer).__name__ for each in self._trained])

    def model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        """What ``optimizer`` trains."""
        return next((one.model for one in self._trained if one.optimizer is optimizer), None)

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        for name, thing in objects.items():
            if not isinstance(thing, Stateful):
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has no state_dict() and "
                    "load_state_dict()"
                )

    def things_between(self) -> dict[str, Stateful]:
        """A scaler learns of a missed step by its gradients; its state waits for the device."""
        things = self.compared_things().items()
        return {n: thing for n, thing in things if not isinstance(thing, torch.amp.GradScaler)}

    def see_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """The script is about to use ``scaler``, which follows the job by itself from now on."""
        if not any(thing is scaler for thing in self.things().values()):
            self._scalers.see(scaler)

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: tensor.detach() for name, tensor in self._model_tensors().items()},
            "optimizers": [each.optimizer.state_dict() for each in self._trained],
            "scalers": self._scalers.states(),
            "schedulers": self._schedulers.states(self.things().values()),
            "skipped": [bool(each.last_step.skipped) for each in self._trained],
            "tracked": self.states_of_things(),
        }

    def compared(self) -> dict[str, Any]:
        prefixes = self._prefixes()
        models = dict(zip(prefixes, self._models(), strict=True))
        compared = {
            f"{prefix}{name}": parameter
            for prefix, model in models.items()
            for name, parameter in model.named_parameters()
        }
        optimizers = {}
        for number, each in enumerate(self._trained):
            trained = dict(optimizer_parameters(each.optimizer, each.model))
            compared |= self._outside(each, trained.items())
            names, state = list(trained), each.optimizer.state_dict()
            optimizers[str(number)] = {
                **{names[index]: values for index, values in state["state"].items()},
                "param_groups": state["param_groups"],
            }
        return {
            "model": compared,
            "optimizer": optimizers if len(optimizers) > 1 else optimizers["0"],
            "tracked": {
                name: dict(thing.named_parameters())
                if isinstance(thing, torch.nn.Module)
                else thing.state_dict()
                for name, thing in self.compared_things().items()
            },
            "scalers": self._scalers.states(),
        }

    size_of = staticmethod(size_of)

    def digested(self, parts: Iterable[Part]) -> dict[str, int]:
        return digests(parts)

    def learning_rates(self) -> dict[str, float]:
        rates = {}
        for number, each in enumerate(self._trained):
            of = f" of optimizer {number}" if len(self._trained) > 1 else ""
            groups = each.optimizer.param_groups
            for index, group in enumerate(groups):
                where = f" of parameter group {index}" if len(groups) > 1 else ""
                if "lr" in group:
                    rates[f"learning rate{where}{of}"] = float(group["lr"])
        return rates

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        mine = self._model_tensors()
        if mine.keys() != state["model"].keys():
            odd = sorted(mine.keys() ^ state["model"].keys())
            raise UsageError(f"this worker's model differs from the job's in {', '.join(odd)}")
        if len(self._trained) != len(state["optimizers"]):
            raise UsageError(
                f"this worker has {counted(len(self._trained), 'edl.Optimizer')}, and the job "
                f"{len(state['optimizers'])}"
            )
        taken = self._trained_names(mine) if receive is Receive.STEP else mine.keys()
        with torch.no_grad():
            for name in taken:
                mine[name].copy_(state["model"][name])
        for each, theirs, skipped in zip(
            self._trained, state["optimizers"], state["skipped"], strict=True
        ):
            if receive is Receive.STEP:
                # The learning rate and its like belong to the script's place in its loop, and this
                # script's schedulers have yet to do what the sender's have done.
                theirs["param_groups"] = each.optimizer.state_dict()["param_groups"]
            each.optimizer.load_state_dict(theirs)
            each.last_step.skipped = skipped
        if receive is not Receive.STEP:
            self._scalers.load(state["scalers"])
            self.load_things(state["tracked"], receive)
            if odd := self._schedulers.load(state["schedulers"], self.things().values()):
                logger.warning(
                    "the job has the state of a %s, and this script has made no such LR scheduler "
                    "for an edl.Optimizer yet: make it before the loop, else it begins anew",
                    " and a ".join(odd),
                )

    def copied(self, state: dict[str, Any]) -> Any:
        return self._copier.copy(state)

    def uncopied(self, state: Any) -> dict[str, Any]:
        loaded: dict[str, Any] = to_tensors(state)
        check_model(self._model_tensors(), loaded["model"])
        return loaded

    def _model_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers: all of the models, and what else the optimizers train."""
        tensors: dict[str, torch.Tensor] = {}
        for prefix, model in zip(self._prefixes(), self._models(), strict=True):
            named = (*model.named_parameters(), *model.named_buffers())
            tensors |= {f"{prefix}{name}": tensor for name, tensor in named}
        for each in self._trained:
            tensors |= self._outside(each, optimizer_parameters(each.optimizer, each.model))
        return tensors

    def _trained_names(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """What of them the optimizers change. The rest is the script's, in its forward pass or
        between two steps: an average of the weights, a target network, a buffer."""
        trained = {
            parameter
            for each in self._trained
            for _, parameter in optimizer_parameters(each.optimizer, each.model)
        }
        return [name for name, tensor in tensors.items() if tensor in trained]

    def _outside(
        self, each: _Trained, trained: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> dict[str, torch.nn.Parameter]:
        """What of an optimizer's parameters is in no model."""
        inside = {parameter for model in self._models() for parameter in model.parameters()}
        prefix = self._prefixes()[self._models().index(each.model)]
        return {f"{prefix}{name}": each for name, each in trained if each not in inside}

    def _models(self) -> list[torch.nn.Module]:
        """Each once, whatever number of optimizers it has."""
        return list(dict.fromkeys(each.model for each in self._trained))

    def _prefixes(self) -> list[str]:
        models = self._models()
        return [f"{number}." for number in range(len(models))] if len(models) > 1 else [""]
