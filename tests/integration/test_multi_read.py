"""Many reads by one request, on a real ZooKeeper: the same answers and watches as one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from known import DIGITS

from edl.errors import AccessDenied
from edl.zookeeper import session as sessions
from edl.zookeeper.access import Access
from edl.zookeeper.reads import children, get
from edl.zookeeper.session import Session

pytestmark = pytest.mark.integration
COUNT = 40  # nodes; more than are worth a request of their own


@pytest.fixture
def nodes(session: Session) -> list[str]:
    paths = [f"/many/{number:02d}" for number in range(COUNT)]
    session.client.ensure_path("/many")
    for path in paths:
        session.client.create(path, path.encode())
        session.client.create(f"{path}/child", b"")
    return paths


class Woken:
    def __init__(self) -> None:
        self.count = 0
        self.called = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.called.set()


def contents(answers: list[Any]) -> list[bytes | None]:
    return [None if answer is None else answer[0] for answer in answers]


def test_the_answers_are_those_of_single_requests(session: Session, nodes: list[str]) -> None:
    reads = [read(path) for path in (*nodes, "/none") for read in (get, children)]
    together = session.read_all("read", reads)
    assert together == [session.read_all("read", [one])[0] for one in reads]
    assert together[:2] == [(nodes[0].encode(), together[0][1]), ["child"]]
    assert together[-2:] == [None, None]
    assert together[0][1].dataLength == len(nodes[0])


def test_a_closed_node_is_refused(zk_hosts: str, session: Session, nodes: list[str]) -> None:
    with Session(zk_hosts, 2.0, access=Access("letters", "f" * 64)) as other:
        with pytest.raises(AccessDenied):
            other.read_all("read", [get(path) for path in nodes])
        assert other.read_open("read", [get(path) for path in nodes]) == [None] * COUNT
        assert other.read_all("read", [get("/none")] * COUNT) == [None] * COUNT


def test_watches_fire_once_and_what_has_not_changed_is_kept(
    session: Session, zk_hosts: str, nodes: list[str], wait_until: Callable[..., None]
) -> None:
    woken = Woken()
    reads = [*(get(path, woken) for path in nodes), *(children(path, woken) for path in nodes)]
    first = session.read_all("read", reads)
    with Session(zk_hosts, 2.0, access=DIGITS) as other:
        other.client.set(nodes[3], b"new")
        other.client.delete(f"{nodes[5]}/child")
        other.client.delete(f"{nodes[7]}/child")
        other.client.delete(nodes[7])
    wait_until(lambda: woken.count == 4)  # contents of 3 and 7, children of 5 and 7
    again = session.read_all("read", reads)
    changed = [place for place in range(2 * COUNT) if again[place] is not first[place]]
    assert changed == [3, 7, COUNT + 5, COUNT + 7]
    assert contents(again[3:8:4]) == [b"new", None]
    count = woken.count
    session.client.set(nodes[9], b"new")
    wait_until(lambda: woken.count == count + 1)


def test_a_change_between_the_reads_and_their_watches_is_told(
    session: Session, zk_hosts: str, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    woken, watch_together = Woken(), sessions.watch_together

    def late(*words: Any) -> Any:
        with Session(zk_hosts, 2.0, access=DIGITS) as other:
            other.client.set(nodes[3], b"new")
            other.client.delete(f"{nodes[5]}/child")
            other.client.delete(nodes[5])
        return watch_together(*words)

    monkeypatch.setattr(sessions, "watch_together", late)
    reads = [get(path, woken) for path in nodes]
    old = session.read_all("read", reads)
    assert contents(old[3:6:2]) == [nodes[3].encode(), nodes[5].encode()]
    assert woken.count == 2, "at the latest when the reads return"
    monkeypatch.undo()
    new = session.read_all("read", reads)
    assert contents(new[3:6:2]) == [b"new", None]
    assert all(one is two for place, (one, two) in enumerate(zip(old, new, strict=True))
               if place not in (3, 5))  # fmt: skip


def test_a_server_that_does_not_know_the_request_is_asked_one_by_one(
    session: Session, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def unknown(client: Any, reads: Any) -> Any:
        sent.append(len(reads))
        result = client.handler.async_result()
        result.set_exception(sessions.UNREADABLE[0]("the response is empty"))
        return result

    monkeypatch.setattr(sessions, "read_together", unknown)
    woken = Woken()
    for _ in range(2):
        answers = session.read_all("read", [get(path, woken) for path in nodes])
        assert contents(answers) == [path.encode() for path in nodes]
        session.client.set(nodes[0], nodes[0].encode())
        assert woken.called.wait(20.0)
    assert sent == [COUNT]


def test_more_than_one_request_may_hold(session: Session, nodes: list[str]) -> None:
    reads = [get(path) for path in nodes] * (3 * sessions.BATCH // COUNT + 1)
    answers = session.read_all("read", reads)
    assert contents(answers) == [read.path.encode() for read in reads]
