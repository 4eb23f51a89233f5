"""What a job of Lightning counts its epochs by: a newcomer's, and that of a resumed job."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lr_job import elastic_sgd
from torch.optim import lr_scheduler as lr

from edl.lightning import epoch_counts
from edl.lightning.epoch_counts import EpochCounts, InBatches, old_counts
from edl.step.source import EpochPosition, UpdateInterval


class Place:
    """Where the worker of this process is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = SimpleNamespace(epoch=0, done=0, finished=False)
        self.order = SimpleNamespace(batch=0)
        self.progress = SimpleNamespace(ledger=self.ledger, update_order=self.order, trained=0)
        engine = SimpleNamespace(in_hand=False)
        loader: Any = SimpleNamespace(progress=self.progress, epoch=0, open=False, engine=engine)
        self._loader = loader
        worker = SimpleNamespace(logical=0, loader=loader)
        monkeypatch.setattr(epoch_counts, "current_worker", lambda: worker)

    def move(self, epoch: int, batch: int, done: int = 0, trained: int = 0) -> None:
        self._loader.epoch = self.ledger.epoch = epoch
        self.order.batch, self.ledger.done, self.progress.trained = batch, done, trained


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def counts_of(limit: int | None, first_batch: int = 8) -> EpochCounts:
    counts = EpochCounts()
    counts.limit = counts.first_limit = limit
    counts.first_batch = first_batch
    return counts


def loaded(state: dict[str, Any], limit: int | None = 50) -> EpochCounts:
    counts = counts_of(limit, first_batch=32)
    counts.load_state_dict(state)
    counts.enter()
    return counts


def test_a_resumed_job_and_its_newcomers_count_the_batches_before_the_checkpoint(
    place: Place,
) -> None:
    first = counts_of(50)
    first.enter()
    place.move(epoch=1, batch=30)
    saved = first.state_dict()
    newcomer = loaded(saved)
    assert (first.batch, newcomer.batch) == (30, 30)

    place.move(epoch=1, batch=1)  # edl's own count begins anew; it has counted a warm-up
    assert loaded(saved).batch == 30
    place.move(epoch=1, batch=0)
    resumed = loaded(saved)
    assert (resumed.batch, resumed.is_at_limit, resumed.first_batch) == (30, False, 8)
    place.move(epoch=1, batch=5)
    newcomer = loaded(resumed.state_dict())
    assert (resumed.batch, newcomer.batch) == (35, 35)
    saved = resumed.state_dict()
    place.move(epoch=1, batch=20)
    assert resumed.is_at_limit
    place.move(epoch=2, batch=4)
    assert (resumed.batch, newcomer.batch) == (4, 4)

    place.move(epoch=1, batch=0)
    assert loaded(saved).batch == 35


@pytest.mark.parametrize("limit", [None, 20])
def test_it_counts_anew_where_an_epoch_has_no_limit_or_another_one(
    place: Place, limit: int | None
) -> None:
    place.move(epoch=1, batch=30)
    saved = counts_of(50).state_dict()
    place.move(epoch=1, batch=0)
    counts = loaded(saved, limit=limit)
    assert (counts.batch, counts.is_at_limit) == (0, False)
    assert (counts.limit, counts.first_limit) == (limit, 50)


@pytest.mark.parametrize(
    ("state", "batch"), [({}, 32), ({"first_batch": []}, 32), ({"first_batch": [8]}, 8)]
)
def test_a_checkpoint_of_an_earlier_edl_says_less(
    place: Place, state: dict[str, Any], batch: int
) -> None:
    counts = loaded(old_counts(state))
    assert (counts.first_batch, counts.first_limit, counts.batch) == (batch, 50, 0)


def test_a_missed_update_has_the_position_of_the_others(place: Place) -> None:
    counts = counts_of(50)
    place.move(epoch=2, batch=10, done=80, trained=880)
    assert counts.position(880) == EpochPosition(2, 10, 50, 80)
    place.move(epoch=2, batch=10, done=88, trained=888)  # with the state that the others have sent
    assert counts.position(880) == EpochPosition(2, 10, 50, 80)


def test_a_stream_that_ends_before_the_limit_has_a_length(place: Place) -> None:
    counts = counts_of(50)
    place.move(epoch=0, batch=19, done=152, trained=152)
    counts.end_update()
    assert counts.samples is None
    place.ledger.finished = True
    place.move(epoch=0, batch=19, done=160, trained=160)
    counts.end_update()
    place.move(epoch=1, batch=3, done=24, trained=184)
    counts.end_update()
    assert (counts.samples, loaded(counts.state_dict()).samples) == (160, 160)


def linear(sgd: torch.optim.SGD) -> lr.LRScheduler:
    """Return a schedule by a function, as of ``trainer.estimated_stepping_batches``."""
    return lr.LambdaLR(sgd, lambda step: 1.0 / (1 + step))


@pytest.mark.parametrize(
    ("make", "limit", "steps"),
    [
        (linear, None, 100),
        (linear, 25, 25),
        (lambda sgd: lr.CosineAnnealingLR(sgd, 400), None, 400),
        (lambda sgd: lr.CosineAnnealingLR(sgd, 50), 25, 50),
    ],
)
def test_a_schedule_of_a_resumed_job_counts_the_batches_for_which_it_was_made(
    make: Callable[[torch.optim.SGD], lr.LRScheduler], limit: int | None, steps: int, place: Place
) -> None:
    """The first start had batches of 8 samples and a limit of 50; the state has a ``T_max``."""
    counts = counts_of(limit, first_batch=32)
    counts.samples = 3200
    found = InBatches(make(elastic_sgd()), UpdateInterval(1, {0: 1}, 3200, limit), counts)
    counts.load_state_dict({"first_batch": 8, "first_limit": limit and 50})
    place.move(epoch=1, batch=0, trained=3200)
    assert found.steps_of(3200) == steps
