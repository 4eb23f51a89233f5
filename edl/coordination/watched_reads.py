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
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback

from edl.coordination.reads import Issue, Read


class WatchedReads:
    """The answers of one session. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Read, Any] = {}
        self._asked: dict[Read, object] = {}  # who has asked last, and still waits

    def answers(
        self, issues: Sequence[Issue], ask: Callable[[Sequence[Issue]], list[Any]]
    ) -> list[Any]:
        """The answers to ``issues``; ``ask`` gets those that are not kept, and may raise."""
        me = object()
        with self._lock:
            watched = {one for one in issues if isinstance(one, Read) and one.wake is not None}
            kept = {read: self._kept[read] for read in watched if read in self._kept}
            new = [read for read in watched if read not in kept]
            self._asked.update(dict.fromkeys(new, me))
        rest = [issue for issue in issues if issue not in kept]
        try:
            found = dict(zip(rest, ask([self._watching(one) for one in rest]), strict=True))
            with self._lock:
                for read in new:
                    answer = found[read]
                    holds = answer is not None or read.watches_absent
                    if holds and self._asked.get(read) is me:
                        self._kept[read] = answer
        finally:
            with self._lock:
                for read in new:
                    if self._asked.get(read) is me:
                        del self._asked[read]
        return [kept[issue] if issue in kept else found[issue] for issue in issues]

    def fired(self, read: Read) -> None:
        """What was read has changed, or the connection is lost."""
        with self._lock:
            self._kept.pop(read, None)
            self._asked.pop(read, None)  # its answer may be from before
        if read.wake is not None:
            read.wake()

    def _watching(self, issue: Issue) -> Issue:
        if isinstance(issue, Read) and issue.wake is not None:
            return partial(issue, watch=Watch(self, issue))
        return issue


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
