"""A leader's reader of jobs: what has not changed is not read again, and no change is missed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.lifecycle import JobLifecycle
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import ClusterPaths
from edl.cluster.records import Wanted
from edl.cluster.store import JobReader
from edl.errors import CoordinationError
from edl.zookeeper.reads import CHILDREN, Read, encode


class Nodes:
    """The nodes of a cluster, which call the watches of reads when they change.

    Attributes:
        asked: the paths that were read since the last call of `reads`.
        before_answers: called before the next answers, once.
        is_away: whether reads fail.
    """

    def __init__(self) -> None:
        self.paths = ClusterPaths("lab")
        self.asked: list[str] = []
        self.before_answers: Callable[[], None] | None = None
        self.is_away = False
        self._data: dict[str, tuple[bytes, int]] = {}  # with the number of the submission
        self._watches: dict[str, set[Callable[[], None]]] = {}

    def read(self, *reads: Read) -> list[Any]:
        if self.is_away:
            raise CoordinationError("ZooKeeper is away")
        answers = [self._answer(one) for one in reads]
        if self.before_answers is not None:
            act, self.before_answers = self.before_answers, None
            act()
        return answers

    def reads(self) -> set[str]:
        found, self.asked = self.asked, []
        return {path.removeprefix(f"{self.paths.jobs}/").partition("/")[0] for path in found}

    def submit(self, name: str, number: int, np: int = 1) -> None:
        p, manifest = self.paths, JobManifest(name, ("x",), 1, 2, np=np)
        for path, value in (
            (p.job(name), {}),
            (p.manifest(name), manifest.to_json()),
            (p.wanted(name), Wanted().to_json()),
            (p.life(name), JobLifecycle().to_json()),
        ):
            self.put(path, value, number)

    def put(self, path: str, value: Any, number: int = 0) -> None:
        number = number or self._data.get(path, (b"", 1))[1]
        self._data[path] = encode(value), number
        self._fire(path)

    def remove(self, name: str) -> None:
        root = self.paths.job(name)
        for path in [one for one in self._data if one == root or one.startswith(f"{root}/")]:
            del self._data[path]
            self._fire(path)

    def _fire(self, path: str) -> None:
        for node in (path, path.rpartition("/")[0]):
            for wake in self._watches.pop(node, set()):
                wake()

    def _answer(self, read: Read) -> Any:
        self.asked.append(read.path)
        if read.path not in self._data:
            return None
        if read.wake is not None:
            self._watches.setdefault(read.path, set()).add(read.wake)
        if read.method == CHILDREN:
            below = [one for one in self._data if one.startswith(f"{read.path}/")]
            return [one.removeprefix(f"{read.path}/") for one in below]
        data, number = self._data[read.path]
        return data, SimpleNamespace(czxid=number, ctime=1000 * number, version=0)


@pytest.fixture
def nodes() -> Nodes:
    made = Nodes()
    for number, name in enumerate(("a", "b", "c"), 1):
        made.submit(name, number)
    return made


def reader_of(nodes: Any, woken: list[int] | None = None) -> JobReader:
    return JobReader(nodes, lambda: woken.append(1) if woken is not None else None)


def test_only_jobs_that_have_changed_are_read(nodes: Nodes) -> None:
    woken: list[int] = []
    reader = reader_of(nodes, woken)
    first = reader.watched(["a", "b", "c"])
    assert nodes.reads() == {"a", "b", "c"}
    assert reader.watched(["a", "b", "c"]) == first
    assert nodes.reads() == set()
    nodes.put(nodes.paths.wanted("b"), Wanted(priority=3).to_json())
    assert woken
    again = reader.watched(["a", "b", "c"])
    assert nodes.reads() == {"b"}
    assert [job.wanted.priority for job in again] == [0, 3, 0]
    assert [now is before for now, before in zip(again, first, strict=True)] == [True, False, True]
    assert [job.name for job in reader.watched(["a", "c"])] == ["a", "c"]
    reader.watched(["a", "b", "c"])
    assert nodes.reads() == {"b"}, "it was forgotten"


def test_a_change_while_it_is_read_is_read_next(nodes: Nodes) -> None:
    reader = reader_of(nodes)
    nodes.before_answers = lambda: nodes.put(nodes.paths.wanted("a"), Wanted(priority=3).to_json())
    assert [job.wanted.priority for job in reader.watched(["a"])] == [0]
    assert [job.wanted.priority for job in reader.watched(["a"])] == [3]


def test_a_job_that_is_replaced_while_it_is_read_is_read_again(nodes: Nodes) -> None:
    reader = reader_of(nodes)
    nodes.put(nodes.paths.life("a"), JobLifecycle().to_json(), number=9)
    nodes.before_answers = lambda: nodes.submit("a", number=9, np=2)
    [job] = reader.watched(["a"])
    assert (job.manifest.np, job.order) == (2, 9)


def test_what_could_not_be_read_is_read_later(nodes: Nodes) -> None:
    reader = reader_of(nodes)
    reader.watched(["a"])
    reader.secrets_and_measured(["a"])
    nodes.put(nodes.paths.wanted("a"), Wanted(priority=3).to_json())
    nodes.put(nodes.paths.secret("a"), {"secret": "s"})
    nodes.is_away = True
    with pytest.raises(CoordinationError):
        reader.watched(["a"])
    with pytest.raises(CoordinationError):
        reader.secrets_and_measured(["a"])
    nodes.is_away = False
    assert [job.wanted.priority for job in reader.watched(["a"])] == [3]
    assert reader.secrets_and_measured(["a"]) == ({"a": "s"}, {})


def test_secrets_are_read_once_and_when_they_are_written(nodes: Nodes) -> None:
    reader, names = reader_of(nodes), ["a", "b", "c"]
    assert reader.secrets_and_measured(names) == ({}, {})
    nodes.reads()
    nodes.put(nodes.paths.secret("b"), {"secret": "s"})
    assert reader.secrets_and_measured(names) == ({"b": "s"}, {})
    assert nodes.reads() == {"b"}
    assert reader.secrets_and_measured(names) == ({"b": "s"}, {})
    assert nodes.reads() == set()


def test_a_job_that_was_away_is_read_again(nodes: Nodes) -> None:
    """A node that does not exist is not watched, so nothing would tell of its next submission."""
    reader = reader_of(nodes)
    nodes.remove("a")
    assert reader.watched(["a"]) == ()
    assert reader.secrets_and_measured(["a"]) == ({}, {})
    nodes.submit("a", number=2)
    nodes.put(nodes.paths.secret("a"), {"secret": "s"})
    assert [job.order for job in reader.watched(["a"])] == [2]
    assert reader.secrets_and_measured(["a"]) == ({"a": "s"}, {})
