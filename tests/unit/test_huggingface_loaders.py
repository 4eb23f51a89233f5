"""The training loader of edl.huggingface.Accelerator, without Hugging Face's libraries."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from lr_job import elastic_sgd
from torch.optim import lr_scheduler as lr

import edl.torch
from edl.huggingface import loaders
from edl.huggingface.loaders import TrainingDataLoader
from edl.torch import lr_schedules
from edl.torch.lr_schedules import InSamples
from edl.worker.loader_steps import Update

SAMPLES, BATCH, WORKERS = 96, 8, 4


class Job:
    """The part of a worker that the loader and the schedules ask."""

    def __init__(self) -> None:
        self.logical = 0
        progress = SimpleNamespace(trained=0)
        self.loader = SimpleNamespace(update=None, batch_weight=0, progress=progress)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    def init(loader: Any, dataset: Any) -> None:
        loader.dataset = dataset

    found = Job()
    for module in (loaders, lr_schedules):
        monkeypatch.setattr(module, "current_worker", lambda: found)
    monkeypatch.setattr(edl.torch.DataLoader, "__init__", init)
    monkeypatch.setattr(edl.torch.DataLoader, "_epochs", lambda *_: iter([0]))
    monkeypatch.setattr(edl.torch.DataLoader, "__iter__", lambda _: iter(range(3)))
    return found


def loops(loader: TrainingDataLoader) -> dict[str, Iterator[Any]]:
    """Return the loops that a script may write over a loader."""
    return {
        "epochs": loader.epochs(2),
        "epochs, at most": loader.epochs(2, max_steps=6),
        "max_steps": loader.epochs(max_steps=6),
        "steps": loader.steps(6),
    }


@pytest.mark.parametrize("is_prepared_late", [False, True])
@pytest.mark.parametrize(
    ("loop", "steps"), [("epochs", 24), ("epochs, at most", 24), ("max_steps", 6), ("steps", 6)]
)
def test_a_prepared_schedule_counts_what_the_loop_does(
    loop: str, steps: int, is_prepared_late: bool, job: Job
) -> None:
    sgd = elastic_sgd(rate=1.0)
    schedule = lr.LambdaLR(sgd, lambda step: 1.0 / (1 + step))
    prepared = SimpleNamespace(scheduler=schedule)
    loader = TrainingDataLoader(None, dataset=range(SAMPLES))
    if not is_prepared_late:
        loader.count_samples(prepared, BATCH)
        assert isinstance(prepared.scheduler, InSamples)
    next(loops(loader)[loop])
    loader.count_samples(prepared, BATCH)
    assert isinstance(prepared.scheduler, InSamples) == (loop.startswith("epochs"))
    for number in range(6):
        before = number * BATCH * WORKERS
        job.loader.update = Update(number, before, before + BATCH * WORKERS, ())
        sgd.step()
        job.loader.progress.trained = before + BATCH * WORKERS
        prepared.scheduler.step()  # as AcceleratedScheduler.step() does
    assert schedule.last_epoch == steps
    assert sgd.param_groups[0]["lr"] == 1.0 / (1 + steps)


def test_a_schedule_of_the_script_and_a_stream_stay_as_they_are(job: Job) -> None:
    sgd = elastic_sgd(rate=1.0)
    own = edl.torch.in_samples(lr.StepLR(sgd, 1), batch=4)
    loader = TrainingDataLoader(None, dataset=range(SAMPLES))
    prepared = SimpleNamespace(scheduler=own)
    loader.count_samples(prepared, BATCH)
    next(loader.epochs(max_steps=6))
    assert prepared.scheduler is own
    plain = SimpleNamespace(scheduler=lr.StepLR(sgd, 1))
    TrainingDataLoader(None, dataset=iter(())).count_samples(plain, BATCH)
    assert isinstance(plain.scheduler, lr.StepLR)


def test_batches_are_put_on_the_device(job: Job) -> None:
    loader = TrainingDataLoader(str, dataset=range(SAMPLES))
    assert [*iter(loader)] == ["0", "1", "2"]
    assert [*iter(TrainingDataLoader(None, dataset=range(SAMPLES)))] == [0, 1, 2]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_padding_batch_is_known_while_the_script_has_it(breaks: bool, job: Job) -> None:
    """Before the loop over batches and after it, what a script gathers belongs to no batch."""
    loader = TrainingDataLoader(None, dataset=range(SAMPLES))
    assert not loader.has_padding
    found = []
    for number in iter(loader):
        job.loader.batch_weight = 0 if number else BATCH
        found.append(loader.has_padding)
        if breaks and number:
            break
    assert found == ([False, True] if breaks else [False, True, True])
    assert not loader.has_padding
