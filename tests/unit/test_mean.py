"""The mean over the job of what each worker has for its own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edl.binding import api
from edl.errors import UsageError
from edl.learning import LearningMeter
from edl.step.batching import Batching
from edl.step.engine import BatchStart, RingPlace, StepEnd
from edl.step.source import Source
from edl.step.weighting import weighted_means
from edl.worker.progress import LoaderProgress, Receive


def test_rows_count_as_much_as_the_samples_behind_them() -> None:
    assert weighted_means([[1, 5.0, 0.0], [3, 1.0, 4.0]]) == [2.0, 3.0]


def test_a_row_of_no_samples_does_not_enter() -> None:
    assert weighted_means([[0, math.nan], [2, 7.0], [0, 1e300]]) == [7.0]


def test_without_samples_there_is_no_mean() -> None:
    assert [math.isnan(mean) for mean in weighted_means([[0, 1.0, 2.0], [0, 1.0, 2.0]])] == [
        True,
        True,
    ]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Rows of the other workers; this one's batch has 2 samples."""
    rows: list[list[float]] = []
    worker = SimpleNamespace(
        steps=SimpleNamespace(batch_weight=2),
        exchange=lambda mine, apart: [mine, *rows],
        warming_up=False,
        step=7,
        learning=LearningMeter(),
    )
    monkeypatch.setattr(api, "current_worker", lambda: worker)
    return rows


@pytest.mark.parametrize(
    "value",
    [3, 3.0, True + 2, np.float32(3), torch.tensor(3), torch.tensor([3.0], requires_grad=True)],
    ids=str,
)
def test_the_weight_is_that_of_the_batch(others: list[list[float]], value: Any) -> None:
    others.append([1, 6.0])
    assert api.mean(value) == 4.0
    assert api.mean(value, weight=1) == 4.5
    assert api.mean(value, weight=0) == 6.0


def test_several_numbers_by_name(others: list[list[float]]) -> None:
    others.append([2, 0.0, 4.0])  # by name: accuracy, loss
    assert api.mean({"loss": torch.tensor(2.0), "accuracy": 1}) == {"accuracy": 0.5, "loss": 3.0}


@pytest.mark.parametrize("value", [torch.zeros(2), "many", None, [1.0, 2.0]], ids=str)
def test_what_is_no_number_is_refused(others: list[list[float]], value: Any) -> None:
    with pytest.raises(UsageError, match=r"^edl\.mean takes a number, or a tensor with one"):
        api.mean(value)


@pytest.mark.parametrize("weight", [-1, math.nan])
def test_so_is_a_weight_that_is_none(others: list[list[float]], weight: float) -> None:
    with pytest.raises(UsageError, match=r"^edl\.mean: the weight is "):
        api.mean(1.0, weight)


# --- the weight of a batch ---


def in_a_step(samples: int = 4, padding: bool = False) -> LoaderProgress:
    progress = LoaderProgress()
    progress.attach(Source(samples, Batching(4), False, 0, 0), 0)
    batch = progress.sampler.form(progress.ledger)
    assert batch is not None
    progress.engine.handle(BatchStart(batch, padding, RingPlace(True, False, 4)))
    return progress


@pytest.mark.parametrize(
    ("samples", "padding", "weight"), [(4, False, 4), (3, False, 3), (4, True, 0)]
)
def test_a_batch_weighs_its_samples(samples: int, padding: bool, weight: int) -> None:
    """In the step and after it."""
    progress = in_a_step(samples, padding)
    assert progress.engine.batches.weight == weight
    progress.engine.handle(StepEnd(trained=True))
    assert progress.engine.batches.weight == weight


def test_a_batch_that_the_script_leaves_weighs_nothing() -> None:
    progress = in_a_step()
    progress.abandon()
    assert progress.engine.batches.weight == 0


def test_a_batch_that_others_have_completed_weighs_its_samples() -> None:
    missed, root = in_a_step(), in_a_step()
    root.step = 1
    root.engine.handle(StepEnd(trained=False))
    missed.take_over(root.header(), Receive.STEP)
    assert (missed.engine.completed_by_peers, missed.engine.batches.weight) == (True, 4)
