"""Make a stream of an iterable data set that can save and load its position.

These are data sets with the methods ``state_dict()`` and ``load_state_dict()``, as torchdata's
StatefulDataLoader needs them. A script gives such a data set to edl's data loader, which makes a
:class:`StatefulStream` of it.
"""

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
    """The interface of an iterable data set whose position can be saved and loaded."""

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the samples, from the data set's position to the epoch's end."""

    def state_dict(self) -> Any:
        """Return the data set's position in its samples."""
        # It is copied, sent to newcomers and written into checkpoints: dicts, lists, tuples, texts,
        # bytes, numbers, booleans, None, and NumPy arrays or the framework's tensors.

    def load_state_dict(self, state: Any) -> None:
        """Go to the position `state`, a result of `state_dict`, perhaps on another worker."""


@dataclass
class _Mark:
    """A state of a data set, kept to read again from its position."""

    at: int  # samples of the epoch before it
    state: Any  # the data set's `state_dict()`
    # digests of the next `HEAD` samples, or fewer yet, by which the state is checked
    followed: list[str]


class StatefulStream(ShardReader):
    """A stream of an iterable data set: all workers read all samples, and each trains its own."""

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
        """The number of shards, which is 1: the data set is not divided into files or the like."""
        return 1

    @property
    def fingerprint(self) -> str:
        """One line with the type of the data set and digests of its first samples."""
        return f"{self._named(0)} that begins with samples of digest {'-'.join(self._begins)}"

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the kept states of the data set, for newcomers and checkpoints."""
        marks = [[mark.at, mark.state, mark.followed] for mark in self._marks if mark.followed]
        return {"first": self._first, "epoch": self._epoch, "marks": marks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the epoch and the kept states by those of `state` (see `state_dict`)."""
        self._close()
        self._epoch = state["epoch"]
        self._marks = [_Mark(at, kept, list(digests)) for at, kept, digests in state["marks"]]

    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        """Load the last usable state at or before a sample, and return the samples from there."""
        if epoch != self._epoch:
            self._epoch, self._marks = epoch, []
        self._tell_epoch(epoch)
        while earlier := [mark for mark in self._marks if mark.at <= offset and mark.followed]:
            mark = max(earlier, key=lambda one: one.at)
            head, rest = self._go_on(mark.state)
            # A data set that shuffles in a buffer may leave that out of its state.
            if _digests(head[: len(mark.followed)]) == mark.followed:
                return self._from(mark.at, head, rest)
            self._marks.remove(mark)
        return self._from(0, *self._go_on(self._first))

    def _take(self, count: int) -> list[Any]:
        """Return the next `count` samples; fewer, or none, at the end of the epoch."""
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
        """Load a copy of `state` into the data set; return (its next samples, an iterator)."""
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
    return [hashlib.sha256(repr(_content(each)).encode()).hexdigest()[:8] for each in samples]


def _content(value: Any) -> Any:
    """Return a sample as plain values, equal for equal samples, as pickles may not be."""
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
