"""LR schedulers that count samples, in a job that is resumed with another global batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lr_job import Job, elastic_sgd
from torch.optim import lr_scheduler as lr

from edl.step.source import StepInterval
from edl.torch import lr_schedules
from edl.torch.lr_schedules import Schedulers, in_samples
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    found = Job()
    monkeypatch.setattr(lr_schedules, "current_worker", lambda: SimpleNamespace(loader=found))
    return found


def lambda_lr(sgd: torch.optim.SGD, total: int) -> lr.LRScheduler:
    return lr.LambdaLR(sgd, lambda step: max(0.0, 1.0 - step / total))


def partial_lr(sgd: torch.optim.SGD, total: int) -> lr.LRScheduler:
    return lr.LambdaLR(sgd, partial(lambda step, of: max(0.0, 1.0 - step / of), of=total))


class Decay:
    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, step: int) -> float:
        return max(0.0, 1.0 - step / self.total)


MADE: dict[str, Callable[[torch.optim.SGD, int], lr.LRScheduler]] = {
    "LambdaLR": lambda_lr,
    "partial": partial_lr,
    "object": lambda sgd, total: lr.LambdaLR(sgd, Decay(total)),
    "OneCycleLR": lambda sgd, total: lr.OneCycleLR(sgd, 1.0, total + 1),
    "CosineAnnealingLR": lambda sgd, total: lr.CosineAnnealingLR(sgd, total),
    "LinearLR": lambda sgd, total: lr.LinearLR(sgd, 1.0, 0.0, total),
    "SequentialLR": lambda sgd, total: lr.SequentialLR(
        sgd,
        [lr.LinearLR(sgd, 0.5, 1.0, total // 4), lr.CosineAnnealingLR(sgd, total - total // 4)],
        [total // 4],
    ),
}


class ResumedJob:
    """A script that makes a schedule for its global batch, over ``SAMPLES`` samples of a job.

    Args:
        kind: a key of ``MADE``.
        batch: the global batch of this start of the job.
        is_tracked: whether the script tracks the schedule by name.
    """

    SAMPLES = 960

    def __init__(self, kind: str, batch: int, is_tracked: bool) -> None:
        self.sgd, self.batch = elastic_sgd(rate=1.0), batch
        self.wrapped = in_samples(MADE[kind](self.sgd, self.SAMPLES // batch), batch)
        self.replica = TorchReplica(torch.nn.Module(), self.sgd)
        self.things = {"schedule": self.wrapped} if is_tracked else {}
        self.replica.track(self.things)
        self.follows = Schedulers()
        self.follows.add(self.sgd)

    def state(self) -> Any:
        but = (self.wrapped.scheduler,) if self.things else ()
        tracked = {name: each.state_dict() for name, each in self.things.items()}
        state = self.sgd.state_dict(), tracked, self.follows.states(but)
        return copy.deepcopy(state)

    def load(self, state: Any) -> None:
        optimizer, tracked, schedulers = state
        self.sgd.load_state_dict(optimizer)
        self.replica.load_things(tracked, Receive.ALL)
        but = (self.wrapped.scheduler,) if self.things else ()
        assert self.follows.load(schedulers, but) == []

    def train(self, job: Job, until: int) -> dict[int, float]:
        rates = {}
        while job.trained < until:
            before = job.trained
            (rates[before],) = job.train(self.sgd, self.batch)
        return rates


def rates_alone(kind: str, job: Job) -> dict[int, float]:
    job.trained = 0
    return ResumedJob(kind, 10, is_tracked=False).train(job, ResumedJob.SAMPLES)


@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("batches", [(20, 40, 10), (40, 20, 40), (30, 80, 20)])
@pytest.mark.parametrize("kind", MADE)
def test_a_resumed_job_with_another_batch_ends_its_schedule_with_the_data(
    kind: str, batches: tuple[int, ...], is_tracked: bool, job: Job
) -> None:
    """Each start is made for its own batch; a newcomer of the last one has the same rates."""
    state: Any = None
    rates: dict[int, float] = {}
    for batch, until in zip(batches, (240, 480, 720), strict=True):
        start = ResumedJob(kind, batch, is_tracked)
        if state is not None:
            start.load(state)
        rates |= start.train(job, until)
        state = start.state()
    newcomer = ResumedJob(kind, batches[-1], is_tracked)
    newcomer.load(state)
    trained = job.trained
    theirs = newcomer.train(job, ResumedJob.SAMPLES)
    job.trained = trained
    assert start.train(job, ResumedJob.SAMPLES) == theirs
    rates |= theirs
    alone = rates_alone(kind, job)
    coarse = 1.1 * max(batches) / ResumedJob.SAMPLES  # a rate stays for the samples of a step
    slope = 4 if kind in ("OneCycleLR", "SequentialLR") else 2
    for samples, rate in rates.items():
        near = alone[samples - samples % 10]
        assert rate == pytest.approx(near, abs=slope * coarse), samples


def test_a_checkpoint_of_an_earlier_edl_has_no_interval(job: Job) -> None:
    """The rate of a function is known for each step; other schedules stay with their steps."""
    before = ResumedJob("LambdaLR", 20, is_tracked=False)
    before.train(job, 480)
    optimizer, tracked, (schedule,) = before.state()
    del schedule["interval"]
    start = ResumedJob("LambdaLR", 40, is_tracked=False)
    start.load((optimizer, tracked, [schedule]))
    assert start.train(job, 560) == {480: 0.5, 520: pytest.approx(1 - 13 / 24)}


@pytest.mark.parametrize("is_wrapped_before", [False, True])
def test_a_state_of_another_training_with_another_batch(is_wrapped_before: bool, job: Job) -> None:
    """As with Accelerate's ``load_state()`` and another batch of a worker: 12 steps are 6."""
    old = ResumedJob("LambdaLR", 20, is_tracked=False)
    old.train(job, 260)
    sgd = elastic_sgd(rate=1.0)
    schedule = MADE["LambdaLR"](sgd, ResumedJob.SAMPLES // 40)
    if not is_wrapped_before:
        schedule.load_state_dict(old.wrapped.state_dict())
    wrapped = in_samples(schedule, batch=40)
    if is_wrapped_before:
        wrapped.load_state_dict(old.wrapped.state_dict())
    job.trained = 0
    assert [job.train(sgd, 40)[0] for _ in range(3)] == [1 - step / 24 for step in (6, 7, 8)]
    assert not {"edl_interval", "edl_steps_before"} & vars(schedule).keys()


@pytest.mark.parametrize("interval", [StepInterval(8), StepInterval(8, 97), StepInterval(8, 96)])
def test_the_samples_of_steps(interval: StepInterval) -> None:
    for steps in range(1, 60):
        samples = interval.samples(steps)
        assert (interval.steps(samples - 1), interval.steps(samples)) == (steps - 1, steps)
