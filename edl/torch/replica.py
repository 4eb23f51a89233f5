"""Send, load, save and compare a PyTorch script's state, which all workers of a job share.

:class:`TorchReplica` does it. :mod:`edl.framework.replica` has what is the same in every framework.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LRScheduler

from edl.core.plural import counted
from edl.core.step.state_check import STEP_VALUE
from edl.errors import UsageError
from edl.framework.digest import ByteRange
from edl.framework.replica import Array, FrameworkReplica
from edl.framework.state import Trackable, describe, map_leaves, references
from edl.torch.buffers import fitting, non_persistent, overwrite, without
from edl.torch.capture import Copier, check_model, to_tensors
from edl.torch.computed_options import ComputedOptions
from edl.torch.digest import digests, size_of
from edl.torch.groups import Flags, Names, ParameterGroups, optimizer_parameters
from edl.torch.last_step import LastStep
from edl.torch.names import (
    can_save,
    extra_states,
    load_extra_states,
    plain_name,
    state_dict_names,
    with_plain_names,
)
from edl.torch.optimizer_state import (
    copied_for_step,
    keeps_tensors,
    load_state,
    named_state,
    same_kind,
    state_of,
    with_own_options,
)
from edl.torch.scalers import Scalers
from edl.torch.schedulers import Schedulers, load_scheduler, savable, step_values
from edl.torch.transfer import TorchArrays
from edl.worker.progress import Receive

logger = logging.getLogger(__name__)

GROUPS = "edl: groups"  # a key in the state of an optimizer; missing in old checkpoints
COMPUTED = "computed"  # a key in the state of its groups
AVERAGES = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm, InstanceNorm
NAMED = ("model", "requires_grad", "extra")  # the keys of a state under which names stand


@dataclass(frozen=True)
class _Trained:
    """One optimizer that the script has made for this job, with the model that it trains."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer  # as the script made it
    last_step: LastStep
    groups: ParameterGroups = field(init=False)
    computed: ComputedOptions = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", ParameterGroups(self.optimizer, self.model))
        object.__setattr__(self, "computed", ComputedOptions(self.optimizer))

    def state_of_groups(self) -> dict[str, Any]:
        """Return the state of `groups`, with the names of the computed options."""
        return {**self.groups.state(), COMPUTED: sorted(self.computed.names)}


class TorchReplica(FrameworkReplica):
    """This worker's copy of the state that all workers of the job share."""

    framework = "torch"
    misfits = (*FrameworkReplica.misfits, RuntimeError)

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        last_step: LastStep | None = None,
        averages_buffers: bool = False,  # a step of logical workers sets buffers to their means
    ) -> None:
        super().__init__(type(optimizer).__name__)
        self._averages_buffers = averages_buffers
        self.arrays: TorchArrays = TorchArrays()
        self._scalers = Scalers()
        self._schedulers = Schedulers()
        self._schedulers.add(optimizer)
        self._trained = [_Trained(model, optimizer, last_step or LastStep())]
        self._copier = Copier()
        self._flags = Flags()
        self._unsaved: set[str] = set()  # modules with an extra state that was warned of

    def add(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, last_step: LastStep
    ) -> None:
        """Add an optimizer and the model that it trains to the state, after those added before."""
        self._schedulers.add(optimizer)
        self._trained.append(_Trained(model, optimizer, last_step))
        self.rename([type(each.optimizer).__name__ for each in self._trained])

    def model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        """Return the model that `optimizer` trains; None if the state lacks the optimizer."""
        return next((one.model for one in self._trained if one.optimizer is optimizer), None)

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        """Check that all `objects`, which are given by their names, can be tracked."""
        for name, thing in objects.items():
            if not isinstance(thing, Trackable):
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has no state_dict() and "
                    "load_state_dict()"
                )

    def objects_from_gradients(self) -> dict[str, Trackable]:
        """Return, by name, the tracked objects whose state a script may compute from gradients."""
        # A scaler learns of a missed step by its gradients, and to read it waits for the device.
        things = self.compared_things().items()
        return {n: thing for n, thing in things if not isinstance(thing, torch.amp.GradScaler)}

    def see_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Add the state of `scaler`, which the script is about to use, to the shared state."""
        if not any(thing is scaler for thing in self.things().values()):
            self._scalers.see(scaler)

    def begin(self) -> None:
        """Record the parameter groups and `requires_grad` flags at the start of the epoch loop."""
        self._flags.begin(self._parameters())
        for each in self._trained:
            each.groups.begin()

    def state(self) -> dict[str, Any]:
        """Return the shared state, without copies of the tensors."""
        return {
            "model": {name: tensor.detach() for name, tensor in self._model_tensors().items()},
            "non_persistent": sorted(self._non_persistent()),
            "optimizers": [
                {**state_of(each.optimizer), GROUPS: each.state_of_groups()}
                for each in self._trained
            ],
            "requires_grad": self._flags.changed(self._parameters()),
            "extra": [extra_states(model) for model in self._models()],
            "scalers": self._scalers.states(),
            "schedulers": self._schedulers.states(self.things().values()),
            "skipped": [bool(each.last_step.skipped) for each in self._trained],
            "tracked": self.states_of_things(),
        }

    def expect_state(self) -> None:
        """Allocate the memory into which this newcomer will receive the job's state."""
        self.arrays.reserve(references(describe(self.state(), [], self.arrays.refer)))

    def compared(self) -> dict[str, Any]:
        """Return the subset of the state that must be equal on all workers, in nested dicts."""
        prefixes = self._prefixes()
        models = dict(zip(prefixes, self._models(), strict=True))
        compared = {
            f"{prefix}{plain_name(name)}": parameter
            for prefix, model in models.items()
            for name, parameter in model.named_parameters()
        }
        optimizers = {}
        for number, each in enumerate(self._trained):
            trained = dict(optimizer_parameters(each.optimizer, each.model))
            compared |= self._outside(each, trained.items())
            optimizers[str(number)] = named_state(state_of(each.optimizer), list(trained))
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

    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        """Return the parameters in `state`, and all that is in the states of optimizers."""
        equal = [state["model"][name] for name in self._parameters()]
        map_leaves(state["optimizers"], lambda value, _: equal.append(value))
        return equal

    def signature(self) -> dict[str, str]:
        """Return the shape of each parameter and buffer as a text, by the tensor's name."""
        # A forward pass may make or enlarge buffers that are not persistent.
        tensors = without(self._model_tensors(), self._non_persistent())
        return {name: str(tuple(one.shape)) for name, one in tensors.items()}

    size_of = staticmethod(size_of)

    def buffers(self) -> dict[str, Any]:
        """Return the modules' buffers by name, without those of batch normalisation."""
        return {
            f"{prefix}{path}{'.' * bool(path)}{name}": buffer
            for prefix, model in zip(self._prefixes(), self._models(), strict=True)
            for path, module in model.named_modules()
            if not isinstance(module, _NormBase)
            for name, buffer in module.named_buffers(recurse=False)
        }

    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """Return a digest of each byte range in `parts`, to compare the workers' states."""
        return digests(parts)

    def _averages(self) -> list[torch.Tensor]:
        tracked = (thing for thing in self.things().values() if isinstance(thing, torch.nn.Module))
        named = [each for one in (*self._models(), *tracked) for each in one.named_buffers()]
        found = dict.fromkeys(t for name, t in named if name.rpartition(".")[2] in AVERAGES)
        return list(found)

    def averages(self) -> list[Array]:
        """Return BatchNorm's averages and counts of batches, in models and tracked modules."""
        return [each.detach().cpu().double().numpy() for each in self._averages()]

    def set_averages(self, means: Sequence[Array]) -> None:
        """Write `means` into what `averages` has read, in the same order."""
        with torch.no_grad():
            for tensor, mean in zip(self._averages(), map(torch.from_numpy, means), strict=True):
                overwrite(tensor, mean if tensor.is_floating_point() else mean.round())

    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates of all parameter groups, for comparing workers."""
        return rates_of([each.optimizer for each in self._trained])

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Load what `receive` says of `state`, which is changed; its tensors may be shared."""
        mine, optional = self._model_tensors(), self._optional(state)
        if odd := sorted((mine.keys() ^ state["model"].keys()) - optional):
            raise UsageError(f"this worker's model differs from the job's in {', '.join(odd)}")
        if len(self._trained) != len(state["optimizers"]):
            raise UsageError(
                f"this worker has {counted(len(self._trained), 'edl.Optimizer')}, and the job "
                f"{len(state['optimizers'])}"
            )
        fits = fitting(mine, state["model"], optional)
        exact = all(same_kind(mine[name], state["model"][name]) for name in fits)
        taken = self._set_by_a_step(mine, fits) if receive is Receive.STEP else fits
        with torch.no_grad():
            for name in taken:
                overwrite(mine[name], state["model"][name])
        came = {name: state["model"][name] for name in taken}
        for each, theirs, skipped in zip(
            self._trained, state["optimizers"], state["skipped"], strict=True
        ):
            each.last_step.skipped = skipped
            if receive is Receive.STEP:
                state_again = self._load_step(each, theirs, exact)
                weights = {} if keeps_tensors(each.optimizer) else came
                each.last_step.missed = partial(self._put_back, weights, state_again)
            else:
                self._load_optimizer(each, theirs, exact)
        if receive is Receive.ALL:
            self._flags.follow(self._parameters(), state.get("requires_grad", {}))
            for model, extra in zip(self._models(), state.get("extra", ()), strict=False):
                load_extra_states(model, extra)
        if receive is not Receive.STEP:
            self._scalers.load(state["scalers"])
            self.load_things(state["tracked"], receive)
            if odd := self._schedulers.load(state["schedulers"], self.things().values()):
                logger.warning(
                    "the job has the state of a %s, and this script has made no such LR scheduler "
                    "for an edl.Optimizer yet: make it before the loop, else it begins anew",
                    " and a ".join(odd),
                )

    def load_thing(self, thing: Trackable, state: Any) -> None:
        if isinstance(thing, LRScheduler):
            load_scheduler(thing, state)
        else:
            super().load_thing(thing, state)

    def _put_back(
        self, weights: Mapping[str, torch.Tensor], state_again: Callable[[], None]
    ) -> None:
        """Write weights and state once more: some optimizers change them without gradients."""
        mine = self._model_tensors()
        with torch.no_grad():
            for name, tensor in weights.items():
                mine[name].copy_(tensor)
        state_again()

    @staticmethod
    def _load_step(each: _Trained, theirs: dict[str, Any], exact: bool) -> Callable[[], None]:
        """Load the result of a step that was missed; return what writes the same once more."""
        groups, own = theirs.pop(GROUPS), each.optimizer
        if groups["now"] != each.groups.names:
            theirs["state"] = _renumbered(theirs["state"], groups["now"], each.groups.names)
        computed = groups[COMPUTED]
        # Its own options stay: its script and schedulers have yet to make the sender's changes.
        kept = copied_for_step(own, theirs)
        load_state(own, with_own_options(own, theirs, computed), exact)
        return lambda: load_state(own, with_own_options(own, kept, computed), exact)

    @staticmethod
    def _load_optimizer(each: _Trained, theirs: dict[str, Any], exact: bool) -> None:
        """Load an optimizer's whole state from another worker, with its groups and options."""
        groups = theirs.pop(GROUPS, None)
        if groups is not None:
            options = [
                {name: value for name, value in group.items() if name != "params"}
                for group in theirs["param_groups"]
            ]
            each.groups.follow(groups, options)
        load_state(each.optimizer, theirs, exact)

    def durable(self) -> dict[str, Any]:
        """Return what a checkpoint stores, without copies of the tensors."""
        names: dict[str, str] = {}
        besides: dict[str, Any] = {}
        for prefix, model in zip(self._prefixes(), self._models(), strict=True):
            found, rest = state_dict_names(model)
            names |= {f"{prefix}{name}": f"{prefix}{tensor}" for name, tensor in found.items()}
            besides |= {f"{prefix}{name}": value for name, value in rest.items()}
        state = super().durable()
        state["extra"] = [self._saved_extra(states) for states in state["extra"]]
        state["schedulers"] = savable(state["schedulers"])
        return {**state, "state_dict": {"names": names, "besides": besides}}

    def _saved_extra(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Return those extra states that a checkpoint can hold; warn once of each other one."""
        saved = {name: state for name, state in states.items() if can_save(state)}
        if unsaved := states.keys() - saved.keys() - self._unsaved:
            self._unsaved |= unsaved
            logger.warning(
                "checkpoints leave out the extra state of %s, which a file cannot hold: newcomers "
                "get it, but not a job that continues from a checkpoint",
                ", ".join(sorted(name or "the model" for name in unsaved)),
            )
        return saved

    def copied(self, state: dict[str, Any]) -> Any:
        """Return `state` with tensors copied into host memory, which the next call overwrites."""
        return self._copier.copy(state)

    def uncopied(self, state: Any) -> dict[str, Any]:
        """Return `state`, from a checkpoint, with its arrays as tensors again."""
        loaded: dict[str, Any] = to_tensors(state, copy=True)  # `copied` overwrites that memory
        named = [name for name in NAMED if name in loaded]
        loaded |= {name: with_plain_names(loaded[name]) for name in named}
        for each in loaded["optimizers"]:
            if GROUPS in each:
                each[GROUPS] = with_plain_names(each[GROUPS])
        optional = self._optional(loaded)
        check_model(without(self._model_tensors(), optional), without(loaded["model"], optional))
        return loaded

    def _model_tensors(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers of all models, by name."""
        tensors: dict[str, torch.Tensor] = {}
        for prefix, model in zip(self._prefixes(), self._models(), strict=True):
            named = (*model.named_parameters(), *model.named_buffers())
            tensors |= {f"{prefix}{plain_name(name)}": tensor for name, tensor in named}
        for each in self._trained:
            tensors |= self._outside(each, optimizer_parameters(each.optimizer, each.model))
        return tensors

    def _non_persistent(self) -> set[str]:
        models = zip(self._prefixes(), self._models(), strict=True)
        return {f"{prefix}{name}" for prefix, model in models for name in non_persistent(model)}

    def _optional(self, state: Mapping[str, Any]) -> set[str]:
        return self._non_persistent() | set(state.get("non_persistent", ()))

    def _parameters(self) -> dict[str, torch.Tensor]:
        tensors = self._model_tensors().items()
        return {n: tensor for n, tensor in tensors if isinstance(tensor, torch.nn.Parameter)}

    def _set_by_a_step(
        self, tensors: Mapping[str, torch.Tensor], names: Iterable[str]
    ) -> list[str]:
        # The script changes all others: an average of the weights, a target network, a buffer.
        found: set[torch.Tensor] = set()
        for each in self._trained:
            found |= {one for _, one in optimizer_parameters(each.optimizer, each.model)}
            if self._averages_buffers:
                found |= {*each.model.buffers()}
        return [name for name in names if tensors[name] in found]

    def _outside(
        self, each: _Trained, trained: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> dict[str, torch.nn.Parameter]:
        """Return the parameters of one optimizer that belong to no model of the state, by name."""
        inside = {parameter for model in self._models() for parameter in model.parameters()}
        prefix = self._prefixes()[self._models().index(each.model)]
        return {f"{prefix}{name}": each for name, each in trained if each not in inside}

    def _models(self) -> list[torch.nn.Module]:
        return list(dict.fromkeys(each.model for each in self._trained))

    def _prefixes(self) -> list[str]:
        models = self._models()
        return [f"{number}." for number in range(len(models))] if len(models) > 1 else [""]


def _renumbered(state: dict[Any, Any], theirs: Names, mine: Names) -> dict[Any, Any]:
    """Return an optimizer's state with its parameters numbered as they are on this worker."""
    names = [name for group in theirs for name in group]
    numbers = {name: number for number, name in enumerate(n for group in mine for n in group)}
    return {
        numbers[names[key]] if isinstance(key, int) else key: value
        for key, value in state.items()
        if not isinstance(key, int) or names[key] in numbers
    }


def rates_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
    """Return the present learning rates of `optimizers`, by texts for error messages."""
    rates, values = {}, {}
    for number, optimizer in enumerate(optimizers):
        of = f" of optimizer {number}" if len(optimizers) > 1 else ""
        groups = optimizer.param_groups
        for index, group in enumerate(groups):
            where = f" of parameter group {index}" if len(groups) > 1 else ""
            if "lr" in group:
                rates[f"learning rate{where}{of}"] = float(group["lr"])
        for index, value in enumerate(step_values(optimizer)):
            values[f"{STEP_VALUE}{f' of scheduler {index}' if index else ''}{of}"] = value
    return rates | values
