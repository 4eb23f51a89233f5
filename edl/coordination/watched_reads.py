"""Keep the answers to reads until their watches fire, so that only what has changed is read again.

A job of a thousand workers has thousands of nodes, and its leader, each agent and each worker look
at their part of the nodes every half second. While nothing changes, that costs ZooKeeper nothing.
When one worker changes, it costs each reader the read of that worker's node.

ZooKeeper tells a client of a change before it answers any request that was made after the change,
and kazoo reads both from one connection. The watches of this module run there, in that order
(:class:`InOrder`): a caller that has an answer, for instance to its own write, gets no older answer
from here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from kazoo.protocol.states import Callback

from edl.coordination.kazoo_client import PollHandler, SignalSafeSocket
from edl.coordination.multi_read import WatchedRead
from edl.coordination.reads import Issue, Read

UNKNOWN = object()  # no answer is kept


class WatchedReads:
    """A cache of the answers to reads of one session that set a watch, until the watch fires."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Issue, Any] = {}  # reads with a watch
        self._asked: dict[Issue, object] = {}  # the call that asked last, while it waits

    def answers(
        self, issues: Sequence[Issue], ask: Callable[[Sequence[Issue]], list[Any]]
    ) -> list[Any]:
        """Return the answers to `issues` in order; send only those without a kept answer."""
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
        """Drop the answer to `read` that is in memory, and then call the read's `wake`."""
        with self._lock:
            self._kept.pop(read, None)
            self._asked.pop(read, None)  # its answer may be older than this change
        if read.wake is not None:
            read.wake()

    def _watching(self, issue: Issue) -> Issue:
        return WatchedRead(issue, Watch(self, issue)) if _is_watched(issue) else issue


def _is_watched(issue: Issue) -> TypeGuard[Read]:
    return isinstance(issue, Read) and issue.wake is not None


@dataclass(frozen=True)
class Watch:
    """The callback that kazoo calls when the watch of `read` fires."""

    # Equal for equal reads, so that kazoo keeps, and calls, only one of them.
    reads: WatchedReads = field(repr=False)
    read: Read

    def __call__(self, event: object) -> None:
        self.reads.fired(self.read)


class InOrder(PollHandler):
    """kazoo's threads, but a `Watch` runs at once, before a later answer comes."""

    def create_socket_pair(self) -> tuple[Any, SignalSafeSocket]:
        """Return two connected sockets; by the second one, requests wake the connection thread."""
        reads, wakes = super().create_socket_pair()
        return reads, SignalSafeSocket(wakes)

    def dispatch_callback(self, callback: Callback) -> None:
        """Run `callback` at once if it is a `Watch`; else queue it as kazoo does."""
        if isinstance(callback.func, Watch):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)
