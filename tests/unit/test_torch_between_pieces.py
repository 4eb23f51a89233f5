"""What a script calls in each iteration counts once for an update of logical workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DistributedSampler

import edl.torch  # noqa: F401 (it makes schedulers look)
from edl.binding import process
from edl.errors import UsageError
from edl.step.engine import Batch, BatchStart, RingPlace, StepEngine
from edl.torch.optimizer import _check_logical, listen
from edl.torch.reduction import GradientReduction
from edl.worker.worker import Worker

PIECES = 3
PLACE = RingPlace(alone=True, warming_up=False, batch_size=6)


def begin(engine: StepEngine, left: int) -> None:
    batch = Batch(0, torch.arange(2).numpy(), follow=left)
    engine.handle(BatchStart(batch, False, PLACE, pieces=PIECES))


@pytest.mark.parametrize("logical", [True, False])
def test_before_the_last_piece_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch, logical: bool
) -> None:
    """Without logical workers, whose scripts see as many pieces everywhere, each one counts."""
    engine = StepEngine()
    engine.late, engine.logical = True, logical
    worker = SimpleNamespace(loader=SimpleNamespace(engine=engine))
    monkeypatch.setattr(process, "_worker", cast(Worker, worker))
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    parts = [LinearLR(sgd), CosineAnnealingWarmRestarts(sgd, 4)]
    schedulers = [StepLR(sgd, 2), SequentialLR(sgd, parts, [3])]
    averaged = AveragedModel(model)
    for left in reversed(range(PIECES)):
        begin(engine, left)
        sgd.step()
        for each in schedulers:
            each.step()
        averaged.update_parameters(model)
    counted = 1 if logical else PIECES
    assert [each.last_epoch for each in schedulers] == [counted] * 2
    assert averaged.n_averaged.item() == counted


def test_a_share_of_an_evaluation_is_that_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(logical=8, size=3, rank=0)
    monkeypatch.setattr(process, "_worker", cast(Worker, worker))
    with pytest.raises(UsageError, match="for 8 replicas, the number of logical workers, would"):
        DistributedSampler(range(24), 8, 0)
    shares = [[*DistributedSampler(range(24), 3, rank)] for rank in range(3)]
    assert sorted(index for share in shares for index in share) == [*range(24)]
    worker.size = 8
    assert DistributedSampler(range(24), 8, 0).num_samples == 3


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_newcomer_may_have_a_rank_above_those_of_the_script(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has a process, so the newcomer's number is that of the ranks."""
    monkeypatch.setattr(process, "_worker", cast(Worker, SimpleNamespace(logical=2, size=2)))
    with pytest.raises(ValueError, match="Invalid rank 2"):
        DistributedSampler(range(4), 2, 2)
    monkeypatch.setattr("edl.torch.elastic._allows_logical", True)
    assert DistributedSampler(range(4), num_replicas=2, rank=rank).rank == min(rank, 1)
    assert DistributedSampler(range(4), 2, rank).rank == min(rank, 1)
    with pytest.raises(ValueError, match="Invalid rank 3"):
        DistributedSampler(range(4), 3, 3)


def test_a_size_within_the_training_is_that_of_logical_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = SimpleNamespace(logical=8, size=3, step=0)
    monkeypatch.setattr(process, "_worker", cast(Worker, worker))
    process._warn_of_logical_size.cache_clear()
    assert (process.size(), process.num_processes(), caplog.messages) == (8, 3, [])
    worker.step = 1
    assert (process.size(), process.size()) == (8, 8)
    assert len(caplog.messages) == 1
    assert "use edl.num_processes()" in caplog.text
    worker.logical = 0
    assert process.size() == 3


class Counts(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Counts])
def test_an_optimizer_that_counts_steps_without_an_update_is_refused(kind: Any) -> None:
    calls: list[str] = []
    between = SimpleNamespace(is_between_microbatches=True)
    reduction = SimpleNamespace(
        accumulation=between,
        step=SimpleNamespace(done=True),
        end_microbatch=lambda: calls.append("microbatch"),
        begin_update=lambda: calls.append("update"),
        end_step=lambda skipped: calls.append("end"),
    )
    optimizer = kind(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    listen(optimizer, cast(GradientReduction, reduction))
    if kind is Counts:
        with pytest.raises(UsageError, match=r"Counts counts its calls of step\(\), also those"):
            optimizer.step()
    else:
        optimizer.step()
    between.is_between_microbatches = False
    optimizer.step()
    assert [*dict.fromkeys(calls)] == ["microbatch", "update", "end"]


def test_an_optimizer_that_wraps_another_is_refused_with_logical_workers() -> None:
    """Lookahead changes weights at each k-th call, whether there are gradients or not."""
    model = torch.nn.Linear(2, 2)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    _check_logical(outer, model)
    vars(outer)["inner"] = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="SGD wraps another optimizer, and may change weights"):
        _check_logical(outer, model)
    with pytest.raises(UsageError, match="SyncBatchNorm takes its statistics from all workers"):
        _check_logical(torch.optim.SGD(model.parameters()), torch.nn.SyncBatchNorm(2))
