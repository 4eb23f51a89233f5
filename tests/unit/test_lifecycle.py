"""What a job's code writes into the job's nodes holds up nobody who removes or replaces them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from kazoo.exceptions import NotEmptyError
from made import make_job

from edl.coordination import lifecycle
from edl.coordination.access import Access
from edl.coordination.lifecycle import create_job, delete_ended
from edl.coordination.paths import JobPaths
from edl.coordination.reads import GET, Read
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.orders import CreateRun
from edl.core.records import NO_POLICY, Assigned, Generation, JobState, RingMember
from edl.errors import CoordinationError, JobExists
from edl.scheduler.runs import RunWriter

PATHS = JobPaths("ann.x")
RUNS = make_job("ann.x")
ENDED = make_job("ann.x", state=JobState.STOPPED)
SECRET = "5" * 64
CHUNK, CHUNK_BYTES = 50, 5000  # of a transaction in these tests


class Request:
    """A transaction of a session: what it checks and changes."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.created: dict[str, bytes] = {}

    def check(self, path: str, version: int) -> None:
        """Check nothing: nobody else writes."""

    def delete(self, path: str) -> None:
        self.deleted.append(path)

    def create(self, path: str, value: bytes = b"", ephemeral: bool = False) -> None:
        self.created[path] = value


class Session:
    """A session of a ZooKeeper that has nodes; it keeps its transactions."""

    granted_s = 10.0

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.access: Access | None = Access("ann.x", SECRET)
        self.done: list[Request] = []

    def identify(self, access: Access) -> None:
        self.access = access

    def read_all(self, what: str, reads: Sequence[Read]) -> list[Any]:
        below: dict[str, list[str]] = {}
        for path in self.nodes:
            parent, _, name = path.rpartition("/")
            below.setdefault(parent, []).append(name)
        return [self._answer(read, below) for read in reads]

    def _answer(self, read: Read, below: dict[str, list[str]]) -> Any:
        if read.path not in self.nodes:
            return None
        return (self.nodes[read.path], None) if read.method == GET else below.get(read.path, [])

    def transact(self, what: str, build: Callable[[Any], None]) -> None:
        request = Request()
        build(request)
        self.done.append(request)
        for path in request.deleted:
            if any(other.startswith(f"{path}/") for other in self.nodes):
                raise Refused(0, NotEmptyError())
            del self.nodes[path]
        self.nodes |= request.created


def session_of(job: Any, more: Iterable[str] = (), ports: int = 0) -> Any:
    """Return a session of a ZooKeeper with a job, whose ring has so many ports."""
    members = tuple(RingMember(n, "h", n, "192.0.2.1", 1) for n in range(ports))
    generation = Generation(1, 1, members, 0, (), (), "")
    nodes = dict.fromkeys(PATHS.fixed, b"")
    nodes |= {PATHS.job: encode(job.to_json()), PATHS.generation: encode(generation.to_json())}
    return Session(nodes | dict.fromkeys([f"{PATHS.run}/foreign", *more], b""))


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "CHUNK", CHUNK)
    monkeypatch.setattr(lifecycle, "CHUNK_BYTES", CHUNK_BYTES)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many members are asked, in each call; all of them answer."""
    calls: list[int] = []

    def answering(members: Iterable[RingMember], run: str, timeout_s: float) -> frozenset[int]:
        ids = frozenset(member.id for member in members)
        calls.append(len(ids))
        return ids

    monkeypatch.setattr(lifecycle, "answering", answering)
    return calls


def test_a_job_whose_ring_answers_lives(asked: list[int]) -> None:
    session = session_of(RUNS, ports=2)
    with pytest.raises(JobExists, match="w0 trains"):
        delete_ended(session, PATHS)
    with pytest.raises(JobExists, match="w0 trains"):
        create_job(session, PATHS, RUNS, Assigned({"h": 1}), NO_POLICY)
    assert asked == [2, 2]


def test_the_leader_of_a_cluster_asks_no_port_of_a_run(asked: list[int]) -> None:
    """The job's code may have written any number of any addresses."""
    session = session_of(RUNS, ports=2)
    assert RunWriter(lambda job: session).remove("ann.x", SECRET)
    assert not session.nodes
    assert not asked


class StoredJob:
    """A job of a cluster, of which only its manifest is read."""

    name, order = "ann.x", 1

    class manifest:
        @staticmethod
        def job_spec(resume: object) -> Any:
            return RUNS.spec


def test_the_leader_of_a_cluster_replaces_a_run_without_asking(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.scheduler.runs.resume_setting", lambda *_: "")
    session, stored = session_of(RUNS, ports=2), StoredJob()
    order: Any = CreateRun("ann.x", "r1", {"h": ("0", "1")}, 64)
    writer = RunWriter(lambda job: session)
    assert writer.carry_out(order, stored, SECRET) == ""  # type: ignore[arg-type]
    assert f"{PATHS.run}/r1" in session.nodes
    assert not asked


@pytest.mark.parametrize(
    "more",
    [
        [f"{PATHS.ids}/{n}" for n in range(2 * CHUNK)],
        [f"{PATHS.root}/own", *(f"{PATHS.root}/own/{n}" for n in range(2 * CHUNK))],
        [f"{PATHS.run}/foreign/{n}" for n in range(2 * CHUNK)],
        [f"{PATHS.events}/{n}-{'e' * (CHUNK_BYTES // 20)}" for n in range(30)],
        [f"{PATHS.status}/{n}-{'s' * (CHUNK_BYTES // 20)}" for n in range(30)],
    ],
    ids=["many", "foreign", "below the run", "long events", "long"],
)
def test_any_number_of_nodes_is_removed_in_transactions_of_a_bounded_size(more: list[str]) -> None:
    session = session_of(ENDED, more)
    assert delete_ended(session, PATHS)
    assert not session.nodes
    assert all(len(one.deleted) <= CHUNK for one in session.done)
    assert all(len("".join(one.deleted)) < CHUNK_BYTES for one in session.done)
    session = session_of(ENDED, more)
    create_job(session, PATHS, RUNS, Assigned({"h": 1}), NO_POLICY)
    assert len(session.nodes) == len(PATHS.fixed) + 2  # its run and its creator
    assert all(len("".join(one.deleted)) < CHUNK_BYTES for one in session.done)


def test_an_ordinary_job_is_removed_at_once() -> None:
    session = session_of(ENDED, [f"{PATHS.evicted}/1", f"{PATHS.ids}/1"])
    assert delete_ended(session, PATHS)
    assert [len(one.deleted) for one in session.done] == [1, len(PATHS.fixed) + 2]


def test_nodes_that_appear_all_the_time_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(ENDED)
    transact = session.transact

    def with_more(what: str, build: Callable[[Any], None]) -> None:
        transact(what, build)
        session.nodes |= dict.fromkeys((f"{PATHS.ids}/{n}" for n in range(2 * CHUNK)), b"")

    session.nodes[f"{PATHS.events}/1"] = b""
    monkeypatch.setattr(lifecycle, "ATTEMPTS", 3)
    monkeypatch.setattr(session, "transact", with_more)
    with pytest.raises(CoordinationError, match="could not be deleted"):
        delete_ended(session, PATHS)
    assert all(len(one.deleted) <= CHUNK for one in session.done)


def test_a_path_that_no_transaction_can_remove_is_an_error() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{'i' * CHUNK_BYTES}"])
    with pytest.raises(CoordinationError, match="is too long a path to be removed"):
        delete_ended(session, PATHS)
    assert not session.done


def _removes(writer: RunWriter) -> bool:
    """Return whether one turn of the leader of a cluster removes all nodes, and not a part."""
    try:
        return writer.remove("ann.x", SECRET)
    except CoordinationError as error:
        if "so many nodes that they are removed part by part" in str(error):
            return False
        raise


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MOST_BYTES", 5000)
    monkeypatch.setattr(lifecycle, "READ_AT_ONCE", 10)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize(
    "more",
    [
        [f"{PATHS.ids}/{n}" for n in range(2000)],
        [f"{PATHS.ids}/{n}{below}" for n in range(800) for below in ("", "/own")],
    ],
    ids=["flat", "wide"],
)
def test_the_leader_of_a_cluster_removes_very_many_nodes_part_by_part(more: list[str]) -> None:
    session = session_of(ENDED, more)
    read_all, reads = session.read_all, [0]

    def counted(what: str, wanted: Sequence[Read]) -> list[Any]:
        reads[-1] += sum(len(one.path) for one in wanted)
        return list(read_all(what, wanted))

    session.read_all = counted
    writer = RunWriter(lambda job: session)
    turns = 0
    while not _removes(writer):
        assert {*PATHS.fixed, f"{PATHS.run}/foreign"} <= set(session.nodes)
        turns += 1
        reads.append(0)
    assert not session.nodes
    assert turns > 1
    assert max(reads) < 6 * 5000


@pytest.mark.usefixtures("few_bytes")
def test_nodes_too_deep_to_be_read_are_an_error_that_says_what_to_do() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{'/'.join('i' * n)}" for n in range(1, 200)])
    with pytest.raises(CoordinationError, match=f"remove {PATHS.root} with `deleteall`"):
        RunWriter(lambda job: session).remove("ann.x", SECRET)
    assert not session.done


@pytest.mark.usefixtures("few_bytes")
def test_all_nodes_of_a_job_that_is_trusted_are_removed() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{n}" for n in range(2000)])
    assert delete_ended(session, PATHS)
    assert not session.nodes


@pytest.mark.usefixtures("few_bytes")
def test_a_run_that_starts_meanwhile_keeps_its_nodes() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{n}" for n in range(2000)])
    checked: list[str] = []
    transact = session.transact

    def starts_again(what: str, build: Callable[[Any], None]) -> None:
        request = Request()
        request.check = lambda path, version: checked.append(path)  # type: ignore[method-assign]
        build(request)
        transact(what, build)

    session.transact = starts_again
    with pytest.raises(CoordinationError):
        delete_ended(session, PATHS, trusted=False)
    assert set(checked) == {f"{PATHS.run}/foreign"}
