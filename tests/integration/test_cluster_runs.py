"""What a cluster's leader reads and writes of runs, on a real ZooKeeper and without processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from kazoo.security import make_digest_acl

from edl.cluster.controller.controller import RunWriter
from edl.cluster.lifecycle import JobLifecycle
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import create_cluster, open_cluster
from edl.cluster.records import ClusterRecord, Wanted
from edl.cluster.runs import RunReader
from edl.cluster.store import ClusterStore
from edl.cluster.view import Action, AgentView, CreateRun, JobView, PlaceRun, RunView, StopRun
from edl.errors import CoordinationError, LeadershipLost, NotRemovable
from edl.records import Generation, Host, Job, JobState, RequestedBy, RingMember, TrainingStatus
from edl.zookeeper.access import Access, new_secret
from edl.zookeeper.election import FencedSession
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import encode
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration

LAB = Access("lab", new_secret())
SECRET, OTHER = new_secret(), new_secret()
ONE, TWO = "0" * 23 + "1", "0" * 23 + "2"
MANIFEST = JobManifest("j", ("python", "train.py"), 1, 4, cwd="/")
JOB = JobView("j", 3, MANIFEST, 0.0, Wanted(), JobLifecycle())


class Leader:
    def __init__(self, hosts: str, name: str) -> None:
        self.session, self.runs = Session(hosts, 2.0), FencedSession(hosts, 2.0)
        self.session.start()
        self.runs.start()
        create_cluster(self.session, LAB, ClusterRecord())
        self.runs.identify(LAB)
        store = ClusterStore(open_cluster(self.session, LAB))
        self.election = store.leader.election(name, {})
        self.election.enter()
        leadership = self.election.leads()
        assert leadership is not None
        self.changes = 0
        self.runs.lead(leadership)
        self.reader = RunReader(self.runs, self.changed)
        self.writer = RunWriter(lambda _: self.runs)

    def changed(self) -> None:
        self.changes += 1

    def does(self, order: Action) -> str:
        return self.writer.carry_out(order, JOB, SECRET)

    def reads(self) -> RunView | None:
        found = self.reader.read({"j": SECRET}).get("j")
        return None if found is None else found.view

    def catches_up(self) -> None:
        self.runs.call("catch up", lambda client: client.sync_async("/"))

    def close(self) -> None:
        self.session.close()
        self.runs.close()


@pytest.fixture
def leader(zk_hosts: str) -> Iterator[Leader]:
    one = Leader(zk_hosts, "one")
    yield one
    one.close()


@pytest.fixture
def job(zk_hosts: str) -> Iterator[JobStore]:
    with Session(zk_hosts, 2.0, access=Access("j", SECRET)) as session:
        yield JobStore(session, "j")


def test_a_run_is_created_once(leader: Leader, job: JobStore) -> None:
    assert leader.reads() is None
    order = CreateRun("j", ONE, {"a": (0, 2), "b": (1,)}, batch=64)
    assert [leader.does(order) for _ in range(2)] == ["", ""]
    run = leader.reads()
    assert run is not None
    assert (run.token, run.state, run.trains, run.batch) == (ONE, "running", False, 64)
    assert run.devices == {"a": (0, 2), "b": (1,)}
    assert not run.lacks_workers
    record = job.snapshot().job
    assert (record.spec.np, record.spec.settings.resume, record.reserved) == (3, "", True)
    assert "is already running" in leader.does(replace(order, run=TWO))
    assert leader.does(StopRun("j", TWO, False)) == "", "there is no such run"
    assert leader.does(StopRun("j", ONE, True, "halted")) == ""
    run = leader.reads()
    assert run is not None
    assert (run.state, run.reason) == (JobState.STOPPED, "halted"), "no process could save anything"
    assert leader.does(replace(order, run=TWO, batch=None)) == ""
    run = leader.reads()
    assert run is not None
    assert (run.token, run.batch) == (TWO, None)


def test_a_run_is_placed_if_nobody_has_changed_it(leader: Leader, job: JobStore) -> None:
    leader.does(CreateRun("j", ONE, {"a": (0, 1)}))
    job.hosts.put(Host("a", 2, "here", devices=(0, 1), busy=(0,)))
    leader.catches_up()
    run = leader.reads()
    assert run is not None
    assert run.agents == {"a": AgentView(frozenset({0, 1}), frozenset({0}))}
    before = leader.changes
    order = PlaceRun("j", ONE, {"a": (0,), "b": (3, 4)}, run.version, 32, "why not")
    assert leader.does(order) == ""
    assert leader.changes > before
    run = leader.reads()
    assert run is not None
    assert (run.devices, run.batch) == (order.devices, 32)
    desired = job.snapshot().desired
    assert (desired.hosts, desired.by, desired.reason) == ({"a": 1, "b": 2}, "cluster", "why not")
    assert leader.does(order) == "the slots of job j were changed by others"
    job.set_desired(lambda now: {**now, "a": 0}, RequestedBy.LEADER, "w0 left")
    leader.catches_up()
    run = leader.reads()
    assert run is not None
    assert (run.lacks_workers, run.batch) == (True, 32)
    assert leader.does(replace(order, version=run.version)) == ""
    run = leader.reads()
    assert run is not None
    assert not run.lacks_workers
    stale = replace(order, run=TWO, devices={"a": (0, 1)}, version=run.version)
    assert "is over, and a new one of that name" in leader.does(stale)
    assert leader.does(replace(order, version=run.version, batch=None)) == ""
    assert job.snapshot().desired.batch == 0


def test_nothing_is_read_again_that_has_not_changed(leader: Leader, job: JobStore) -> None:
    leader.does(CreateRun("j", ONE, {"a": (0, 1)}))
    leader.reads()
    asked: list[int] = []
    ask = leader.runs._answers_to

    def counted(what: str, issues: object, *args: object, **kwargs: object) -> object:
        asked.append(len(issues))
        return ask(what, issues, *args, **kwargs)

    leader.runs._answers_to = counted
    leader.reads()
    assert sum(asked) == 0
    job.set_job_state(JobState.STOPPING, "a test")
    leader.catches_up()
    asked.clear()
    run = leader.reads()
    assert run is not None
    assert run.state is JobState.STOPPING
    assert sum(asked) == 1


def test_how_far_a_run_is_that_trains_is_read_now_and_then(leader: Leader, job: JobStore) -> None:
    """A thousand runs write that all the time, and each change of one wakes the leader."""
    now_s = [0.0]
    reader = RunReader(leader.runs, clock=lambda: now_s[0])

    def done_steps() -> int:
        leader.catches_up()
        return reader.read({"j": SECRET}, progress_s=10.0)["j"].status.step

    def trains(step: int) -> None:
        status = TrainingStatus(step=step, median_step_s=0.1)
        job.session.client.set(job.paths.status, encode(status.to_json()))

    leader.does(CreateRun("j", ONE, {"a": (0,)}))
    members = (RingMember(0, "a", 0, "here", 1),)
    first = Generation(1, 1, members, 0, (0,), (), "the job starts")
    job.session.client.set(job.paths.generation, encode(first.to_json()))
    assert done_steps() == 0
    trains(1)
    assert done_steps() == 1, "what does not train yet is read at once"
    trains(2)
    assert done_steps() == 1
    now_s[0] += 10.0
    assert done_steps() == 2
    trains(3)
    job.set_job_state(JobState.STOPPING, "a test")
    assert done_steps() == 3, "as it may be over soon"
    leader.does(StopRun("j", ONE, False))
    leader.does(CreateRun("j", TWO, {"a": (0,)}))
    assert done_steps() == 0, "it is of another run"


def test_a_deposed_leader_changes_no_run(leader: Leader, zk_hosts: str) -> None:
    leader.does(CreateRun("j", ONE, {"a": (0,)}))
    run = leader.reads()
    assert run is not None
    leader.election.remove("one")
    other = Leader(zk_hosts, "two")
    for order in (PlaceRun("j", ONE, {"a": (1,)}, run.version), StopRun("j", ONE, False)):
        with pytest.raises(LeadershipLost):
            leader.does(order)
    other.does(StopRun("j", ONE, False, "done"))
    with pytest.raises(LeadershipLost):
        leader.does(CreateRun("j", TWO, {"a": (0,)}))
    with pytest.raises(LeadershipLost):
        leader.writer.remove("j", SECRET)
    found = other.reads()
    assert found is not None
    assert (found.token, found.reason) == (ONE, "done")
    assert other.writer.remove("j", SECRET)
    assert other.reads() is None
    other.close()


def test_without_a_term_nothing_is_written(zk_hosts: str) -> None:
    writes = pytest.raises(CoordinationError, match="writes for no leader")
    with FencedSession(zk_hosts, 2.0) as session, writes:
        RunWriter(lambda _: session).carry_out(CreateRun("j", ONE, {"a": (0,)}), JOB, SECRET)


def test_what_the_code_of_a_job_has_made_below_its_nodes(leader: Leader) -> None:
    """A node with another ACL can be removed without children, and keeps the job else."""
    ids, other = JobPaths("j").ids, [make_digest_acl("other", "x", all=True)]
    leader.does(CreateRun("j", ONE, {"a": (0,)}))
    leader.does(StopRun("j", ONE, False))
    client = leader.runs.client
    made = client.transaction()
    for path in ("alone", "parent", "parent/own", "many", *(f"many/{n}" for n in range(100))):
        made.create(f"{ids}/{path}")
    made.commit()
    client.set_acls(f"{ids}/alone", other)
    client.set_acls(f"{ids}/parent", other)
    assert not leader.writer.remove("j", SECRET), "a part"
    assert client.get_children(ids) == ["parent"]
    with pytest.raises(NotRemovable, match="has an ACL by which the job's secret does not open it"):
        leader.writer.remove("j", SECRET)
    client.add_auth("digest", "other:x")
    assert leader.writer.remove("j", SECRET)
    assert client.exists(JobPaths("j").root) is None


def test_a_strangers_job_of_that_name(leader: Leader, zk_hosts: str) -> None:
    with Session(zk_hosts, 2.0, access=Access("j", new_secret())) as session:
        leader.does(CreateRun("j", ONE, {"a": (0,)}))
        assert not leader.writer.remove("j", SECRET), "it is not over"
        leader.does(StopRun("j", ONE, False))
        assert leader.writer.remove("j", SECRET)
        assert leader.reads() is None
        JobStore(session, "j").create(Job("j", MANIFEST.job_spec("")), {"a": 1})
        leader.catches_up()
        assert leader.reads() is None
        assert "the name 'j' is taken" in leader.does(CreateRun("j", ONE, {"a": (0,)}))
        assert leader.writer.remove("j", SECRET), "there is nothing of ours"


@pytest.mark.parametrize("node", ["status", "learned", "assigned", "hosts/a", "job"])
def test_what_a_job_does_to_its_own_records_holds_up_no_other(
    leader: Leader, job: JobStore, zk_hosts: str, node: str
) -> None:
    other = replace(JOB, name="k", manifest=replace(MANIFEST, name="k"))
    for one, secret in ((JOB, SECRET), (other, OTHER)):
        order = CreateRun(one.name, ONE, {"a": (0, 1)})
        assert leader.writer.carry_out(order, one, secret) == ""
    job.hosts.put(Host("a", 2, "here", devices=(0, 1)))
    path, client = f"{job.paths.root}/{node}", job.nodes.session.client
    if not client.exists(path):
        client.create(path, b"")
    secrets = {"j": SECRET, "k": OTHER}

    def reads(reader: RunReader) -> tuple[set[str], set[str]]:
        leader.catches_up()
        found = reader.read(secrets)
        return set(found), set(reader.unreadable)

    assert reads(leader.reader) == ({"j", "k"}, set())
    before = client.get(path)[0]
    client.set(path, b"\xffjunk")
    assert reads(leader.reader) == ({"k"}, {"j"})
    client.set(path, before)
    assert reads(leader.reader) == ({"j", "k"}, set())
    client.set_acls(path, [make_digest_acl("ann", "x", all=True)])
    with Session(zk_hosts, 2.0) as session:
        reader = RunReader(session)  # of the next leader, which has read nothing yet
        assert reads(reader) == ({"k"}, {"j"})
        assert reader.unreadable["j"].endswith("a node is closed to the job's own secret")
        client.add_auth("digest", "ann:x")
        client.set_acls(path, list(Access("j", SECRET).acl))
        assert reads(reader) == ({"j", "k"}, set())
