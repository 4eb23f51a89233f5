"""Metrics of torchmetrics over all workers, by stand-ins for a metric and for the other workers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from edl.errors import UsageError
from edl.torch import api
from edl.torch.api import reduced_state, sync_metrics


class Metric(torch.nn.Module):
    def __init__(self, total: float, *seen: torch.Tensor) -> None:
        super().__init__()
        self._reductions = {"total": lambda stacked: stacked.sum(0), "seen": torch.cat}
        self.total, self.seen = torch.tensor(total), list(seen)
        self.distributed_available_fn: Any = None
        self.device = torch.device("cpu")

    def _sync_dist(self, *_: Any) -> None:
        raise AssertionError("that of torchmetrics, which needs torch.distributed")


class Other(Metric):
    pass


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    messages: list[bytes] = []
    monkeypatch.setattr(api, "current_worker", lambda: None)
    monkeypatch.setattr(api, "exchange", lambda payload: [payload, *messages])
    return messages


def message(metric: Metric) -> bytes:
    call = f"{type(metric).__name__}.compute()"
    return pickle.dumps((call, {"total": metric.total, "seen": metric.seen}))


def test_all_states_are_those_of_all_workers(others: list[bytes]) -> None:
    mine = Metric(1.0, torch.tensor([1, 2]), torch.tensor([3]))
    others += [message(Metric(4.0)), message(Metric(2.0, torch.tensor([4])))]
    sync_metrics(torch.nn.Sequential(torch.nn.Linear(1, 1), mine))
    assert mine.distributed_available_fn is api.exchanges
    mine._sync_dist(None, process_group=None)
    assert mine.total.item() == 7.0
    assert mine.seen.tolist() == [1, 2, 3, 4]  # type: ignore[attr-defined]


def test_a_list_that_is_empty_everywhere_stays_one(others: list[bytes]) -> None:
    mine = Metric(1.0)
    others.append(message(Metric(1.0)))
    sync_metrics(mine)
    mine._sync_dist()
    assert mine.seen == []


def test_states_without_a_reduction_are_stacked_or_strung_together() -> None:
    assert reduced_state([torch.tensor(1), torch.tensor(2)], None).tolist() == [1, 2]
    assert reduced_state([[(1, 2)], [], [(3,), (4,)]], None) == [(1, 2), (3,), (4,)]


def test_different_metrics_at_the_same_time(others: list[bytes]) -> None:
    mine = Metric(1.0)
    others.append(message(Other(1.0)))
    sync_metrics(mine)
    with pytest.raises(
        UsageError, match=r"rank 1 calls Other.compute\(\) while this .* Metric.com"
    ):
        mine._sync_dist()


def test_a_module_without_metrics_is_refused(others: list[bytes]) -> None:
    with pytest.raises(UsageError, match="no metric of torchmetrics in this Linear; give it the"):
        sync_metrics(torch.nn.Linear(1, 1))


def test_before_edl_init_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"call edl.init\(\) first"):
        sync_metrics(Metric(1.0))
