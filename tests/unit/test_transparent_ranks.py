"""Which process answers an unchanged script as the first of its job, or of its host."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from edl.binding import process
from edl.transparent.script import Ranks


class Script:
    """A process in slot 0 of its host, with what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, **worker: Any) -> None:
        self.has_begun = self.passes_over = self.has_gpus = False
        self.worker = SimpleNamespace(
            rank=rank,
            local_rank=0,
            warming_up=False,
            is_first_of_host=False,
            checkpointing=SimpleNamespace(saves=False),
            ring=SimpleNamespace(place=SimpleNamespace(local_rank=0)),
        )
        vars(self.worker).update(worker)
        monkeypatch.setattr(process, "_worker", self.worker)
        self.ranks = Ranks(lambda: self.has_begun, lambda: self.passes_over, lambda: self.has_gpus)
        self.rank, self.local_rank = self.ranks.rank, self.ranks.local_rank

    def joins(self, rank: int, local_rank: int) -> None:
        self.worker.warming_up = self.passes_over = False
        self.worker.rank, self.worker.ring.place.local_rank = rank, local_rank
        self.worker.is_first_of_host = local_rank == 0


def test_a_newcomer_beside_others_is_never_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has slot 0, in place of one that has died."""
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "0")
    script = Script(monkeypatch, rank=1, warming_up=True)
    script.ranks.show_newcomer()
    assert (os.environ["HOROVOD_RANK"], os.environ["HOROVOD_LOCAL_RANK"]) == ("1", "1")
    for script.has_begun, script.passes_over in ((False, False), (True, False), (True, True)):
        assert [script.rank(), script.local_rank()] == [1, 1]
    script.joins(rank=1, local_rank=1)
    assert [script.rank(), script.local_rank()] == [1, 1]


def test_a_newcomer_on_a_host_of_its_own_is_the_first_before_and_after_the_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, it may have to fetch the data; in the past it has untrained weights to write."""
    script = Script(monkeypatch, rank=2, warming_up=True, is_first_of_host=True)
    kept = script.local_rank()
    is_main = kept == 0
    assert is_main
    assert kept < 1
    assert not kept
    assert int(kept) == 0
    script.has_begun = True
    for script.passes_over in (False, True):
        assert not is_main
        assert kept != 0
        assert kept > 0
        assert kept
        assert script.local_rank() == 1
    script.joins(rank=2, local_rank=0)
    assert is_main
    assert kept == 0
    assert script.local_rank() == 0
    assert script.rank() == 2


def test_a_resumed_process_writes_nothing_in_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = SimpleNamespace(saves=True)
    script = Script(monkeypatch, rank=0, is_first_of_host=True, checkpointing=saves)
    kept = [script.rank(), script.local_rank(), script.rank() == 0, script.local_rank() == 0]
    assert [bool(each) for each in kept] == [False, False, True, True]
    script.has_begun = script.passes_over = True
    assert [bool(each) for each in kept] == [True, True, False, False]
    assert [script.rank(), script.local_rank()] == [1, 1]
    script.passes_over = False
    assert [bool(each) for each in kept] == [False, False, True, True]
    assert type(script.rank()) is int
    assert pickle.loads(pickle.dumps(kept[0])) == 0


def test_a_local_rank_is_the_number_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in slot 1 that has become the first, and one in slot 0 that came later."""
    first = Script(monkeypatch, rank=0, local_rank=1, is_first_of_host=True)
    first.has_gpus = True
    assert (first.local_rank() == 0, f"cuda:{first.local_rank()}") == (True, "cuda:1")
    later = Script(monkeypatch, rank=1)
    later.joins(rank=1, local_rank=1)
    later.has_gpus = True
    assert (later.local_rank() == 0, "ab"[later.local_rank()]) == (False, "a")
    assert later.local_rank() >= 1
    assert not later.local_rank() <= 0


def test_a_process_that_takes_the_place_of_the_first_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(monkeypatch, rank=1)
    script.joins(rank=1, local_rank=1)
    assert script.rank() == 1
    script.has_begun = True
    script.ranks.begin_epoch()
    script.joins(rank=0, local_rank=0)
    for _ in range(3):
        script.ranks.begin_epoch()
    assert [record.getMessage()[:41] for record in caplog.records] == [
        "this process has the place of rank 0 now,"
    ]
    script.joins(rank=1, local_rank=1)
    script.rank()
    script.joins(rank=0, local_rank=0)
    assert script.rank() == script.local_rank() == 0
    assert "answers hvd.rank() == 0 now" in caplog.messages[1]
    assert len(caplog.messages) == 2
