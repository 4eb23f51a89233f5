"""Streams: samples that are read in order, shard by shard, from data without numbered records.

A worker reads its shards one after the other, each from the sample at which the job is in it. What
is read is the same for everybody, and the job's ledger says who trains it
(:mod:`edl.core.step.stream`).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edl.errors import UsageError

Open = Callable[..., Iterable[Any]]

MARK_EVERY = 1000  # samples of a stateful set between two of its states that are kept
MOST_MARKS = 16
HEAD = 4  # samples that tell whether a set goes on where it was

_here = threading.local()


class Stateful(Protocol):
    """An iterable set that can go on where another one is, as torchdata's StatefulDataLoader asks.

    The state that it has after n samples lets another one begin with the next.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


def stream(shards: Sequence[Any], open: Open, parse: Callable[[Any], Any] | None = None) -> Stream:
    """Samples in ``shards`` whose lengths nobody needs to know.

    Args:
        shards: names of files, or whatever ``open`` takes; the same on all workers.
        open: ``open(shard, offset)`` gives the samples of a shard from number ``offset`` on, in an
            order that is the same each time; ``open(shard)`` gives all, and the first ``offset``
            are read for nothing. A second parameter with a default is no offset, unless that is
            its name.
        parse: makes what the script sees of a sample; in the loader's processes, if there are any.

    Raises:
        UsageError: an argument cannot be used.
    """
    return Stream(shards, open, parse)


class Stream:
    """See :func:`stream`. Reads one shard at a time, in the thread that trains."""

    shared = False

    def __init__(
        self, shards: Sequence[Any], open: Open, parse: Callable[[Any], Any] | None = None
    ) -> None:
        if isinstance(shards, str | bytes) or not isinstance(shards, Iterable):
            raise UsageError(
                "edl.data.stream takes a list of shards, and a function that opens one"
            )
        if not callable(open) or not (parse is None or callable(parse)):
            raise UsageError("edl.data.stream takes a function open(shard, offset), and a parse")
        self.shards = list(shards)
        self.parse = parse
        self._open = open
        self._seeks = _takes_two(open)
        self._place: tuple[int, int] | None = None  # epoch and shard that are open
        self._at = 0  # the number of the next sample
        self._samples: Iterator[Any] = iter(())

    @property
    def fingerprint(self) -> str:
        """One line that differs where the shards do, as far as their names tell."""
        names = [_name_of(shard) for shard in self.shards]
        digest = hashlib.sha256(repr(names).encode()).hexdigest()[:16]
        return f"a stream of {len(names)} shards, with names of digest {digest}"

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[Any]:
        """See :class:`edl.daemon.stream_sampler.Reader`.

        Raises:
            UsageError: ``open`` gives nothing that can be read.
            Exception: whatever the script's code raises, with a note of shard and sample.
        """
        with _reading():
            try:
                if self._place != (epoch, shard) or self._at > offset:
                    self._close()
                    self._at, samples = self._begin(epoch, shard, offset)
                    self._samples = _iterated(samples)
                    self._place = epoch, shard
                while self._at < offset:
                    if not self._take(min(offset - self._at, MARK_EVERY)):
                        break
                read: list[Any] = []
                while len(read) < count:
                    more = self._take(min(count - len(read), MARK_EVERY))
                    if not more:
                        break
                    read += more
                return read
            except BaseException as error:  # what is half read is no end of a shard
                self._close()
                error.add_note(f"while reading sample {self._at} of {self._named(shard)}")
                raise

    def _take(self, count: int) -> list[Any]:
        taken = list(itertools.islice(self._samples, count))
        self._at += len(taken)
        return taken

    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        """Samples of a shard, and the number of the first of them, ``offset`` or less."""
        if self._seeks:
            return offset, self._open(self.shards[shard], offset)
        return 0, self._open(self.shards[shard])

    def _named(self, shard: int) -> str:
        return f"shard {self.shards[shard]!r}"

    def _close(self) -> None:
        self._place = None
        if callable(close := getattr(self._samples, "close", None)):
            close()
        self._samples = iter(())


@dataclass
class _Mark:
    """The state of a stateful set after ``at`` samples, and digests of those that followed."""

    at: int
    state: Any
    followed: list[str]


class StatefulStream(Stream):
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
        super().__init__([type(dataset).__name__], lambda _: (), None)
        self._dataset = dataset
        self._epoch = -1
        self._marks: list[_Mark] = []  # of this epoch
        self._state_from = 0  # the set's state is that of the samples read, from this one on
        with _reading():
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
        return f"a {self.shards[shard]}"


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


def refuse_in_stream(what: str) -> None:
    """Raise UsageError in code that reads a stream: it must read the same on all workers."""
    if getattr(_here, "reading", False):
        raise UsageError(
            f"the stream asks for {what}; all workers must read the same samples, and edl shares "
            "them out: leave out what divides them among ranks"
        )


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    _here.reading = True
    try:
        yield
    finally:
        _here.reading = False


def _name_of(shard: Any) -> Any:
    """What is the same on hosts that have the data in other folders."""
    if isinstance(shard, str | os.PathLike):
        return os.path.basename(os.fspath(shard))
    if isinstance(shard, list | tuple):
        return [_name_of(each) for each in shard]
    if isinstance(shard, dict):
        return [(key, _name_of(each)) for key, each in shard.items()]
    return shard if isinstance(shard, int) else type(shard).__name__


def _iterated(samples: Any) -> Iterator[Any]:
    try:
        return iter(samples)
    except TypeError:
        raise UsageError(
            f"open() of edl.data.stream has returned a {type(samples).__name__}, which cannot be "
            "iterated; let it return or yield samples"
        ) from None


def _takes_two(open: Open) -> bool:
    """Whether it takes an offset."""
    try:
        parameters = [*inspect.signature(open).parameters.values()]
    except (TypeError, ValueError):  # of a built-in
        return False
    if any(each.kind is each.VAR_POSITIONAL for each in parameters[:2]):
        return True
    second = next(iter(parameters[1:2]), None)
    return second is not None and (
        second.name == "offset"
        or (second.default is second.empty and second.kind is second.POSITIONAL_OR_KEYWORD)
        or (second.default is second.empty and second.kind is second.POSITIONAL_ONLY)
    )
