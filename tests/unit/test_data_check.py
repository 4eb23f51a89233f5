"""What a few indices of the data set give, and whether that differs between workers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edl.binding.loop import COUNT, DataCheck, held
from edl.step.state_check import UNSTABLE, StateReport, are_comparable, why_data_differ
from edl.torch.loader import read_seeded


class Ordered(torch.utils.data.Dataset[Any]):
    def __init__(self, order: list[int], noise: Any = lambda: 0.0) -> None:
        self.order, self.noise = order, noise

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        one_hot = torch.zeros(len(self.order))
        one_hot[self.order[index]] = 1
        return {"x": one_hot, "path": str(Path("/host") / str(id(self)))}, self.noise()


def check(dataset: Any) -> DataCheck:
    return DataCheck(lambda: len(dataset), lambda index, seed: read_seeded(dataset, index, seed))


def test_equal_samples_have_equal_digests_and_others_have_not() -> None:
    order = list(range(50))
    mine, same = check(Ordered(order)), check(Ordered([*order]))
    other = check(Ordered(order[1:] + order[:1]))
    assert len(mine.digests(0)) == COUNT
    assert mine.digests(0).keys() != mine.digests(1).keys()
    assert mine.digests(0) == same.digests(0), "paths differ between hosts"
    for digests in ("digests", "again"):
        theirs = getattr(other, digests)(0)
        assert all(theirs[name] != digest for name, digest in getattr(mine, digests)(0).items())


def test_augmentation_by_the_global_generators_is_the_same() -> None:
    random.seed(1)
    mine = check(Ordered(list(range(9)), random.random)).again(0)
    random.seed(2)
    assert check(Ordered(list(range(9)), random.random)).again(0) == mine
    assert UNSTABLE not in mine.values()


def test_samples_that_change_or_cannot_be_read_are_not_compared() -> None:
    own = np.random.default_rng(0)
    changing = check(Ordered(list(range(9)), lambda: float(own.random()))).again(0)
    assert UNSTABLE in changing.values()
    unreadable = check(Ordered(list(range(9)), lambda: 1 / 0))
    assert {*unreadable.digests(0).values()} == {UNSTABLE}
    assert not are_comparable({0: check(Ordered(list(range(9)))).again(0), 1: changing})
    assert not are_comparable({0: {}, 1: {}})


def test_a_data_set_of_loader_processes_is_not_read() -> None:
    def fail() -> None:
        raise AssertionError

    dataset = Ordered([3, 1, 2], fail)
    kept = torch.utils.data.Subset(dataset, [2, 0])
    assert held(dataset, 1) == {"0 order": 1}
    assert [*held(kept, 1).values()] == [0, 1]
    assert held([1, 2, 3], 0) == {}


def test_the_message_names_the_sample_and_the_cure() -> None:
    tables = {0: {"sample 7": 1}, 1: {"sample 7": 1}, 2: {"sample 7": 2}}
    said = {worker: StateReport(table, {}) for worker, table in tables.items()}
    why = why_data_differ((2,), (0, 1), 3, tables, said, leaving=False)
    assert why.startswith("w2 has another sample 7 in its data set than w0, w1 in epoch 3 (1 ")
    assert "without the rank" in why
    said[2] = StateReport(tables[2], {}, 40)
    why = why_data_differ((2,), (0, 1), 3, tables, said, leaving=True)
    assert why.startswith("w2 joined after step 40, and has another sample 7")
    assert why.endswith("w2 ends, and the others train on")
