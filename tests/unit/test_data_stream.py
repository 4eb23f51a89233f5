"""`edl.data.stream`, and iterable sets that know where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edl.binding.loop import stream_of
from edl.data.stream import MARK_EVERY, MOST_MARKS, StatefulStream, Stream, refuse_in_stream, stream
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

    def __init__(self, samples: int, first: int = 0) -> None:
        self.samples, self.next, self.loads = samples, first, list[int]()

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
    assert others.loads == [0, kept]
    assert newcomer.read(1, 0, 0, 2) == [0, 1], "an epoch begins with its first state"


def test_a_set_that_shuffles_by_epoch_is_told_the_epoch() -> None:
    told: list[int] = []

    class ByEpoch(Numbers):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    source = StatefulStream(ByEpoch(5))
    assert source.read(0, 0, 0, 9) == [0, 1, 2, 3, 4]
    assert source.read(3, 0, 0, 1) == [0]
    assert told == [0, 0, 3], "before it is looked at, too"


class Shuffling(Numbers):
    """In a buffer that is no part of its state."""

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for number in super().__iter__():
            buffer.append(number)
            if len(buffer) == 100:
                yield buffer.pop(number * 31 % 100)
        yield from buffer


class Pending(Numbers):
    """As torchdata's nodes: who has asked for its state gets the iterator that was begun then."""

    pending: Iterator[int] | None = None

    def __iter__(self) -> Iterator[int]:
        pending, self.pending = self.pending, None
        return pending or super().__iter__()

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        if self.next == 0:
            self.pending = super().__iter__()
        return state


@pytest.mark.parametrize("kind", [Numbers, Shuffling, Pending])
def test_who_goes_on_reads_what_all_others_read(kind: type[Numbers]) -> None:
    samples = 5 * MARK_EVERY
    expected = [*StatefulStream(kind(samples)).read(0, 0, 0, samples)]
    assert sorted(expected) == [*range(samples)]
    root = StatefulStream(kind(samples))
    for at in range(0, 3 * MARK_EVERY, 10):
        assert root.read(0, 0, at, 10) == expected[at : at + 10]
    newcomer = StatefulStream(kind(samples))
    newcomer.load_state_dict(root.state_dict())
    for one in (newcomer, root):
        for at in (2 * MARK_EVERY + 500, MARK_EVERY + 3, 0):
            assert one.read(0, 0, at, 9) == expected[at : at + 9]


def test_samples_are_compared_by_what_is_in_them() -> None:
    """An image, a text and a tensor, made anew each time; whose keys are one object or two."""

    class Samples(Numbers):
        def __iter__(self) -> Iterator[Any]:
            for number in super().__iter__():
                key = "".join(["te", "xt"]) if self.loads else "text"
                yield {key: key, "x": torch.full((2,), number), "n": [np.float32(number), None]}

    alike = StatefulStream(Samples(9))
    assert alike.fingerprint != StatefulStream(Samples(9, 1)).fingerprint
    assert [int(sample["x"][0]) for sample in alike.read(0, 0, 6, 9)] == [6, 7, 8]


class Told(torch.utils.data.IterableDataset[int]):
    """As mosaicml-streaming's StreamingDataset: its loader tells it where it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(9))

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, int]:
        return {"sample_in_epoch": num_samples}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class Numbered(Told):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> int:
        return number


def test_a_set_whose_loader_tells_it_where_it_is_is_refused() -> None:
    need = r"\.state_dict\(\) needs num_samples and from_beginning, which a loader of its own"
    with pytest.raises(UsageError, match=f"Told{need}.*edl.data.stream"):
        stream_of(Told())
    with pytest.raises(UsageError, match=f"Numbered{need}.*streaming.LocalDataset"):
        stream_of(Numbered())
    assert isinstance(stream_of(Numbers(9)), StatefulStream)


def test_a_set_that_does_not_begin_alike_is_refused() -> None:
    class Endless(Numbers):
        def load_state_dict(self, state: dict[str, int]) -> None:
            """Do nothing: the set is read on from where it is."""

    with pytest.raises(UsageError, match="a Endless does not begin with the same samples when"):
        StatefulStream(Endless(100))
    told = {StatefulStream(Numbers(9, first)).fingerprint for first in (0, 0, 3)}
    assert len(told) == 2, "workers that read other samples"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UsageError("not now"), OSError("gone")])
def test_what_is_half_read_is_no_end_of_a_shard(error: BaseException) -> None:
    breaks = [True]

    def read(_shard: int) -> Iterator[int]:
        for number in range(9):
            if number == 4 and breaks and breaks.pop():
                raise error
            yield number

    source = stream([0], read)
    assert source.read(0, 0, 0, 3) == [0, 1, 2]
    with pytest.raises(type(error)):
        source.read(0, 0, 3, 9)
    assert source.read(0, 0, 3, 9) == [3, 4, 5, 6, 7, 8]


def test_a_second_parameter_is_an_offset_if_it_has_to_be_given() -> None:
    def with_option(shard: str, skip_header: bool = True) -> list[str]:
        assert skip_header is True
        return [f"{shard}{n}" for n in range(10)]

    def with_offset(shard: str, offset: int = 0) -> list[str]:
        return with_option(shard)[offset:]

    def starred(*given: Any) -> list[str]:
        return with_offset(*given)

    def named(shard: str, *, offset: int = 0) -> list[str]:
        return with_offset(shard, offset)

    def named_after_others(shard: str, *given: Any, mode: str = "r", offset: int) -> list[str]:
        assert (given, mode) == ((), "r")
        return with_offset(shard, offset)

    for read in (with_option, with_offset, starred, named, named_after_others):
        assert stream(["a"], read).read(0, 0, 7, 9) == ["a7", "a8", "a9"], read.__name__


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
    here = Stream(["/data/a.tar", Path("/data/b.tar"), 3, ["/data/c"]], iter)
    there = Stream(["/mnt/a.tar", Path("/mnt/b.tar"), 3, ["/mnt/c"]], iter)
    other = Stream(["/data/b.tar", Path("/data/a.tar"), 3, ["/data/c"]], iter)
    another = Stream(["/data/a.tar", Path("/data/b.tar"), 3, ["/data/d"]], iter)
    assert here.fingerprint == there.fingerprint
    assert len({one.fingerprint for one in (here, other, another)}) == 3
    assert here.fingerprint.startswith("a stream of 4 shards")
