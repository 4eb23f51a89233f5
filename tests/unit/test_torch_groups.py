"""Parameter groups and frozen parameters that a script changes in its loop reach a newcomer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from edl.errors import CheckpointError, UsageError
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive


class Script:
    def __init__(self, seed: float = 1.0, kind: Callable[..., Optimizer] = AdamW) -> None:
        self.body, self.head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
        self.model = torch.nn.Sequential(self.body, self.head)
        for parameter in self.model.parameters():
            torch.nn.init.constant_(parameter, seed)
        self.optimizer = kind(self.head.parameters(), lr=0.5)
        self.replica = TorchReplica(self.model, self.optimizer)
        self.replica.begin()

    def unfreeze(self) -> None:
        self.optimizer.add_param_group({"params": self.body.parameters(), "lr": 0.25})

    def train(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        self.optimizer.step()

    def receive(self, sender: Script, receive: Receive = Receive.ALL) -> None:
        self.replica.load(sender.replica.state(), receive)

    def weights(self) -> list[list[float]]:
        return [each.flatten().tolist() for each in self.model.parameters()]


def test_a_group_that_was_added_comes_with_its_options_and_moments() -> None:
    job, newcomer = Script(), Script(2.0)
    job.train()
    job.unfreeze()
    job.train()
    newcomer.receive(job)
    assert [each["lr"] for each in newcomer.optimizer.param_groups] == [0.5, 0.25]
    assert newcomer.optimizer.param_groups[1]["params"] == [*newcomer.body.parameters()]
    assert newcomer.optimizer.state[newcomer.body.weight]["step"] == 1
    assert newcomer.optimizer.state[newcomer.head.weight]["step"] == 2
    for each in (job, newcomer):
        each.train()
    assert newcomer.weights() == job.weights()
    assert newcomer.replica.digests() == job.replica.digests()


def test_a_group_in_front_of_others_keeps_its_place() -> None:
    job, newcomer = Script(), Script(2.0)
    job.unfreeze()
    job.optimizer.param_groups.reverse()
    job.train()
    newcomer.receive(job)
    assert [each["lr"] for each in newcomer.optimizer.param_groups] == [0.25, 0.5]
    for each in (job, newcomer):
        each.train()
    assert newcomer.weights() == job.weights()


def test_the_scripts_own_call_adds_no_group_that_came() -> None:
    job, newcomer = Script(), Script()
    job.unfreeze()
    newcomer.receive(job)
    newcomer.unfreeze()  # its epoch begins after the others' call
    assert len(newcomer.optimizer.param_groups) == 2
    other = torch.nn.Parameter(torch.zeros(1))
    newcomer.optimizer.add_param_group({"params": other})
    assert newcomer.optimizer.param_groups[2]["params"] == [other]
    with pytest.raises(ValueError, match="more than one parameter group"):
        newcomer.unfreeze()


def test_groups_with_named_parameters() -> None:
    def kind(parameters: Any, lr: float) -> Optimizer:
        return SGD([("a", each) for each in parameters][:1], lr=lr)

    job, newcomer = Script(kind=kind), Script(kind=kind)
    job.optimizer.add_param_group({"params": [("body", job.body.weight)], "lr": 0.25})
    newcomer.receive(job)
    assert newcomer.optimizer.param_groups[1]["param_names"] == ["body"]
    assert newcomer.optimizer.param_groups[1]["params"] == [newcomer.body.weight]


def test_a_group_that_was_removed_and_one_of_the_warm_up_are_gone() -> None:
    job, newcomer = Script(), Script()
    newcomer.unfreeze()  # in its warm-up: at the end of epoch 0
    newcomer.receive(job)
    assert len(newcomer.optimizer.param_groups) == 1
    newcomer.unfreeze()
    job.unfreeze()
    job.train()  # PyTorch's own state_dict() fails for a group that is gone and had a state
    del job.optimizer.param_groups[0]
    late = Script()
    late.receive(job)
    assert [each["lr"] for each in late.optimizer.param_groups] == [0.25]


def test_a_worker_that_missed_a_step_keeps_its_own_groups() -> None:
    job, survivor = Script(), Script(2.0)
    job.train()
    job.unfreeze()
    job.optimizer.param_groups.reverse()
    survivor.receive(job, Receive.STEP)
    assert len(survivor.optimizer.param_groups) == 1
    assert survivor.optimizer.state[survivor.head.weight]["step"] == 1
    assert torch.equal(survivor.head.weight, job.head.weight)


def test_a_script_that_begins_with_other_groups_is_refused_by_name() -> None:
    job, other = Script(), Script()
    job.unfreeze()
    other.optimizer.add_param_group({"params": [other.body.weight]})
    resumed = TorchReplica(other.model, other.optimizer)  # its loop begins with both groups
    saved = job.replica.capture()
    with pytest.raises(CheckpointError, match=r"group 1 of this script's optimizer has 0\.weight"):
        resumed.restore(saved)


@pytest.mark.parametrize("groups_first", [False, True], ids=["as begun", "as saved"])
def test_a_checkpoint_brings_the_groups_back(groups_first: bool) -> None:
    job, resumed = Script(), Script(2.0)
    job.unfreeze()
    job.train()
    if groups_first:  # the script sees that it is resumed
        resumed.unfreeze()
        resumed.replica = TorchReplica(resumed.model, resumed.optimizer)
    resumed.replica.restore(job.replica.capture())
    assert [each["lr"] for each in resumed.optimizer.param_groups] == [0.5, 0.25]
    assert resumed.optimizer.state[resumed.body.weight]["step"] == 1


def test_a_checkpoint_from_before_still_loads() -> None:
    job, resumed = Script(), Script(2.0)
    job.train()
    saved = job.replica.capture()
    for each in saved["optimizers"]:
        del each["edl: groups"]
    del saved["requires_grad"]
    resumed.replica.restore(saved)
    assert resumed.weights() == job.weights()


def test_a_parameter_that_the_newcomer_has_not_is_named() -> None:
    job, newcomer = Script(), Script()
    job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(UsageError, match=r"parameter\.2"):
        newcomer.receive(job)


def test_flags_that_the_loop_has_changed_come_and_others_stay() -> None:
    job, newcomer = Script(), Script()
    frozen = Script()
    for script in (job, newcomer):
        script.body.weight.requires_grad_(False)
        script.replica = TorchReplica(script.model, script.optimizer)
        script.replica.begin()
    job.body.weight.requires_grad_(True)
    job.head.bias.requires_grad_(False)
    newcomer.body.bias.requires_grad_(False)  # by its warm-up
    newcomer.receive(job)
    flags = [each.requires_grad for each in job.model.parameters()]
    assert [each.requires_grad for each in newcomer.model.parameters()] == flags
    # A script that was edited to freeze something is resumed: that is its own decision.
    frozen.body.bias.requires_grad_(False)
    frozen.replica = TorchReplica(frozen.model, frozen.optimizer)
    frozen.replica.restore(job.replica.capture())
    flags = [each.requires_grad for each in frozen.model.parameters()]
    assert flags == [True, False, True, False]


def test_a_worker_that_missed_a_step_keeps_its_flags() -> None:
    job, survivor = Script(), Script()
    job.body.weight.requires_grad_(False)
    survivor.receive(job, Receive.STEP)
    assert survivor.body.weight.requires_grad


def test_a_schedule_with_a_lambda_for_each_group_goes_on() -> None:
    def script() -> tuple[TorchReplica, LambdaLR, Optimizer, torch.nn.Module]:
        net = torch.nn.Linear(2, 1)
        groups = [{"params": [net.weight]}, {"params": [net.bias], "lr": 0.25}]
        optimizer = SGD(groups, lr=0.5)
        scheduler = LambdaLR(optimizer, [lambda step: 0.5**step, lambda _: 1.0])
        return TorchReplica(net, optimizer), scheduler, optimizer, net

    one, scheduler, optimizer, _ = script()
    other, mine, theirs, _ = script()
    optimizer.step()
    scheduler.step()
    other.load(one.state(), Receive.ALL)
    theirs.step()
    mine.step()
    assert [each["lr"] for each in theirs.param_groups] == [0.125, 0.25]
