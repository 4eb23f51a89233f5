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
    """The interface of an iterable data set whose position can be saved and loaded.

    torchdata defines it: a second copy of the data set that loads the state of the first one
    after n samples yields sample n + 1 next. Any class with these methods has it.
    """

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the samples, from the data set's position to the epoch's end."""

    def state_dict(self) -> Any:
        """Return the data set's position in its samples.

        edl copies the result at once (``copy.deepcopy``), so it may be an object that changes
        later. The copy is sent to newcomers and written into checkpoints: it must consist of dicts,
        lists, tuples, texts, bytes, numbers, booleans, None, and NumPy arrays or the framework's
        tensors. With anything else a checkpoint cannot be saved.
        """

    def load_state_dict(self, state: Any) -> None:
        """Go to the position ``state``, a result of :meth:`state_dict`, perhaps on another worker.

        The next call of ``__iter__`` begins there.
        """


@dataclass
class _Mark:
    """A state of a data set, kept to read again from its position.

    Attributes:
        at: how many samples of the epoch come before the position.
        state: the result of the data set's ``state_dict()`` at the position.
        followed: digests of the next :data:`HEAD` samples, by which the state is checked; fewer
            until they are read, or at the end of the data.
    """

    at: int
    state: Any
    followed: list[str]


class StatefulStream(ShardReader):
    """A stream of an iterable data set: all workers read all samples, and each trains its own.

    About every :data:`MARK_EVERY` (1000) samples the state of the data set is kept, in memory; of
    more than :data:`MOST_MARKS` (16) every second one is dropped. A worker that has to read an
    earlier sample, or joins later, then reads on from a kept state instead of the first sample.
    Newcomers and checkpoints get the kept states (the stream is a tracked object), which are not
    compared between workers (``edl_compared`` is False). A state is used only if the same samples
    follow it as before: a data set that shuffles in a buffer may leave the buffer out of its state,
    and then yields other samples. The constructor reads the first samples twice, to compare them.

    Args:
        dataset: the data set.

    Raises:
        UsageError: if the data set does not begin with the same samples each time.
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
        """The number of shards, which is 1: the data set is not divided into files or the like."""
        return 1

    @property
    def fingerprint(self) -> str:
        """One line with the type of the data set and digests of its first samples.

        If it differs between two workers, their data differ.
        """
        return f"{self._named(0)} that begins with samples of digest {'-'.join(self._begins)}"

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the kept states of the data set, for newcomers and checkpoints.

        The keys are ``first`` (the state before the first sample), ``epoch``, and ``marks`` (for
        each kept state its sample number, the state, and digests of the next samples).
        """
        marks = [[mark.at, mark.state, mark.followed] for mark in self._marks if mark.followed]
        return {"first": self._first, "epoch": self._epoch, "marks": marks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the epoch and the kept states by those of ``state`` (see :meth:`state_dict`).

        The present iterator is closed. The state before the first sample stays this worker's own.
        """
        self._close()
        self._epoch = state["epoch"]
        self._marks = [_Mark(at, kept, list(digests)) for at, kept, digests in state["marks"]]

    def _begin(self, epoch: int, shard: int, offset: int) -> tuple[int, Any]:
        """Load the last usable state at or before a sample, and return the samples from there on.

        A kept state is usable if the same samples follow it as before. One that is tried and is not
        is dropped. Another epoch than the last call's drops all of them.

        Args:
            epoch: the epoch, from 0.
            shard: not used; there is one shard.
            offset: the number of the sample in the epoch, from 0.

        Returns:
            The number of the sample that is read next, 0 without a usable state; and the samples
            from it on.
        """
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
        """Return the next ``count`` samples; fewer, or none, at the end of the epoch.

        Also keep a state of the data set if :data:`MARK_EVERY` samples or more were read since the
        last one kept.
        """
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
        """Load a copy of ``state`` into the data set; return (its next samples, an iterator).

        The first is a list of :data:`HEAD` samples, or fewer at the end of the data; the iterator
        yields the samples after these.

        Args:
            state: a state of the data set; None: leave its position as it is.
        """
        if state is not None:
            self._dataset.load_state_dict(copy.deepcopy(state))
        samples = iter(self._dataset)
        return list(itertools.islice(samples, HEAD)), samples

    def _from(self, at: int, head: list[Any], rest: Iterator[Any]) -> tuple[int, Any]:
        self._state_from = at + len(head)
        return at, itertools.chain(head, rest)

    def _tell_epoch(self, epoch: int) -> None:
        """Call the data set's ``set_epoch(epoch)``; without this method do nothing."""
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(epoch)

    def _named(self, shard: int) -> str:
        return f"a {type(self._dataset).__name__}"


def _digests(samples: list[Any]) -> list[str]:
    """Return for each of ``samples``, in order, a digest of 8 hexadecimal digits.

    Of a value in a sample that cannot be compared, only the type enters the digest.
    """
    return [hashlib.sha256(repr(_content(each)).encode()).hexdigest()[:8] for each in samples]


def _content(value: Any) -> Any:
    """Return a sample, or a value in it, as plain Python values that are equal for equal samples.

    Containers become lists; arrays and tensors become (type, shape, bytes). For a value that cannot
    be compared, the name of its type is returned. Pickles would not serve: those of two equal
    samples may differ.
    """
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
