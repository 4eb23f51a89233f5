"""PyTorch's gradients and optimizers, edl's hooks around them, and a loopback ring that breaks.

All that `edl.torch` does with gradients, but for Horovod's collectives. The judge is the counting
model, as in `test_several_optimizers.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ordeals import SEEDS, Fault, Trial, faults, scales, some

from edl.core.records import JobState
from edl.daemon.worker import Worker
from edl.testing.counting import CountingModel, Vector
from edl.testing.loopback import LoopbackWorker
from edl.testing.several import (
    BOTH_FIRST,
    GAN,
    ONE,
    THREE,
    TOGETHER,
    CountingSeveral,
    Models,
    Optimizer,
)
from edl.torch import flights
from edl.torch.optimizer import listen
from edl.torch.optimizers import Optimizers
from edl.torch.reduction import GradientReduction, LastStep

MEMBERS: dict[int, Any] = {}  # by thread: all workers are in this process


def average_start(tensor: torch.Tensor, output: torch.Tensor, name: str) -> Any:
    member = MEMBERS[threading.get_ident()]
    return member, member.average_start(tensor.numpy().copy(), name), output


def finish(flight: Any) -> torch.Tensor:
    member, handle, output = flight
    found: torch.Tensor = output.copy_(torch.from_numpy(member.average_finish(handle)))
    return found


@pytest.fixture(autouse=True, scope="module")
def loopback() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flights, "average_start", average_start)
        patch.setattr(flights, "finish", finish)
        yield
    MEMBERS.clear()


class Net(torch.nn.Module):
    def __init__(self, counting: CountingModel) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(len(counting.w), dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


class Sgd:
    """See :class:`edl.testing.several.Optimizer`."""

    def __init__(
        self,
        worker: Worker,
        optimizers: Optimizers,
        counting: CountingModel,
        to_none: bool,
        looks: bool,
        losses: list[torch.Tensor],
    ) -> None:
        self._worker, self._counting = worker, counting
        self._to_none, self._looks = to_none, looks
        self._net = Net(counting)
        self._sgd = torch.optim.SGD(self._net.parameters(), lr=1.0)
        listen(self._sgd, GradientReduction(optimizers, self._sgd, self._net, LastStep()))
        self._losses = losses  # of one backward pass: also those of other models

    def zero(self) -> None:
        self._sgd.zero_grad(set_to_none=self._to_none)

    def compute(self, gradient: Vector) -> None:
        self._losses.append((self._net.w * torch.from_numpy(gradient)).sum())

    def finish(self) -> None:
        if self._losses:
            torch.autograd.backward(torch.stack(self._losses).sum())
            self._losses.clear()

    def step(self) -> None:
        gradient = self._net.w.grad
        if self._looks and (gradient is None or not gradient.any()):
            return
        with torch.no_grad():  # who has missed a step, or comes new, has received what it is now
            self._net.w.copy_(torch.from_numpy(self._counting.w))
        self._sgd.step()
        change = self._counting.w - self._net.w.detach().numpy()
        if change.any() and not self._worker.warming_up:
            self._counting.update(np.asarray(change))


@dataclass(frozen=True)
class TorchSeveral(CountingSeveral):
    """With PyTorch.

    ``to_none``: how gradients are set to zero. ``looks``: the script makes no update for gradients
    of zero, which are what a worker sees that has missed the step.
    """

    to_none: bool = True
    looks: bool = False

    def wrap(
        self, one: LoopbackWorker, models: Models
    ) -> tuple[Sequence[Optimizer], Callable[[], None]]:
        MEMBERS[threading.get_ident()] = one.member
        torch.set_num_threads(1)
        optimizers = Optimizers(one.worker)
        losses: list[torch.Tensor] = []
        wrapped = [
            Sgd(one.worker, optimizers, each, self.to_none, self.looks, losses)
            for each in models.all
        ]
        return wrapped, optimizers.settle


SCHEDULES = {
    "one": (ONE,),
    "as in a GAN": (GAN,),
    "one backward pass": (TOGETHER,),
    "all backward passes first": (BOTH_FIRST,),
    "three": (THREE,),
    "the second one seldom": (GAN, ONE, ONE),
}
FEWER = settings(max_examples=max(10, settings().max_examples // 2))


def test_who_has_missed_a_step_may_decide_otherwise() -> None:
    """With one optimizer: its step ends all the same."""
    script = TorchSeveral((ONE,), samples=14, epochs=1, looks=True)
    for worker in range(3):
        for point in range(30, 80, 3):
            trial = Trial(0, script=script, faults=(Fault(worker, point, "kill"),))
            assert trial.run().memory.job.state is JobState.FINISHED


@pytest.mark.parametrize("turns", SCHEDULES.values(), ids=SCHEDULES)
def test_a_death_at_each_point(turns: tuple[tuple[str, ...], ...]) -> None:
    script = TorchSeveral(turns, samples=14, epochs=1)
    for worker in range(3):
        for point in range(1 + worker, 90, 7):
            trial = Trial(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
            assert trial.run().memory.job.state is JobState.FINISHED


@FEWER
@given(
    seed=SEEDS,
    np=st.integers(1, 3),
    turns=st.sampled_from([*SCHEDULES.values()]),
    to_none=st.booleans(),
    samples=st.integers(5, 20),
    changes=some(scales(), 0, 2),
    faults=some(faults("kill", "cut", "fail"), 0, 3),
)
def test_everything_at_once(
    seed: int,
    np: int,
    turns: tuple[tuple[str, ...], ...],
    to_none: bool,
    samples: int,
    changes: Any,
    faults: tuple[Fault, ...],
) -> None:
    script = TorchSeveral(turns, samples=samples, epochs=1, to_none=to_none)
    Trial(seed, np, 1, 5, script, faults, changes).run()
