"""`edl.data.stream`, and iterable sets that know where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.data.stream import (
    MARK_EVERY,
    MOST_MARKS,
    StatefulStream,
    Stream,
    refuse_in_stream,
    stream,
)
from edl.errors import UsageError


class Shards:
    """Ten samples each; it says how it was opened."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, int]] = []

    def seek(self, shard: str, offset: int) -> Iterator[str]:
        self.opened.append((shard, offset))
        return iter([f"{shard}{n}" for n in range(offset, 10)])

    def whole(self, shard: str) -> Iterator[str]:
        return self.seek(shard, 0)


class Numbers:
    """As torchdata's StatefulDataLoader asks: reading it moves it."""

    def __init__(self, samples: int) -> None:
        self.samples, self.next, self.loads = samples, 0, list[int]()

    def __iter__(self) -> Iterator[int]:
        while self.next < self.samples:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]
        self.loads.append(self.next)


def test_a_shard_is_read_on_without_being_opened_again() -> None:
    shards = Shards()
    source = stream(["a", "b"], shards.seek)
    assert source.read(0, 0, 0, 3) == ["a0", "a1", "a2"]
    assert source.read(0, 0, 3, 2) == ["a3", "a4"]
    assert source.read(0, 0, 6, 9) == ["a6", "a7", "a8", "a9"], "another has trained a5"
    assert source.read(0, 0, 10, 1) == []
    assert shards.opened == [("a", 0)]
    assert source.read(0, 0, 8, 1) == ["a8"], "back"
    assert source.read(0, 1, 4, 1) == ["b4"], "begun by another worker"
    assert source.read(1, 1, 5, 1) == ["b5"], "the next epoch"
    assert shards.opened[1:] == [("a", 8), ("b", 4), ("b", 5)]


def test_who_cannot_begin_in_the_middle_is_read_from_the_beginning() -> None:
    shards = Shards()
    assert stream(["a"], shards.whole).read(0, 0, 7, 9) == ["a7", "a8", "a9"]
    assert shards.opened == [("a", 0)]


def test_a_stateful_set_goes_on_from_a_state_that_it_has_kept() -> None:
    numbers = Numbers(40 * MARK_EVERY)
    source = StatefulStream(numbers)
    for at in range(0, 30 * MARK_EVERY, MARK_EVERY):
        assert source.read(0, 0, at, 2) == [at, at + 1]
    numbers.loads.clear()
    assert source.read(0, 0, 20 * MARK_EVERY + 5, 1) == [20 * MARK_EVERY + 5]
    (kept,) = numbers.loads
    assert 10 * MARK_EVERY < kept <= 20 * MARK_EVERY + 5
    assert len(source.state_dict()["marks"]) <= MOST_MARKS
    others = Numbers(40 * MARK_EVERY)
    newcomer = StatefulStream(others)
    newcomer.load_state_dict(source.state_dict())
    assert newcomer.read(0, 0, 20 * MARK_EVERY, 1) == [20 * MARK_EVERY]
    assert others.loads == [kept]
    assert newcomer.read(1, 0, 0, 2) == [0, 1], "an epoch begins with its first state"


def test_a_set_that_shuffles_by_epoch_is_told_the_epoch() -> None:
    told: list[int] = []

    class ByEpoch(Numbers):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    source = StatefulStream(ByEpoch(5))
    assert source.read(0, 0, 0, 9) == [0, 1, 2, 3, 4]
    assert source.read(3, 0, 0, 1) == [0]
    assert told == [0, 3]


def test_what_divides_samples_among_ranks_is_refused() -> None:
    def open_part(_shard: int, _offset: int) -> Iterator[int]:
        refuse_in_stream("edl.rank()")
        yield 0

    refuse_in_stream("edl.rank()")
    with pytest.raises(UsageError, match=r"^the stream asks for edl\.rank\(\); all workers must"):
        stream([0], open_part).read(0, 0, 0, 1)
    refuse_in_stream("edl.rank()")


def test_an_error_tells_where_it_was() -> None:
    def broken(_shard: str) -> Iterator[int]:
        yield 0
        raise OSError("the disk is gone")

    source = stream(["a.tar"], broken)
    assert source.read(0, 0, 0, 1) == [0]
    with pytest.raises(OSError, match="the disk is gone") as raised:
        source.read(0, 0, 1, 1)
    assert raised.value.__notes__ == ["while reading sample 1 of shard 'a.tar'"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("a.tar", iter), "takes a list of shards"),
        ((7, iter), "takes a list of shards"),
        ((["a.tar"], "open"), "takes a function open"),
        ((["a.tar"], iter, 3), "takes a function open"),
    ],
)
def test_wrong_arguments_are_told(arguments: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Stream(*arguments)


def test_what_is_opened_must_have_samples() -> None:
    with pytest.raises(UsageError, match="has returned a NoneType, which cannot be iterated"):
        stream(["a"], lambda *_: None).read(0, 0, 0, 1)


def test_hosts_may_have_the_shards_in_other_folders() -> None:
    here = Stream(["/data/a.tar", Path("/data/b.tar"), 3], iter)
    there = Stream(["/mnt/a.tar", Path("/mnt/b.tar"), 3], iter)
    other = Stream(["/data/b.tar", Path("/data/a.tar"), 3], iter)
    assert here.fingerprint == there.fingerprint != other.fingerprint
    assert here.fingerprint.startswith("a stream of 3 shards")
