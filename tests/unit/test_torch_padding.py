"""What padding batches are made of, whatever the script does to the batches that it gets."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from edl.torch.loader import Leases, LoaderBatchSource, PaddingData
from edl.worker.worker import Worker

Pair = namedtuple("Pair", ["x", "y"])


class Locked:
    def __copy__(self) -> Locked:
        raise RuntimeError("not to be copied")


def fresh() -> dict[str, Any]:
    return {
        "x": torch.ones(2, 3),
        "labels": [torch.zeros(2), "a"],
        "more": {"mask": torch.ones(2)},
        "own": UserDict(ids=torch.ones(2)),
        "pair": Pair(torch.ones(1), 2),
        "locked": Locked(),
    }


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda batch: None,
    "pop": lambda batch: batch.pop("labels"),
    "of a list": lambda batch: batch["labels"].clear(),
    "within": lambda batch: batch["more"].pop("mask"),
    "of a class": lambda batch: batch["own"].pop("ids"),
    "added": lambda batch: batch.update(loss=1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_as_it_was_loaded(change: str) -> None:
    padding, batch = PaddingData(lambda: pytest.fail("nothing need be loaded")), fresh()
    names, x = set(batch), batch["x"]
    padding.keep(batch)
    CHANGES[change](batch)
    for _ in range(2):  # the script does it to each
        again = padding.take()
        assert set(again) == names
        assert again["x"] is x
        assert len(again["labels"]) == 2
        assert (set(again["more"]), set(again["own"])) == ({"mask"}, {"ids"})
        assert type(again["pair"]) is Pair
        CHANGES[change](again)


@pytest.mark.parametrize(
    "change", [lambda x: x.mul_(0), lambda x: x.unsqueeze_(1), lambda x: x[0].fill_(2)]
)
def test_another_is_loaded_for_one_whose_tensors_have_changed(
    change: Callable[[torch.Tensor], Any],
) -> None:
    loaded = 0

    def load() -> tuple[torch.Tensor, int]:
        nonlocal loaded
        loaded += 1
        return torch.ones(2, 3), loaded

    padding, batch = PaddingData(load), (torch.ones(2, 3), 0)
    assert padding.take()[1] == 1, "nothing is kept yet"
    padding.keep(batch)
    assert padding.take()[1] == 0
    change(batch[0])
    again, number = padding.take()
    assert number == 2
    assert torch.equal(again, torch.ones(2, 3))


def test_a_tensor_without_a_count_of_writes_is_kept() -> None:
    padding = PaddingData(lambda: None)
    with torch.inference_mode():
        padding.keep([torch.ones(1)])
    assert padding.take()[0].tolist() == [1]


def test_a_worker_without_samples_gets_what_it_took_apart_before() -> None:
    """At the end of an epoch, and as a newcomer, whose last batch was that of its warm-up."""
    leases: list[Any] = [[0]]
    sampler = SimpleNamespace(
        form=lambda _: leases.pop() if leases else None,
        has_more=lambda _: bool(leases),
        warm_up=lambda: [1],
    )
    loader = SimpleNamespace(sampler=sampler, ledger=None, epoch=0)
    worker = cast(Worker, SimpleNamespace(warming_up=True, loader=loader))

    def as_sent(batch: Any) -> Any:
        return batch

    def make(form: Any) -> torch.utils.data.DataLoader[Any]:
        data: Any = [{"x": torch.tensor(n), "label": n} for n in range(2)]
        return torch.utils.data.DataLoader(data, batch_sampler=cast(Any, Leases(form, as_sent)))

    source = LoaderBatchSource(worker, as_sent, make)
    source.next()
    assert source.data.pop("label").tolist() == [1]  # of its warm-up
    source.restart()
    cast(Any, worker).warming_up = False
    source.pad()
    assert source.data.pop("label").tolist() == [1]
    assert source.next() == ([0], False)
    assert source.data.pop("label").tolist() == [0]
    for _ in range(2):
        assert source.next() == ([1], True)
        assert source.data.pop("label").tolist() == [0]
