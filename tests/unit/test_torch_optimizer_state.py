"""A loaded state of an optimizer is the sent one, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import optim

from edl.torch.optimizer_state import load_state, state_of
from edl.torch.replica import Copier, TorchReplica, to_tensors
from edl.worker.progress import Receive

KINDS: dict[str, Any] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "Adagrad": optim.Adagrad,
    "Adamax": optim.Adamax,
    "AdamW": lambda parameters: optim.AdamW(parameters, amsgrad=True),
    "ASGD": optim.ASGD,
    "LBFGS": optim.LBFGS,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": lambda parameters: optim.RMSprop(parameters, centered=True),
    "Rprop": optim.Rprop,
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def replica(kind: str, dtype: torch.dtype, steps: int) -> tuple[TorchReplica, optim.Optimizer]:
    net = torch.nn.Linear(3, 2).to(dtype)
    optimizer = KINDS[kind](net.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(4, 3, dtype=dtype)).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return TorchReplica(net, optimizer), optimizer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_is_the_sent_one(kind: str, dtype: torch.dtype) -> None:
    theirs, _ = replica(kind, dtype, steps=3)
    mine, optimizer = replica(kind, dtype, steps=0)
    mine.load(copy.deepcopy(theirs.state()), Receive.ALL)
    assert mine.digests() == theirs.digests()
    assert optimizer.state, "there is something to compare"


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_model_of_another_dtype_trains(kind: str) -> None:
    theirs, _ = replica(kind, torch.float32, steps=3)
    mine, optimizer = replica(kind, torch.bfloat16, steps=0)
    mine.load(copy.deepcopy(theirs.state()), Receive.ALL)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(lambda: torch.tensor(1.0))


def test_a_number_that_was_on_the_cpu_stays_there() -> None:
    """The digests of a worker whose optimizer has made it on the device would differ."""
    weight = torch.nn.Parameter(torch.empty(2, device="meta"))
    optimizer = optim.NAdam([weight])
    sent = {"step": torch.tensor(3.0), "mu_product": torch.tensor(0.75)}
    sent["exp_avg"] = torch.empty(2, device="meta")
    load_state(optimizer, {**state_of(optimizer), "state": {0: sent}})
    mine = optimizer.state[weight]
    assert mine["exp_avg"].device.type == "meta"
    assert mine["mu_product"].device.type == "cpu"
    assert mine["mu_product"].item() == 0.75


class Halving(optim.Optimizer):
    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loaded_state_lies_in_memory_as_its_parameter(wrapped: bool) -> None:
    nets = [torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    inner = [optim.AdamW(net.parameters(), lr=0.1, fused=True) for net in nets]
    optimizers = [Halving(each) for each in inner] if wrapped else inner
    images = torch.randn(5, 3, 8, 8).to(memory_format=torch.channels_last)
    nets[0](images).square().mean().backward()
    inner[0].step()
    nets[1].load_state_dict(nets[0].state_dict())
    load_state(optimizers[1], to_tensors(Copier().copy(state_of(optimizers[0])), copy=True))
    for net, each in zip(nets, inner, strict=True):
        each.zero_grad()
        net(images).square().mean().backward()
        each.step()
    assert torch.equal(nets[0].weight, nets[1].weight)
    for name, own in inner[1].state[nets[1].weight].items():
        assert own.stride() == inner[0].state[nets[0].weight][name].stride()
