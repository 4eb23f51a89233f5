"""Iterable sets that know where they are, by torchdata's convention, as a stream."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edl.data.stream import ShardReader, reading
from edl.errors import UsageError

MARK_EVERY = 1000  # samples between two states that are kept
MOST_MARKS = 16
HEAD = 4  # samples that tell whether a set goes on where it was


class Stateful(Protocol):
    """An iterable set that can go on where another one is, as torchdata's StatefulDataLoader asks.

    The state that it has after n samples lets another one begin with the next.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


@dataclass
class _Mark:
    """The state of a stateful set after ``at`` samples, and digests of those that followed."""

    at: int
    state: Any
    followed: list[str]


class StatefulStream(ShardReader):
    """An iterable set as a stream that all workers read, each for its own batches.

    Of its states some are kept, so that who has to read an earlier sample, or comes later, need not
    begin at the first. They follow the job as a tracked object. A state is believed when the
    samples after it are those that followed it before: sets that shuffle in a buffer leave the
    buffer out of their states.

    Raises:
        UsageError: it does not begin with the same samples each time.
    """

    shared = True
    edl_compared = False

    def __init__(self, dataset: Stateful) -> None:
        super().__init__()
        self._dataset = dataset
        self._epoch = -1
        self._marks: list[_Mark] = []  # of this epoch
        self._state_from = 0  # the set's state is that of the samples read, from this one on
        with reading():
            self._tell_epoch(0)
            self._first = copy.deepcopy(dataset.state_dict())
            begins = _digests(self._go_on(None)[0])
            again = _digests(self._go_on(self._first)[0])
        if begins != again:
            raise UsageError(
                f"{self._named(0)} does not begin with the same samples when it is read again from "
                "its first state, so nobody could tell which of them are trained; give it as it "
                "was made, with a seed for its order, and change samples at random in collate_fn"
            )
        self._begins = begins

    @property
    def count(self) -> int:
        return 1

    @property
    def fingerprint(self) -> str:
        return f"{self._named(0)} that begins with samples of digest {'-'.join(self._begins)}"

    def state_dict(self) -> dict[str, Any]:
        marks = [[mark.at, mark.state, mark.followed] for mark in self._marks if mark.followed]
        return {"first": self._first, "epoch": self._epoch, "marks": marks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._close()
        self._epoch = state["epoch"]
        self._marks = [_Mark(at, kept, list(digests)) for at, kept, digests in state["marks"]]

    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        if epoch != self._epoch:
            self._epoch, self._marks = epoch, []
        self._tell_epoch(epoch)
        while earlier := [mark for mark in self._marks if mark.at <= offset and mark.followed]:
            mark = max(earlier, key=lambda one: one.at)
            head, rest = self._go_on(mark.state)
            if _digests(head[: len(mark.followed)]) == mark.followed:
                return self._from(mark.at, head, rest)
            self._marks.remove(mark)
        return self._from(0, *self._go_on(self._first))

    def _take(self, count: int) -> list[Any]:
        begin, taken = self._at, super()._take(count)
        for mark in self._marks:
            missing = mark.at + len(mark.followed) - begin
            if len(mark.followed) < HEAD and 0 <= missing < len(taken):
                mark.followed += _digests(taken[missing : missing + HEAD - len(mark.followed)])
        last = max((mark.at for mark in self._marks), default=0)
        if len(taken) == count and self._at >= max(last + MARK_EVERY, self._state_from):
            self._marks.append(_Mark(self._at, copy.deepcopy(self._dataset.state_dict()), []))
            if len(self._marks) > MOST_MARKS:
                del self._marks[1::2]
        return taken

    def _go_on(self, state: Any) -> tuple[list[Any], Iterator[Any]]:
        """The first samples after ``state`` (None: as it is), and the others."""
        if state is not None:
            self._dataset.load_state_dict(copy.deepcopy(state))
        samples = iter(self._dataset)
        return list(itertools.islice(samples, HEAD)), samples

    def _from(self, at: int, head: list[Any], rest: Iterator[Any]) -> tuple[int, Any]:
        self._state_from = at + len(head)
        return at, itertools.chain(head, rest)

    def _tell_epoch(self, epoch: int) -> None:
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(epoch)

    def _named(self, shard: int) -> str:
        return f"a {type(self._dataset).__name__}"


def _digests(samples: list[Any]) -> list[str]:
    """What tells samples apart; the same for those that have nothing to compare."""
    return [hashlib.sha256(repr(_content(each)).encode()).hexdigest()[:8] for each in samples]


def _content(value: Any) -> Any:
    """``value`` as plain values, equal for equal ones; a pickle depends on who shares an object."""
    if isinstance(value, dict):
        return [(_content(key), _content(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_content(item) for item in value]
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    try:
        array = np.asarray(value)  # of a tensor, too
    except Exception:  # noqa: BLE001 - whatever a sample's own code raises
        array = np.empty(0, dtype=object)
    if array.dtype == object:
        return type(value).__name__
    return (str(array.dtype), array.shape, array.tobytes())
