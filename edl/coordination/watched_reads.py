"""Answers that hold until their watches fire: who looks often asks only for what has changed.

A job of a thousand workers has thousands of nodes, and its leader, each agent and each worker look
at theirs every half second. While nothing changes that costs ZooKeeper nothing; when one worker
changes, it costs each of them the read of that worker's node.

ZooKeeper tells a client of a change before it answers any request that was made after it, and
kazoo reads both from one connection. Our watches run there, in that order (:class:`InOrder`): who
has an answer, his own write's for instance, gets no older one from here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback

from edl.coordination.reads import Issue, Read

UNKNOWN = object()  # no answer is kept


class WatchedReads:
    """The answers of one session. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Issue, Any] = {}  # reads with a watch
        self._asked: dict[Issue, object] = {}  # who has asked last, and still waits

    def answers(
        self, issues: Sequence[Issue], ask: Callable[[Sequence[Issue]], list[Any]]
    ) -> list[Any]:
        """The answers to ``issues``; ``ask`` gets those that are not kept, and may raise."""
        me = object()
        with self._lock:
            answers = [self._kept.get(one, UNKNOWN) for one in issues]
            places = [place for place, answer in enumerate(answers) if answer is UNKNOWN]
            rest = [issues[place] for place in places]
            new = [one for one in rest if _is_watched(one)]
            self._asked.update(dict.fromkeys(new, me))
        try:
            asked = ask([self._watching(one) for one in rest])
            with self._lock:
                for place, read, answer in zip(places, rest, asked, strict=True):
                    answers[place] = answer
                    holds = _is_watched(read) and (answer is not None or read.watches_absent)
                    if holds and self._asked.get(read) is me:
                        self._kept[read] = answer
        finally:
            with self._lock:
                for read in new:
                    if self._asked.get(read) is me:
                        del self._asked[read]
        return answers

    def fired(self, read: Read) -> None:
        """What was read has changed, or the connection is lost."""
        with self._lock:
            self._kept.pop(read, None)
            self._asked.pop(read, None)  # its answer may be from before
        if read.wake is not None:
            read.wake()

    def _watching(self, issue: Issue) -> Issue:
        if _is_watched(issue):
            return partial(issue, watch=Watch(self, issue))
        return issue


def _is_watched(issue: Issue) -> TypeGuard[Read]:
    return isinstance(issue, Read) and issue.wake is not None


@dataclass(frozen=True)
class Watch:
    """What kazoo calls. Two of the same read are equal, so kazoo keeps one."""

    reads: WatchedReads = field(repr=False)
    read: Read

    def __call__(self, event: object) -> None:
        self.reads.fired(self.read)


class InOrder(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, but our watches run as they come, before any later answer is known."""

    def dispatch_callback(self, callback: Callback) -> None:
        if isinstance(callback.func, Watch):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)
