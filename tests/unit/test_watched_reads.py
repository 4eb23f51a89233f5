"""Who looks again asks only for what has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from edl.zookeeper.reads import (
    InOrder,
    Issue,
    Watch,
    WatchedRead,
    WatchedReads,
    children,
    delete_node,
    exists,
    get,
)


class Asked:
    def __init__(self, **nodes: Any) -> None:
        self.reads = WatchedReads()
        self.nodes = nodes
        self.sent: list[str] = []
        self.watches: list[Watch] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def look(self, *issues: Issue) -> list[Any]:
        return self.reads.answers(issues, self._ask)

    def _ask(self, issues: Sequence[Issue]) -> list[Any]:
        return [self._answer(issue) for issue in issues]

    def _answer(self, issue: Any) -> Any:
        if isinstance(issue, WatchedRead):
            read = issue.read
            assert isinstance(issue.watch, Watch)
            self.watches.append(issue.watch)
        else:
            read = issue
        name = getattr(read, "path", "other")
        self.sent.append(name)
        return self.nodes.get(name)


def test_a_watched_answer_holds_until_its_watch_fires() -> None:
    asked = Asked(a=1, b=2)
    a, b = get("a", asked.wake), get("b", asked.wake)
    assert asked.look(a, b) == asked.look(a, b) == [1, 2]
    assert asked.sent == ["a", "b"]
    asked.nodes["a"] = 3
    asked.watches[0](None)
    assert asked.woken == 1
    assert asked.look(b, a) == [2, 3]
    assert asked.sent == ["a", "b", "a"]


def test_a_read_without_a_watch_is_sent_each_time() -> None:
    asked = Asked(a=1)
    assert asked.look(get("a"), get("a", asked.wake)) == [1, 1]
    assert asked.look(get("a"), get("a", asked.wake)) == [1, 1]
    assert asked.sent == ["a", "a", "a"]


def test_other_requests_go_through() -> None:
    asked = Asked(other=7)
    drop = delete_node("a")
    assert asked.look(drop) == asked.look(drop) == [7]
    assert asked.sent == ["other", "other"]


def test_what_is_read_of_a_node_is_kept_apart() -> None:
    asked = Asked(a=1)
    assert asked.look(get("a", asked.wake), children("a", asked.wake)) == [1, 1]
    assert asked.sent == ["a", "a"]


def test_a_node_that_is_not_there_is_asked_for_again_unless_it_is_watched() -> None:
    """ZooKeeper watches a missing node for `exists` only."""
    asked = Asked()
    assert asked.look(get("a", asked.wake), exists("b", asked.wake)) == [None, None]
    assert asked.look(get("a", asked.wake), exists("b", asked.wake)) == [None, None]
    assert asked.sent == ["a", "b", "a"]


def test_a_watch_that_fires_before_its_answer_is_seen_leaves_nothing() -> None:
    asked = Asked(a=1)
    read = get("a", asked.wake)

    def ask(issues: Sequence[Issue]) -> list[Any]:
        found = asked._ask(issues)
        asked.watches[-1](None)
        return found

    assert asked.reads.answers([read], ask) == [1]
    asked.nodes["a"] = 2
    assert asked.look(read) == [2]


def test_of_two_that_ask_at_once_the_later_is_kept() -> None:
    asked = Asked(a="new")
    read = get("a", asked.wake)

    def old(issues: Sequence[Issue]) -> list[Any]:
        assert asked.look(read) == ["new"]
        return ["old"]

    assert asked.reads.answers([read], old) == ["old"]
    assert asked.look(read) == ["new"]


def test_a_request_that_fails_leaves_nothing() -> None:
    asked = Asked(a=1)
    read = get("a", asked.wake)

    def fail(_: Sequence[Issue]) -> list[Any]:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        asked.reads.answers([read], fail)
    assert asked.look(read) == [1]
    assert asked.sent == ["a"]


def test_our_watches_run_before_kazoo_goes_on() -> None:
    """The thread of the connection runs them, so no later answer is known before."""
    asked = Asked(a=1)
    asked.look(get("a", asked.wake))
    handler = InOrder()  # not started: its queue would be worked off by a thread of its own
    handler.dispatch_callback(_Callback(asked.watches[0]))
    assert asked.woken == 1
    others: list[int] = []
    handler.dispatch_callback(_Callback(others.append))
    assert others == []


class _Callback:
    def __init__(self, func: Any) -> None:
        self.func = func
        self.args = (None,)
