"""What is read of the losses and the learning rate of a script with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.learning import LearningMeter
from edl.torch import reduction
from edl.torch.reduction import watch_losses


class Script:
    def __init__(self, scale: float = 1.0) -> None:
        self.meter = LearningMeter()
        self.loader = SimpleNamespace(open=True, batch_weight=4)
        worker = SimpleNamespace(
            learning=self.meter, loader=self.loader, warming_up=False, step=6, worker=None
        )
        self.optimizers: Any = SimpleNamespace(
            worker=worker, is_multi=False, loss_scale=lambda: scale
        )
        self.weight = torch.nn.Parameter(torch.tensor([3.0]))
        self.sgd = torch.optim.SGD([self.weight], lr=0.25)
        watch_losses(self.optimizers, self.sgd)

    def sampled(self) -> list[tuple[int, float | None, float | None]]:
        self.meter.completed(7, 2, 1.0)
        return [(one.step, one.loss, one.learning_rate) for one in self.meter.taken()]


@pytest.fixture(autouse=True)
def no_more_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "_observe", None)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)


def test_the_loss_and_the_rate_of_a_step() -> None:
    script = Script()
    (script.weight.sum() * 2).backward()
    script.sgd.param_groups[0]["lr"] = 0.5  # by a scheduler, after the update
    assert script.sampled() == [(7, 6.0, 0.25)]


def test_a_scaled_loss() -> None:
    script = Script(scale=1024.0)
    (script.weight.sum() * 1024.0).backward()
    assert script.sampled() == [(7, 3.0, 0.25)]


def test_a_loss_in_a_list() -> None:
    script = Script()
    torch.autograd.backward([script.weight.sum()])
    assert script.sampled() == [(7, 3.0, 0.25)]


class LossOnGpu(torch.Tensor):
    """A loss that says that it is on the GPU 1, for a machine without one."""

    device = torch.device("cuda", 1)

    def detach(self) -> torch.Tensor:
        return torch.tensor(3.0)


def test_a_loss_on_another_gpu_than_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [torch.device("cuda", 0)]
    recorded: list[torch.device] = []

    @contextmanager
    def made_current(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    event = SimpleNamespace(record=lambda: recorded.append(current[-1]), query=lambda: True)
    monkeypatch.setattr(torch.cuda, "device", made_current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    read = reduction._reader(torch.tensor(0.0).as_subclass(LossOnGpu), Script().optimizers)
    assert read is not None
    assert (read(), recorded) == (3.0, [torch.device("cuda", 1)])  # behind the copy, not beside it


def test_what_is_no_loss_is_left_out() -> None:
    script = Script()
    (script.weight * 2).expand(3).backward(torch.ones(3))
    assert script.sampled() == [(7, None, 0.25)]


@pytest.mark.parametrize("change", ["padding", "is_multi", "warming_up"])
def test_batches_that_do_not_count(change: str) -> None:
    script = Script()
    if change == "padding":
        script.loader.batch_weight = 0
    elif change == "is_multi":
        script.optimizers.is_multi = True
    else:
        script.optimizers.worker.warming_up = True
    script.weight.sum().backward()
    assert script.sampled() == [(7, None, 0.25)]


def test_a_rate_that_is_a_tensor_or_nothing() -> None:
    script = Script()
    script.sgd.param_groups[0]["lr"] = torch.tensor(0.5)
    assert script.sampled() == [(7, None, 0.5)]
    del script.sgd.param_groups[0]["lr"]
    script.meter.completed(9, 2, 9.0)
    assert script.meter.taken() == ()
