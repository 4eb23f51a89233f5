"""The end of a job and its event are written together, though the answer to the write is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from made import make_job

from edl.errors import CoordinationError
from edl.events import Event, EvictedDetails, JobFailedDetails
from edl.job.pending_writes import PendingWrites
from edl.job.run import JobEnd
from edl.records import JobState, Member
from edl.worker.shared_state import SharedState
from edl.zookeeper.reads import CHILDREN, Read, encode
from edl.zookeeper.store import JobStore, conclude

REASON = "w0 failed: loss is nan"
FAILED = Event(1.0, 1, 5, REASON, JobFailedDetails())
EVICTED = Event(0.5, 1, 5, "w1 is gone", EvictedDetails("w1"))


class Session:
    """A session with a tree of nodes, whose next transaction is done, but not answered, if told.

    Attributes:
        loses_answer: whether the answer to the next transaction is lost.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.loses_answer = False

    def read_all(self, what: str, reads: Sequence[Read]) -> list[Any]:
        return [self._children(r.path) if r.method == CHILDREN else self._get(r) for r in reads]

    def call(self, what: str, issue: Callable[[Any], Any], repeat: bool = False) -> Any:
        return issue(SimpleNamespace(create_async=self._create))

    def transact(self, what: str, build: Callable[[Any], None]) -> None:
        build(SimpleNamespace(check=self._check, set_data=self._set, create=self._create))
        if self.loses_answer:
            self.loses_answer = False
            raise CoordinationError("the connection broke")

    def _children(self, parent: str) -> list[str]:
        return [path.rsplit("/", 1)[1] for path in self.nodes if path.startswith(f"{parent}/")]

    def _get(self, read: Read) -> Any:
        data = self.nodes.get(read.path)
        return None if data is None else (data, SimpleNamespace(version=0))

    def _check(self, path: str, version: int) -> None:
        """Find each node in its version."""

    def _set(self, path: str, data: bytes, version: int) -> None:
        self.nodes[path] = data

    def _create(self, path: str, data: bytes, **kind: bool) -> str:
        path += f"{len(self._children(path.rsplit('/', 1)[0])):010d}" if "sequence" in kind else ""
        self.nodes[path] = data
        return path


@pytest.fixture
def store() -> JobStore:
    session: Any = Session()
    store = JobStore(session, "digits")
    session.nodes |= dict.fromkeys(store.paths.fixed, b"")
    session.nodes[store.paths.job] = encode(make_job().to_json())
    store.nodes.belong_to("run")
    session.nodes[store.nodes.fence] = b""
    return store


def break_next(store: JobStore) -> None:
    session: Any = store.session
    session.loses_answer = True


def events(store: JobStore) -> list[Event]:
    return [event for _, event in store.events.read()]


def test_a_worker_writes_both_and_its_earlier_events_before(store: JobStore) -> None:
    shared = SharedState()
    heard: list[Event] = []
    one = PendingWrites(store, shared)
    one.register(Member(0, "a", 0, "127.0.0.1", 1, 1, "x"))
    shared.log(EVICTED)
    shared.on_event = heard.append
    one.end_job(JobEnd(JobState.FAILED, REASON, exit_code=1), FAILED)
    one.write(as_member=True)
    one.write(as_member=True)
    assert events(store) == [EVICTED, FAILED]
    assert heard == [FAILED]


def test_a_worker_whose_answer_is_lost_has_written_both(store: JobStore) -> None:
    one = PendingWrites(store, SharedState())
    one.register(Member(0, "a", 0, "127.0.0.1", 1, 1, "x"))
    one.end_job(JobEnd(JobState.FAILED, REASON, exit_code=1), FAILED)
    break_next(store)
    with pytest.raises(CoordinationError):
        one.write(as_member=True)
    one.write(as_member=True)
    assert store.snapshot().job.state is JobState.FAILED
    assert events(store) == [FAILED]


def test_a_launcher_whose_answer_is_lost_has_written_both(store: JobStore) -> None:
    snapshot = store.snapshot()
    break_next(store)
    with pytest.raises(CoordinationError):
        conclude(store, JobEnd(JobState.FAILED, REASON, 1), snapshot)
    conclude(store, JobEnd(JobState.FAILED, REASON, 1), snapshot)
    assert store.snapshot().job.state is JobState.FAILED
    assert [event.reason for event in events(store)] == [REASON]
