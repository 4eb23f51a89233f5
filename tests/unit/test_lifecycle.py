"""What a job's code writes into the job's nodes holds up nobody who removes or replaces them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError, NotEmptyError
from made import make_job

from edl.cluster.controller.controller import RunWriter
from edl.cluster.view import CreateRun
from edl.errors import AccessDenied, CoordinationError, JobExists, NotRemovable, PartlyRemoved
from edl.records import NO_POLICY, Assigned, Generation, JobState, RingMember
from edl.zookeeper import nodes as job_tree
from edl.zookeeper import nodes as lifecycle
from edl.zookeeper.access import OPEN, Access
from edl.zookeeper.nodes import create_job, delete_ended
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import CHILDREN, GET, Read, encode
from edl.zookeeper.session import Refused

PATHS = JobPaths("ann.x")
RUNS = make_job("ann.x")
ENDED = make_job("ann.x", state=JobState.STOPPED)
SECRET = "5" * 64
CHUNK, CHUNK_BYTES = 50, 5000  # of a transaction in these tests


class Request:
    def __init__(self) -> None:
        self.checked: list[str] = []
        self.deleted: list[str] = []
        self.created: dict[str, bytes] = {}

    def check(self, path: str, version: int) -> None:
        self.checked.append(path)

    def delete(self, path: str) -> None:
        self.deleted.append(path)

    def create(self, path: str, value: bytes = b"", ephemeral: bool = False) -> None:
        self.created[path] = value


class Session:
    """A session of a ZooKeeper that has nodes; it keeps its transactions.

    Attributes:
        nodes: the contents of the nodes, by path.
        closed: the nodes with an ACL that the secret does not open.
        done: the transactions, refused ones included.
        requests: how many nodes were read.
        names: how many names of children were in the answers.
    """

    granted_s = 10.0

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.closed: set[str] = set()
        self.access: Access | None = Access("ann.x", SECRET)
        self.done: list[Request] = []
        self.requests = self.names = 0
        self._below: dict[str, dict[str, None]] = {}
        for path in nodes:
            self._add(path)

    def _add(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._below.setdefault(parent, {})[name] = None

    def identify(self, access: Access) -> None:
        self.access = access

    def read_all(self, what: str, reads: Sequence[Read]) -> list[Any]:
        for read in reads:
            if read.method in (GET, CHILDREN) and read.path in self.closed:
                raise AccessDenied("ann.x", f"cannot {what}: {read.path} is closed")
        return [self._answer(read) for read in reads]

    def read_open(self, what: str, reads: Sequence[Any]) -> list[Any]:
        if not isinstance(reads[0], Read):  # of ACLs
            return [read(SimpleNamespace(get_acls_async=self._acl)) for read in reads]
        return [None if read.path in self.closed else self._answer(read) for read in reads]

    def _acl(self, path: str) -> Any:
        assert self.access is not None
        if path not in self.nodes:
            return None
        return (OPEN if path in self.closed else self.access.acl, None)

    def _answer(self, read: Read) -> Any:
        self.requests += 1
        if read.path not in self.nodes:
            return None
        below = list(self._below.get(read.path, ()))
        if read.method == CHILDREN:
            self.names += len(below)
            return below
        stat = SimpleNamespace(numChildren=len(below))
        return (self.nodes[read.path], stat) if read.method == GET else stat

    def transact(self, what: str, build: Callable[[Any], None]) -> None:
        request = Request()
        build(request)
        self.done.append(request)
        if not self.nodes.keys() >= {*request.checked, *request.deleted}:
            raise Refused(0, NoNodeError())
        before = dict(self.nodes)
        for path in request.deleted:
            parent, _, name = path.rpartition("/")
            if parent in self.closed:
                raise AccessDenied("ann.x", f"cannot {what}: {parent} is closed")
            if self._below.get(path):
                self.set_nodes(before)
                raise Refused(0, NotEmptyError())
            del self.nodes[path], self._below[parent][name]
        self.set_nodes(request.created, clear=False)

    def set_nodes(self, nodes: dict[str, bytes], clear: bool = True) -> None:
        if clear:
            self.nodes, self._below = {}, {}
        self.nodes |= nodes
        for path in nodes:
            self._add(path)


def session_of(job: Any, more: Iterable[str] = (), ports: int = 0) -> Any:
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
    name, order = "ann.x", 1

    class manifest:
        @staticmethod
        def job_spec(resume: object) -> Any:
            return RUNS.spec


def test_the_leader_of_a_cluster_replaces_a_run_without_asking(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.cluster.controller.controller.resume_setting", lambda *_: "")
    session = session_of(RUNS, ports=2)
    stored: Any = StoredJob()
    order: Any = CreateRun("ann.x", "r1", {"h": ("0", "1")}, 64)
    writer = RunWriter(lambda job: session)
    assert writer.carry_out(order, stored, SECRET) == ""
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
        more = dict.fromkeys((f"{PATHS.ids}/{n}" for n in range(2 * CHUNK)), b"")
        session.set_nodes(more, clear=False)

    session.set_nodes({f"{PATHS.events}/1": b""}, clear=False)
    monkeypatch.setattr(lifecycle, "ATTEMPTS", 3)
    monkeypatch.setattr(session, "transact", with_more)
    with pytest.raises(CoordinationError, match="could not be deleted"):
        delete_ended(session, PATHS)
    assert all(len(one.deleted) <= CHUNK for one in session.done)


def test_a_path_that_no_transaction_can_remove_is_an_error() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{'i' * CHUNK_BYTES}"])
    with pytest.raises(NotRemovable, match="has too long a path to be removed"):
        delete_ended(session, PATHS)
    assert not session.done


WIDE, NAMES, BYTES = 1000, 1500, 40_000  # the bounds of what the leader reads in these tests
LONG = "n" * 100


def nested(below: str, count: int, depth: int, name: str = "i") -> list[str]:
    return [
        f"{below}/{chain}" + f"/{name}" * level for chain in range(count) for level in range(depth)
    ]


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_tree, "MOST_CHILDREN", WIDE)
    monkeypatch.setattr(job_tree, "MOST_NAMES", NAMES)
    monkeypatch.setattr(job_tree, "MOST_BYTES", BYTES)
    monkeypatch.setattr(job_tree, "REQUEST_BYTES", 40)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    "more",
    [
        [f"{PATHS.ids}/{n}" for n in range(WIDE)],
        [f"{parent}/{n}" for parent in (PATHS.ids, PATHS.events) for n in range(WIDE)],
        nested(PATHS.ids, 800, 2),
        nested(PATHS.ids, 100, 7, LONG),
        nested(PATHS.ids, 2, 100),
        [*nested(PATHS.ids, 1, 80), *(f"{PATHS.ids}/0{'/i' * 79}/{n}" for n in range(900))],
        [f"{PATHS.ids}{'/i' * level}/{n}" for level in range(10) for n in ("i", *range(90))],
        [f"{PATHS.ids}{'/0' * level}/{n}{own}" for level in range(15) for n in range(90)
         for own in ("", "/own")],
    ],
    ids=["flat", "two flat", "wide", "nested", "deep", "deep and flat", "comb", "comb of inner"],
)  # fmt: skip
def test_the_leader_of_a_cluster_removes_very_many_nodes_part_by_part(more: list[str]) -> None:
    session = session_of(ENDED, more)
    writer = RunWriter(lambda job: session)
    turns = 1
    while not writer.remove("ann.x", SECRET):
        assert {*PATHS.fixed, f"{PATHS.run}/foreign"} <= set(session.nodes)
        assert session.requests < BYTES / 60
        assert session.names <= NAMES + 1
        turns, session.requests, session.names = turns + 1, 0, 0
    assert not session.nodes
    assert 1 < turns < 100
    assert all(len(one.deleted) <= CHUNK for one in session.done)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        (nested(PATHS.ids, 1, 400), "is nested too deeply: .* 1500 names and 40000 bytes"),
        ([f"{PATHS.ids}/{n}" for n in range(WIDE + 1)], "has 1001 children, more than the 1000"),
    ],
    ids=["deep", "wide"],
)
def test_what_an_administrator_has_to_remove_is_an_error_that_says_so(
    more: list[str], why: str
) -> None:
    session = session_of(ENDED, more)
    writer = RunWriter(lambda job: session)
    for _ in range(2):
        with pytest.raises(NotRemovable, match=rf"below {PATHS.root} {why}.* with `deleteall`"):
            writer.remove("ann.x", SECRET)
    order: Any = CreateRun("ann.x", "r1", {"h": ("0", "1")}, 64)
    stored: Any = StoredJob()
    assert set(more) < set(session.nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edl.cluster.controller.controller.resume_setting", lambda *_: "")
        refused = writer.carry_out(order, stored, SECRET)
    assert "with `deleteall`" in refused
    assert not session.done


@pytest.mark.usefixtures("small_reads")
def test_what_is_beside_too_wide_a_node_is_removed() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{n}" for n in range(WIDE + 1)])
    session.set_nodes({f"{PATHS.events}/{n}": b"" for n in range(10)}, clear=False)
    assert not RunWriter(lambda job: session).remove("ann.x", SECRET)
    assert {path for path in session.nodes if path.startswith(f"{PATHS.events}/")} == set()


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("below", [(), ("/own",)], ids=["a leaf", "with a child"])
def test_a_node_with_another_acl_is_no_job_of_a_stranger(below: Sequence[str]) -> None:
    """Else the record of the job would go, and its nodes would stay for ever."""
    child = f"{PATHS.ids}/0"
    session = session_of(ENDED, [child, *(f"{child}{name}" for name in below), f"{PATHS.ids}/1"])
    session.closed = {child}
    writer = RunWriter(lambda job: session)
    if not below:  # who may change the parent may remove it
        assert writer.remove("ann.x", SECRET)
        assert not session.nodes
        return
    assert not writer.remove("ann.x", SECRET)
    assert f"{PATHS.ids}/1" not in session.nodes
    with pytest.raises(NotRemovable, match=f"below {PATHS.root} has an ACL by which the job's"):
        writer.remove("ann.x", SECRET)
    session.closed = {PATHS.job}
    with pytest.raises(NotRemovable, match="has an ACL by which the job's secret does not open"):
        writer.remove("ann.x", SECRET)
    assert PATHS.root in session.nodes


@pytest.mark.parametrize("nodes", [[], [f"{PATHS.root}/own"]], ids=["alone", "with a child"])
def test_the_name_that_a_stranger_has_taken_is_left_alone(nodes: list[str]) -> None:
    session: Any = Session(dict.fromkeys([PATHS.root, *nodes], b""))
    session.closed = {PATHS.root}
    assert RunWriter(lambda job: session).remove("ann.x", SECRET)
    assert set(session.nodes) == {PATHS.root, *nodes}


def test_a_record_that_the_code_has_destroyed_is_an_error_that_says_what_to_do() -> None:
    session = session_of(ENDED)
    session.nodes[PATHS.job] = b"junk"
    with pytest.raises(NotRemovable, match=r"is no record of a job.* with `deleteall`"):
        RunWriter(lambda job: session).remove("ann.x", SECRET)


def test_the_nodes_of_processes_are_counted_and_not_listed() -> None:
    session = session_of(ENDED, [f"{PATHS.members}/{n}" for n in range(2000)])
    assert not RunWriter(lambda job: session).remove("ann.x", SECRET)
    session = session_of(RUNS, [f"{PATHS.members}/{n}" for n in range(200)])
    with pytest.raises(JobExists, match=f"200 nodes in {PATHS.members}"):
        delete_ended(session, PATHS, trusted=False)
    assert not session.done


@pytest.mark.usefixtures("small_reads")
def test_all_nodes_of_a_job_that_is_trusted_are_removed() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{n}" for n in range(2 * WIDE)])
    assert delete_ended(session, PATHS)
    assert not session.nodes


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("trusted", [True, False])
def test_a_run_that_starts_meanwhile_keeps_its_nodes(trusted: bool) -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{n}" for n in range(WIDE)])
    new = session_of(RUNS, [f"{PATHS.ids}/{n}" for n in range(WIDE)]).nodes
    del new[f"{PATHS.run}/foreign"]
    new |= dict.fromkeys([f"{PATHS.run}/new", f"{PATHS.members}/0"], b"")
    transact = session.transact

    def starts_again(what: str, build: Callable[[Any], None]) -> None:
        transact(what, build)
        if len(session.done) == 1:
            session.set_nodes(new)

    session.transact = starts_again
    with pytest.raises(JobExists):
        delete_ended(session, PATHS, trusted=trusted)
    assert session.nodes == new
    assert [one.checked for one in session.done] == [[f"{PATHS.run}/foreign"]] * 2


@pytest.mark.usefixtures("small_reads")
def test_what_is_left_of_a_part_is_not_read_in_vain() -> None:
    session = session_of(ENDED, [f"{PATHS.ids}/{n}" for n in range(WIDE)])
    with pytest.raises(PartlyRemoved, match="are removed part by part"):
        create_job(session, PATHS, RUNS, Assigned({"h": 1}), NO_POLICY, trusted=False)
    assert session.names <= NAMES + len(PATHS.fixed) + 10
