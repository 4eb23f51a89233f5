"""By which factor a momentum that holds the learning rate is multiplied before an update."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.checkpoint.format import Manifest
from edl.schedules import Scaling
from edl.step.batching import Batching
from edl.step.record import StepRecord, StepRecords
from edl.step.source import Source
from edl.worker.loader_steps import LoaderSteps, Update
from edl.worker.progress import LoaderProgress

LR, MU = 0.1, 0.9
SCALING = Scaling(batch=64)
Changes = tuple[tuple[int, int], ...]


def change(update: Update) -> float:
    """Return the factor by which the rate changes from the update before to this one."""
    before = SCALING.at(update.number - 1, update.last_batches)
    return SCALING.at(update.number, update.batches) / before


def played(batches: Changes, resumed: Changes, first: int = 1000) -> tuple[float, float]:
    """Return how far 30 updates with gradient 1 move a weight, in Keras' form and in PyTorch's.

    At the update ``first`` PyTorch's momentum is 10; Keras' is that times the last learning rate.
    """
    factor = SCALING.at(first - 1, resumed or batches)
    keras, torch = 10.0 * LR * factor, 10.0
    moved_keras = moved_torch = 0.0
    for number in range(first, first + 30):
        update = Update(number, 0, 0, batches, resumed=resumed)
        factor = SCALING.at(number, batches)
        keras = MU * keras * change(update) + LR * factor
        torch = MU * torch + 1.0
        moved_keras += keras
        moved_torch += LR * factor * torch
    return moved_keras, moved_torch


@pytest.mark.parametrize(
    ("batches", "resumed"),
    [
        (((0, 512), (1000, 128)), ()),  # in a ramp
        (((1000, 128),), ((0, 512),)),
        (((1000, 512),), ((0, 128),)),
        (((1000, 512),), ((0, 512),)),
        (((1000, 64),), ((0, 128), (995, 512))),  # in the midst of a ramp
    ],
)
def test_the_weights_are_those_of_pytorch(batches: Changes, resumed: Changes) -> None:
    """Keras has v = mu v + lr g, and PyTorch v = mu v + g with lr outside."""
    keras, torch = played(batches, resumed)
    assert keras == pytest.approx(torch)


def test_of_a_checkpoint_that_does_not_say_its_batches_nothing_is_corrected() -> None:
    assert change(Update(1000, 0, 0, ((1000, 128),))) == 1.0
    assert change(Update(0, 0, 0, ((0, 128),))) == 1.0


def test_the_open_step_knows_what_the_checkpoint_says() -> None:
    progress = LoaderProgress()
    progress.enter((0,))
    progress.attach(Source(100, Batching(4), True, 7, 0), 0)
    ledger = progress.ledger.snapshot()
    before = Manifest("j", "r1", 10, 0, "torch", {}, ledger, samples=40, batches=[[0, 8]])
    progress.resume(before)
    records = StepRecords.of([StepRecord(1, 10, 0, 0, 4, 40, 0, 1, 0, batches=1)])
    parts = SimpleNamespace(part=0)
    step = SimpleNamespace(records=records, completed_by_peers=False, batches=parts)
    loader = SimpleNamespace(_progress=progress, engine=step, warming_up=False, open=True)
    update: Any = LoaderSteps.update
    found = update.fget(loader)
    assert (found.batches, found.last_batches) == (((10, 4),), ((0, 8),))


def test_only_the_first_update_since_the_resume_is_corrected() -> None:
    resumed = ((0, 512),)
    factors = [
        change(Update(number, 0, 0, ((1000, 128),), resumed=resumed))
        for number in (1000, 1001, 1002)
    ]
    assert factors == [0.25, 1.0, 1.0]
