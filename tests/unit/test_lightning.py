"""The parts of ElasticStrategy that need no Lightning: reductions, loaders, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

from edl.errors import UsageError
from edl.lightning import collectives, loaders
from edl.lightning.checks import check_own_steps, why_refused
from edl.lightning.collectives import StrategyCollectives, operation_of
from edl.lightning.epoch_counts import EpochCounts, InBatches, accumulated_batches
from edl.lightning.loaders import (
    PreparationLock,
    RankSampler,
    limited_batches,
    shared,
    training_loader,
)
from edl.step.source import UpdateInterval


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "sum"),
        ("avg", "mean"),
        ("MEAN", "mean"),
        ("prod", "product"),
        (torch.distributed.ReduceOp.SUM, "sum"),
        (torch.distributed.ReduceOp.AVG, "mean"),
        (torch.distributed.ReduceOp.MAX, "max"),
    ],
)
def test_operations_have_the_names_of_lightning_and_of_torch(given: Any, name: str) -> None:
    assert operation_of(given) == name


def test_an_operation_that_is_unknown_is_named() -> None:
    with pytest.raises(UsageError, match="cannot reduce by 'median'; take mean"):
        operation_of("median")


def test_a_worker_by_itself_gets_its_own_value() -> None:
    alone = StrategyCollectives(lambda: True, lambda: 4, lambda: False, lambda: True)
    value = torch.tensor(3)
    assert alone.gather("own", "broadcast()") == ["own"]
    assert alone.reduce(value, "mean") is value


@pytest.mark.parametrize(("is_training", "mean"), [(True, 2.0), (False, 5.0)])
def test_the_weight_of_a_training_batch_is_not_that_of_a_validation_inside_its_step(
    monkeypatch: pytest.MonkeyPatch, is_training: bool, mean: float
) -> None:
    """Two workers validate between accumulated batches; the second one's batch was padding."""
    sent: list[Any] = []

    def exchanged(_: str, value: Any, __: str) -> list[Any]:
        sent.append(value)
        return sent

    monkeypatch.setattr(collectives, "exchange_objects", exchanged)
    for weight, value in ((4, 2.0), (0, 8.0)):
        worker = StrategyCollectives(
            is_local=lambda: False,
            weight=lambda weight=weight: weight,
            in_step=lambda: True,
            is_training=lambda: is_training,
        )
        found = worker.reduce(torch.tensor(value), "mean")
    assert found.item() == mean


@pytest.mark.parametrize("asked", [None, 0, 3])
def test_the_order_follows_from_the_loaders_generator_unless_the_strategy_has_a_seed(
    monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    monkeypatch.setattr(loaders, "current_worker", lambda: SimpleNamespace(logical=0))
    monkeypatch.setattr(loaders, "DataLoader", dict)
    given = DataLoader(range(4), shuffle=True, generator=torch.Generator().manual_seed(5))
    made: Any = training_loader(given, seed=asked, global_batch=None, max_global_batch=4)
    assert (made["max_global_batch"], made["batch_size"]) == (4, 1)
    assert (made.get("seed"), made["order_generator"]) == (asked, given.generator)


@pytest.mark.parametrize("total", [1, 2, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_sample_is_validated_and_only_with_too_few_twice(total: int, size: int) -> None:
    parts = [[*RankSampler(range(total), lambda r=rank: (r, size))] for rank in range(size)]
    assert {each for part in parts for each in part} == set(range(total))
    assert all(parts)
    assert total < size or sum(map(len, parts)) == total


def test_a_validation_is_divided_anew_when_the_size_has_changed() -> None:
    place = (0, 2)
    sampler = RankSampler(range(6), lambda: place)
    assert [*sampler] == [0, 2, 4]
    place = (1, 3)
    assert [*sampler] == [1, 4]
    assert len(sampler) == 2


def test_a_fraction_of_the_validation_data_is_one_of_the_workers_part() -> None:
    place = (0, 1)
    data = range(64)
    divided = DataLoader(data, batch_size=4, sampler=RankSampler(data, lambda: place))
    both = [divided, DataLoader(data, batch_size=4)]
    assert limited_batches(both, 0.25, [4, 4]) == [4, 4]
    place = (1, 4)
    assert limited_batches(both, 0.25, [4, 4]) == [1, 4]
    place = (1, 32)
    assert limited_batches(both, 0.25, [1, 4]) == [1, 4]
    place = (0, 2)
    assert limited_batches(both, 0.25, [1, 4]) == [2, 4]
    assert limited_batches([iter(data), divided], 0.25, [math.inf, 0]) == [math.inf, 0]


def test_only_plain_loaders_of_validation_data_are_divided() -> None:
    def rebuilt(loader: Any, sampler: RankSampler) -> list[int]:
        return [*sampler]

    def place() -> tuple[int, int]:
        return 1, 2

    own = DataLoader(range(4), sampler=WeightedRandomSampler([1.0] * 4, 4))
    assert shared(DataLoader(range(4)), place, rebuilt) == [1, 3]
    assert shared(DataLoader(range(4), shuffle=True), place, rebuilt) == [1, 3]
    assert shared(own, place, rebuilt) is own
    assert shared([1, 2], place, rebuilt) == [1, 2]


def refused(
    *callbacks: str, automatic: bool = True, reloads: int = 0, argument: str = "batch"
) -> str:
    trainer: Any = SimpleNamespace(
        callbacks=[type(name, (), {})() for name in callbacks],
        reload_dataloaders_every_n_epochs=reloads,
    )
    step = {"batch": lambda batch: None, "dataloader_iter": lambda dataloader_iter: None}
    module: Any = SimpleNamespace(automatic_optimization=automatic, training_step=step[argument])
    return why_refused(trainer, module)


@pytest.mark.parametrize(
    ("callbacks", "options", "why"),
    [
        ((), {"automatic": False}, "must leave optimization to Lightning"),
        (("Callback", "BatchSizeFinder"), {}, "BatchSizeFinder does not work: it tr"),
        (("StochasticWeightAveraging",), {}, "averaged weights do not reach newcomers"),
        ((), {"reloads": 2}, "leave out reload_dataloaders_every_n_epochs=2"),
        ((), {"argument": "dataloader_iter"}, "cannot take a dataloader_iter"),
    ],
)
def test_what_cannot_follow_the_job_is_refused_with_what_to_do(
    callbacks: tuple[str, ...], options: dict[str, Any], why: str
) -> None:
    assert why in refused(*callbacks, **options)


def test_usual_callbacks_are_not_refused() -> None:
    usual = ("Callback", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint", "Timer")
    assert not refused(*usual)


def test_a_module_that_steps_schedulers_itself_is_refused_where_edl_would_step_them() -> None:
    configs = [
        SimpleNamespace(interval="epoch", reduce_on_plateau=False),
        SimpleNamespace(interval="step", reduce_on_plateau=True),
    ]
    trainer: Any = SimpleNamespace(max_steps=-1, lr_scheduler_configs=configs)
    check_own_steps(trainer, has_own_step=True)
    configs.append(SimpleNamespace(interval="step", reduce_on_plateau=False))
    check_own_steps(trainer, has_own_step=False)
    with pytest.raises(UsageError, match="lr_scheduler_step of the module would not be called"):
        check_own_steps(trainer, has_own_step=True)
    trainer.max_steps = 100
    check_own_steps(trainer, has_own_step=True)


class GradientAccumulationScheduler:
    """Lightning's callback, as far as edl looks at it."""

    def __init__(self, scheduling: dict[int, int]) -> None:
        self.scheduling = scheduling


def test_batches_that_a_callback_accumulates_are_those_of_an_update() -> None:
    """It sets them in the Trainer, which has 1 before, when an epoch begins."""
    callbacks: list[Any] = [object()]
    trainer: Any = SimpleNamespace(accumulate_grad_batches=3, callbacks=callbacks)
    assert accumulated_batches(trainer) == {0: 3}
    trainer.accumulate_grad_batches = 1
    callbacks.append(type("Own", (GradientAccumulationScheduler,), {})({0: 4, 2: 8}))
    assert accumulated_batches(trainer) == {0: 4, 2: 8}


@pytest.mark.parametrize(("accumulated", "frequency"), [({0: 4}, 1), ({0: 4}, 4), ({0: 1}, 4)])
def test_a_schedule_of_lightning_steps_after_the_batches_of_an_update(
    accumulated: dict[int, int], frequency: int
) -> None:
    sgd: Any = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    sgd.synchronize = lambda: None  # as edl.Optimizer gives it
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
    counts = EpochCounts()
    counts.first_batch, counts.samples = 32, 3200
    found = InBatches(scheduler, UpdateInterval(frequency, accumulated, None), counts)
    assert [found.steps_of(samples) for samples in (0, 127, 128, 512, 3200)] == [0, 0, 1, 4, 25]
    counts.first_batch = 16
    assert found.steps_of(128) == 2


def test_a_worker_that_prepares_data_without_an_end_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = (PreparationLock("train.py", timeout_s=0.0) for _ in range(2))
    first.acquire()
    with pytest.raises(UsageError, match="has not ended it in 0 s; prepare the data in a script"):
        second.acquire()
    PreparationLock("other.py", timeout_s=0.0).acquire()
    first.release()
    second.acquire()
    assert (first.is_held, second.is_held) == (False, True)
