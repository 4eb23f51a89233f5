"""Which of many jobs have changed since they were read."""

from __future__ import annotations

from edl.cluster.store import WorkQueue


def test_what_has_changed_is_taken_once() -> None:
    calls: list[int] = []
    names = WorkQueue(lambda: calls.append(1))
    wakes = {name: names.wake(name) for name in ("a", "b", "c")}
    assert not names.has_names
    wakes["a"]()
    wakes["a"]()
    wakes["b"]()
    assert len(calls) == 3
    assert names.has_names
    assert names.take() == {"a", "b"}
    assert names.take() == set()
    names.put_back({"b"})
    assert names.take() == {"b"}


def test_each_name_has_one_wake_for_all_its_reads() -> None:
    """Reads are equal if their wakes are, and of equal reads the session keeps the answer."""
    names = WorkQueue()
    first = names.wake("a")
    assert names.wake("a") is first
    assert names.wake("b") is not first
    names.keep_only({"a"})
    assert names.wake("a") is first


def test_what_is_not_asked_for_any_more_is_forgotten() -> None:
    names = WorkQueue()
    old = names.wake("a")
    old()
    names.keep_only({"b"})
    assert names.take() == set()
    assert names.wake("a") is not old
