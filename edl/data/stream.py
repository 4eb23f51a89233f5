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
from typing import Any, Protocol

from edl.errors import EdlError, UsageError

Open = Callable[..., Iterable[Any]]

MARK_EVERY = 1000  # samples of a stateful set between two of its states that are kept
MOST_MARKS = 16

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
            are read for nothing.
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
            except EdlError:
                raise
            except Exception as error:
                self._place = None
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


class StatefulStream(Stream):
    """An iterable set as a stream that all workers read, each for its own batches.

    Of its states some are kept, so that who has to read an earlier sample, or comes later, need not
    begin at the first. They follow the job as a tracked object.
    """

    shared = True
    edl_compared = False

    def __init__(self, dataset: Stateful) -> None:
        super().__init__([type(dataset).__name__], lambda _: (), None)
        self._dataset = dataset
        self._first = copy.deepcopy(dataset.state_dict())
        self._epoch = -1
        self._marks: list[tuple[int, Any]] = []  # (samples, the state after them) of this epoch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "marks": [list(mark) for mark in self._marks]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._close()
        self._epoch = state["epoch"]
        self._marks = [(at, kept) for at, kept in state["marks"]]

    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        if epoch != self._epoch:
            self._epoch, self._marks = epoch, []
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(epoch)
        at, state = max(
            ((at, state) for at, state in self._marks if at <= offset),
            key=lambda mark: mark[0],
            default=(0, self._first),
        )
        self._dataset.load_state_dict(copy.deepcopy(state))
        return at, self._dataset

    def _take(self, count: int) -> list[Any]:
        last = max((at for at, _ in self._marks), default=0)
        taken = super()._take(count)
        if self._at - last >= MARK_EVERY:
            self._marks.append((self._at, copy.deepcopy(self._dataset.state_dict())))
            if len(self._marks) > MOST_MARKS:
                del self._marks[1::2]
        return taken

    def _named(self, shard: int) -> str:
        return f"the {self.shards[shard]}"


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
        signature = inspect.signature(open)
    except (TypeError, ValueError):  # of a built-in
        return True
    try:
        signature.bind(object(), 0)
    except TypeError:
        return False
    return True
