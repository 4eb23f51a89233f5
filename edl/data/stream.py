"""Read streams: samples in order, shard by shard, from data without numbered records.

A shard is a part of the data that is read from its beginning, such as a file. The samples of a
shard are the same on every worker; the job's ledger says which worker trains which of them
(:mod:`edl.step.source`). A worker reads the shards that the ledger has leased to it one after
the other, each from its first sample that is not trained yet. Scripts make a :class:`Stream` with
:func:`stream`; edl's loader calls its :meth:`~ShardReader.read`.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np

from edl.errors import UsageError

Open = Callable[..., Iterable[Any]]
CHUNK = 1000  # samples that are read at once
_here = threading.local()


def stream(shards: Sequence[Any], open: Open, parse: Callable[[Any], Any] | None = None) -> Stream:
    """Return a stream of the samples in ``shards``, whose lengths need not be known.

    The script gives it to edl's data loader in place of a data set. This call opens nothing.

    Args:
        shards: names of files, or whatever ``open`` accepts; the same on all workers.
        open: a function ``open(shard, offset)`` that returns the samples of a shard from number
            ``offset`` on, in an order that is the same each time. Or ``open(shard)``, which returns
            all samples; the first ``offset`` of them are then read and dropped. A second parameter
            with a default is taken for an offset only if its name is ``offset``. So is a parameter
            ``offset`` that is given by its name, ``open(shard, *, offset)``.
        parse: a function of a sample that returns what the script sees; it runs in the loader's
            processes, if there are any. None: the sample itself.

    Raises:
        UsageError: if ``shards`` is text or cannot be iterated, or if ``open`` or ``parse`` is no
            function.
    """
    return Stream(shards, open, parse)


class ShardReader(ABC):
    """A reader of samples, one shard at a time, in the training thread.

    It is the base class of :class:`Stream` and
    :class:`~edl.data.stream.StatefulStream`; :meth:`read` gets the samples.

    Attributes:
        count: the number of shards that the data have; 1 if they are not divided.
        fingerprint: one line of text; if it differs between two workers, their data differ. Workers
            with different data may still have the same line.
        shared: whether all workers read all of the data, which is then a single shard.
        parse: a function of a sample that returns what the script sees, which the loader calls,
            and :meth:`read` does not; None: the script sees the sample itself.
    """

    count: int
    fingerprint: str
    shared = False
    parse: Callable[[Any], Any] | None = None

    def __init__(self) -> None:
        self._place: tuple[int, int] | None = None  # epoch and shard that are open
        self._at = 0  # the number of the next sample
        self._samples: Iterator[Any] = iter(())

    @abstractmethod
    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        """Open a shard; return (the number of the first sample, the samples from it on)."""

    @abstractmethod
    def _named(self, shard: int) -> str:
        """Return the name of the shard with the index `shard` (from 0), for error messages."""

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[Any]:
        """Return up to ``count`` samples of a shard, in order, from ``offset`` on, not parsed.

        The shard stays open, so a call that goes on where the last one ended reads on. Any other
        call closes it and opens the one that is asked for. This implements the interface
        :class:`edl.worker.sampler.StreamReader`.

        Args:
            epoch: the epoch, from 0.
            shard: the index of the shard.
            offset: the number of the first sample, counted in the shard from 0.
            count: how many samples to read at most.

        Returns:
            The samples; fewer than ``count``, perhaps none, at the end of the shard.

        Raises:
            UsageError: if what the script's ``open`` has returned cannot be iterated.
            Exception: any error of the script's code, with a note that names the shard and the
                sample.
        """
        with reading():
            try:
                if self._place != (epoch, shard) or self._at > offset:
                    self._close()
                    self._at, samples = self._begin(epoch, shard, offset)
                    self._samples = _iterated(samples)
                    self._place = epoch, shard
                while self._at < offset:
                    if not self._take(min(offset - self._at, CHUNK)):
                        break
                read: list[Any] = []
                while len(read) < count:
                    more = self._take(min(count - len(read), CHUNK))
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

    def _close(self) -> None:
        self._place = None
        if callable(close := getattr(self._samples, "close", None)):
            close()
        self._samples = iter(())


class _Offset(Enum):
    """How a script's function that opens a shard takes the number of the first sample."""

    NONE = "it takes none"
    SECOND = "as its second argument"
    NAMED = "as the argument offset=..."


class Stream(ShardReader):
    """A stream of shards that a script's function opens; :func:`stream` makes it.

    ``shards`` is the list of the shards. ``open(shard, offset)`` or ``open(shard)`` is the script's
    function that returns the samples of a shard. ``parse`` is its function of a sample, or None.

    Raises:
        UsageError: if ``shards`` is text or cannot be iterated, or if ``open`` or ``parse`` is no
            function.
    """

    def __init__(
        self, shards: Sequence[Any], open: Open, parse: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__()
        if isinstance(shards, str | bytes) or not isinstance(shards, Iterable):
            raise UsageError(
                "edl.data.stream takes a list of shards, and a function that opens one"
            )
        if not callable(open) or not (parse is None or callable(parse)):
            raise UsageError("edl.data.stream takes a function open(shard, offset), and a parse")
        self.shards = list(shards)
        self.count = len(self.shards)
        # Names without folders, in which the data may lie elsewhere on another host.
        names = [_name_of(shard) for shard in self.shards]
        digest = hashlib.sha256(repr(names).encode()).hexdigest()[:16]
        self.fingerprint = f"a stream of {self.count} shards, with names of digest {digest}"
        self.parse = parse
        self._open = open
        self._offset = _offset_of(open)

    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        if self._offset is _Offset.SECOND:
            return offset, self._open(self.shards[shard], offset)
        if self._offset is _Offset.NAMED:
            return offset, self._open(self.shards[shard], offset=offset)
        return 0, self._open(self.shards[shard])

    def _named(self, shard: int) -> str:
        return f"shard {self.shards[shard]!r}"


def refuse_in_stream(what: str) -> None:
    """Refuse, while a stream is read, what differs between workers: all must read the same."""
    if getattr(_here, "reading", False):
        raise UsageError(
            f"the stream asks for {what}; all workers must read the same samples, and edl shares "
            "them out: leave out what divides them among ranks"
        )


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Mark this thread as reading a stream of the script during the `with` block."""
    before = getattr(_here, "reading", False)  # a stream may read another one
    _here.reading = True
    try:
        yield
    finally:
        _here.reading = before


def _name_of(shard: Any) -> Any:
    """Return a name of `shard` that does not depend on the folder in which the data lie."""
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


def _offset_of(open: Open) -> _Offset:
    """Return how the script's `open` takes an offset: by name, as its second argument, or not."""
    try:
        parameters = [*inspect.signature(open).parameters.values()]
    except (TypeError, ValueError):  # of a built-in
        return _Offset.NONE
    if any(each.kind is each.KEYWORD_ONLY and each.name == "offset" for each in parameters):
        return _Offset.NAMED
    if any(each.kind is each.VAR_POSITIONAL for each in parameters[:2]):
        return _Offset.SECOND
    second = next(iter(parameters[1:2]), None)
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    is_offset = second is not None and (
        second.name == "offset" or (second.default is second.empty and second.kind in positional)
    )
    return _Offset.SECOND if is_offset else _Offset.NONE


# ------------------------------------------------------------
# Make a stream of an iterable data set that can save and load its position.
#
# These are data sets with the methods `state_dict()` and `load_state_dict()`, as torchdata's
# StatefulDataLoader needs them. A script gives such a data set to edl's data loader, which makes a
# `StatefulStream` of it.

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
    at: int  # samples of the epoch before it
    state: Any  # the data set's `state_dict()`
    # digests of the next `HEAD` samples, or fewer yet, by which the state is checked
    followed: list[str]


class StatefulStream(ShardReader):
    """A stream of an iterable data set: all workers read all samples, and each trains its own."""

    count = 1
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
        self.fingerprint = f"{self._named(0)} that begins with samples of digest {'-'.join(begins)}"

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
