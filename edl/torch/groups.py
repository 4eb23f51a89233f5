"""Share an optimizer's parameter groups and ``requires_grad`` flags with the job's state.

:class:`ParameterGroups` shares the groups, :class:`Flags` the flags. A script may add a group in
epoch 2, remove one, or freeze parameters. A newcomer that begins in epoch 5, and a job that is
resumed there, have not run that code: they receive the groups and the flags with the job's state.
The groups that a newcomer's script has *before its loop* must be those that the job began with, or
be a subset of those that the job has now. Otherwise it is another script, and edl raises
UsageError.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from edl.errors import UsageError, some
from edl.torch.names import plain_name

logger = logging.getLogger(__name__)

Names = list[list[str]]  # of the parameters of each group


def optimizer_parameters(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the name and the object of each parameter of `optimizer`, group by group."""
    names = {parameter: plain_name(name) for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        yield names.get(parameter, f"parameter.{index}"), parameter


class ParameterGroups:
    """The parameter groups of one optimizer; `follow` makes them equal to the job's."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._at_start: Names | None = None
        self._received: list[set[torch.Tensor]] = []  # groups that the script has yet to add itself

    @property
    def names(self) -> Names:
        """The names of the parameters in each present group of the optimizer."""
        named = optimizer_parameters(self._optimizer, self._model)
        return [[next(named)[0] for _ in each["params"]] for each in self._optimizer.param_groups]

    def begin(self) -> None:
        """Record the parameter groups at the start of the epoch loop; further calls do nothing."""
        if self._at_start is None:
            self._at_start = self.names

    def state(self) -> dict[str, Names]:
        """Return the parameter names of each group, at present and when the epoch loop began."""
        self.begin()
        assert self._at_start is not None
        return {"now": self.names, "at_start": self._at_start}

    def follow(self, theirs: Mapping[str, Names], options: Sequence[Mapping[str, Any]]) -> None:
        """Make the groups of the optimizer those of the job, in the job's order."""
        self.begin()
        assert self._at_start is not None
        wanted, mine = theirs["now"], self.names
        if mine == wanted:
            return
        is_same_script = self._at_start == theirs["at_start"]
        if not is_same_script and any(each not in wanted for each in mine):
            raise UsageError(_other_groups(mine, wanted))
        known = {plain_name(name): one for name, one in self._model.named_parameters()}
        known |= optimizer_parameters(self._optimizer, self._model)
        if unknown := [name for group in wanted for name in group if name not in known]:
            raise UsageError(
                f"the job's optimizer trains {some(unknown)} by now, and this worker's model has "
                "no such parameters; build all modules before `for epoch in loader.epochs(n)`, "
                "those that are trained later, too, and add their parameter group in the loop"
            )
        self._rebuild([[known[name] for name in group] for group in wanted], options)

    def _rebuild(
        self, wanted: list[list[torch.nn.Parameter]], options: Sequence[Mapping[str, Any]]
    ) -> None:
        optimizer = self._optimizer
        own, groups = [*optimizer.param_groups], []
        for parameters, theirs in zip(wanted, options, strict=True):
            kept = next((one for one in own if _same(one["params"], parameters)), None)
            if kept is not None:
                groups.append(kept)
                continue
            optimizer.param_groups.clear()  # else PyTorch looks for the parameters in all of them
            group = {**theirs, "params": parameters}
            if names := group.pop("param_names", None):
                group["params"] = list(zip(names, parameters, strict=True))
            type(optimizer).add_param_group(optimizer, group)
            groups += optimizer.param_groups
            self._receive(set(parameters))
        optimizer.param_groups[:] = groups  # in place: other objects may hold the list
        logger.info("the optimizer has the job's %d parameter groups now", len(groups))

    def _receive(self, parameters: set[torch.Tensor]) -> None:
        """Record a group that came with the job's state, by the set of its parameters."""
        if not self._received:
            vars(self._optimizer)["add_param_group"] = self._add
        self._received.append(parameters)

    def _add(self, group: dict[str, Any]) -> None:
        """Add the parameter group `group`, unless it came with the job's state already."""
        given = group["params"]
        given = [given] if isinstance(given, torch.Tensor) else [*given]
        tensors = {one[1] if isinstance(one, tuple) else one for one in given}
        if tensors not in self._received:
            type(self._optimizer).add_param_group(self._optimizer, {**group, "params": given})
            return
        self._received.remove(tensors)
        logger.debug("this parameter group came with the job's state; it is not added again")
        if not self._received:
            del vars(self._optimizer)["add_param_group"]


class Flags:
    """A record of the `requires_grad` flags with which the script's epoch loop began."""

    def __init__(self) -> None:
        self._at_start: dict[str, bool] = {}

    def begin(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Record the `requires_grad` flags with which the script's epoch loop begins."""
        for name, parameter in parameters.items():
            self._at_start.setdefault(name, parameter.requires_grad)

    def changed(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, bool]:
        """Return the present `requires_grad` flags that the loop has changed, by parameter name."""
        self.begin(parameters)
        return {
            name: parameter.requires_grad
            for name, parameter in parameters.items()
            if parameter.requires_grad is not self._at_start[name]
        }

    def follow(self, parameters: Mapping[str, torch.Tensor], changed: Mapping[str, bool]) -> None:
        """Set the `requires_grad` flags of `parameters` to those of the job."""
        self.begin(parameters)
        for name, parameter in parameters.items():
            wanted = changed.get(name, self._at_start[name])
            if parameter.requires_grad is not wanted:
                parameter.requires_grad_(wanted)


def _same(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    return [*map(id, one)] == [*map(id, other)]


def _other_groups(mine: Names, wanted: Names) -> str:
    number, odd = next((n, each) for n, each in enumerate(mine) if each not in wanted)
    return (
        f"parameter group {number} of this script's optimizer has {some(odd)}, and the job has no "
        f"such group: its {len(wanted)} have {'; '.join(some(each) for each in wanted)}; make the "
        "groups as the job's script does, or start a new job"
    )
