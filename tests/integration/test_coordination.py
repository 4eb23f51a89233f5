"""The session and the store of a job, on a real ZooKeeper."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from known import DIGITS
from made import make_job

from edl.client.connection import in_session_of_job
from edl.errors import (
    AccessDenied,
    ConfigError,
    CoordinationError,
    JobExists,
    UnknownJob,
    UsageError,
    ZooKeeperUnreachable,
)
from edl.events import DesiredDetails, Event, EventKind, EvictedDetails
from edl.http.server import DaemonServer
from edl.job.profile import ProfileHold
from edl.policy.observation import SizeMeasurement
from edl.policy.scaling_profile import ScalingProfile
from edl.record import Record
from edl.records import (
    Assigned,
    Generation,
    Host,
    JobPolicy,
    JobState,
    Member,
    ProgressSample,
    Request,
    RequestedBy,
    RingMember,
    SlotRecord,
    Stage,
    TrainingStatus,
)
from edl.zookeeper.access import Access, new_secret
from edl.zookeeper.local_server import start_local, stop_local
from edl.zookeeper.nodes import current_run, list_jobs
from edl.zookeeper.reads import children, encode, exists, get
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration
Wait = Callable[..., None]
JOB = make_job()
RUN, LATER = "0123456789abcdef", "fedcba9876543210"


def member(worker: int, attempt_id: str = "a", **changes: object) -> Member:
    values = {"host": "alpha", "slot": 0, "address": "127.0.0.1", "port": 4711, "pid": 1}
    return Member(id=worker, attempt_id=attempt_id, **{**values, **changes})


def put(store: JobStore, path: str, record: Record) -> None:
    data = encode(record.to_json())
    store.session.call("test", lambda c: c.set_async(path, data))


def put_status(store: JobStore, status: TrainingStatus) -> None:
    put(store, store.paths.status, status)


@pytest.fixture
def store(session: Session) -> JobStore:
    store = JobStore(session, "digits")
    store.create(JOB, {"alpha": 2})
    return store


@pytest.fixture
def other(zk_hosts: str):  # type: ignore[no-untyped-def]
    with Session(zk_hosts, session_timeout_s=2.0, access=DIGITS) as one:
        yield one


LEFT_OPEN = """
import contextlib, sys
from edl.zookeeper.session import Session
@contextlib.contextmanager
def client():
    with Session(sys.argv[1]) as session:
        yield session
kept = client()
kept.__enter__()
"""


class TestSession:
    def test_nobody_there_is_an_error_within_the_limit(self) -> None:
        began = time.monotonic()
        with pytest.raises(ZooKeeperUnreachable, match=r"within 0\.5 s"):
            Session("127.0.0.1:1", 2.0, connect_timeout_s=0.5).start()
        assert time.monotonic() - began < 2.0

    def test_hosts_that_cannot_be_read_are_a_config_error(self) -> None:
        with pytest.raises(ConfigError):
            Session("127.0.0.1:port").start()

    def test_calls_before_start_and_after_close_are_errors(self, zk_hosts: str) -> None:
        session = Session(zk_hosts)
        assert not session.connected
        with pytest.raises(CoordinationError, match="not been started"):
            list_jobs(session)
        session.start()
        assert session.connected
        session.close()
        session.close()
        assert not session.connected
        with pytest.raises(CoordinationError, match="closed"):
            list_jobs(session)

    @pytest.mark.parametrize(("asked_s", "granted_s"), [(0.2, 0.5), (3.0, 3.0), (600.0, 60.0)])
    def test_it_knows_what_the_server_grants(
        self, asked_s: float, granted_s: float, zk_hosts: str, wait_until: Wait
    ) -> None:
        """The server of the tests grants two of its ticks of 0.25 s at least, and 60 s at most."""
        session = Session(zk_hosts, session_timeout_s=asked_s)
        assert session.granted_s == asked_s
        with session:
            wait_until(lambda: session.granted_s == granted_s)

    def test_a_joined_host_asks_for_the_session_of_the_job(
        self, session: Session, wait_until: Wait
    ) -> None:
        store = JobStore(session, "digits")
        store.create(make_job(session_timeout_s=9.0), {"alpha": 2})
        with in_session_of_job(store) as joined:
            assert joined.session is not session
            wait_until(lambda: joined.session.granted_s == 9.0)
            with in_session_of_job(joined) as same:
                assert same is joined
        assert session.connected
        assert not joined.session.connected

    def test_the_random_numbers_of_a_script_are_its_own(self, zk_hosts: str) -> None:
        """Keras' initial weights come from Python's generator, and kazoo's thread drew from it."""
        random.seed(1)
        before = random.getstate()
        with Session(zk_hosts, session_timeout_s=2.0) as session:
            for _ in range(20):
                list_jobs(session)
        assert random.getstate() == before

    def test_an_expired_session_is_opened_again_with_the_next_epoch(
        self, session: Session, expire: Callable[[Session], None], wait_until: Wait
    ) -> None:
        heard: list[str] = []
        session.add_listener(heard.append)
        first = session.session_id
        assert session.epoch == 1
        expire(session)
        wait_until(lambda: session.epoch == 2 and session.connected)
        assert session.session_id != first
        assert heard[-2:] == ["lost", "connected"]

    def test_an_outage_suspends_fails_calls_in_time_and_ends_by_itself(
        self, tmp_path: Path, wait_until: Wait
    ) -> None:
        hosts, woken, heard = start_local(tmp_path), threading.Event(), []
        try:
            with Session(hosts, session_timeout_s=2.0, access=DIGITS) as session:
                session.add_listener(heard.append)
                store = JobStore(session, "digits")
                store.create(JOB, {})
                store.snapshot(woken.set)
                stop_local(tmp_path)
                wait_until(lambda: not session.connected)
                wait_until(woken.is_set)  # the watches are gone, and say so
                began = time.monotonic()
                with pytest.raises(CoordinationError):
                    store.snapshot()
                with pytest.raises(CoordinationError):
                    store.set_desired(lambda now: {"alpha": 1}, RequestedBy.PERSON, "so")
                assert time.monotonic() - began < 2 * session.request_timeout_s + 1.0
                assert start_local(tmp_path) == hosts
                wait_until(lambda: session.connected)
                assert store.snapshot().job == JOB
                assert heard[0] == "suspended"
                assert heard[-1] == "connected"
        finally:
            stop_local(tmp_path)

    def test_it_closes_though_kazoo_does_not_stop(self, zk_hosts: str) -> None:
        session = Session(zk_hosts, 1.0)
        session.start()
        going_on, stop = threading.Event(), session.client.stop
        stopped = threading.Event()
        session.client.stop = lambda: (going_on.wait(60.0), stop(), stopped.set())
        session.close()
        assert not stopped.is_set()
        assert not session.connected
        going_on.set()
        assert stopped.wait(60.0)

    def test_it_closes_where_no_thread_can_be_started(
        self, zk_hosts: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in exit handlers, since Python 3.12."""
        session, start = Session(zk_hosts), threading.Thread.start
        session.start()

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "edl-zk-stop":
                raise RuntimeError("can't create new thread at interpreter shutdown")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        session.close()
        assert not session.connected
        assert session.client.handler._running is False

    def test_a_client_that_is_not_closed_lets_python_end(self, zk_hosts: str) -> None:
        """Its generators are closed when no thread runs any more."""
        done = subprocess.run(
            [sys.executable, "-c", LEFT_OPEN, zk_hosts], capture_output=True, timeout=60.0
        )
        assert (done.returncode, done.stderr) == (0, b"")

    def test_two_threads_close_it_at_once(self, zk_hosts: str) -> None:
        """As the end of a script, and of its daemon: kazoo's client does not bear that."""
        session = Session(zk_hosts)
        session.start()
        both, looks = threading.Barrier(2), session.client._stopped.is_set

        def look() -> bool:
            """Let two that stop the client see that nobody has; the other one is the faster."""
            found, me = bool(looks()), threading.current_thread()
            if me.name == "edl-zk-stop":
                with suppress(threading.BrokenBarrierError):
                    if both.wait(0.5) == 0:
                        others = [one for one in threading.enumerate() if one.name == me.name]
                        for other in others:
                            if other is not me:
                                other.join(10.0)
            return found

        session.client._stopped.is_set = look
        closing = [threading.Thread(target=session.close) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(30.0)
        assert not session.connected
        assert not any(one.name == "edl-zk-stop" for one in threading.enumerate())


class TestLifecycle:
    def test_what_was_created_is_what_is_read(self, session: Session, store: JobStore) -> None:
        now = store.snapshot()
        assert now.job == JOB
        assert now.desired.hosts == {"alpha": 2}
        assert (now.generation, now.leader, now.hosts, now.members) == (None, None, (), ())
        assert list_jobs(session) == (JOB,)

    def test_unknown_jobs_are_named_as_such(self, session: Session, store: JobStore) -> None:
        missing = JobStore(session, "letters")
        for call in (
            missing.snapshot,
            missing.status,
            missing.events.read,
            missing.members.new_id,
            lambda: missing.members.put(member(0)),
            lambda: missing.set_desired(lambda now: {"x": 1}, RequestedBy.PERSON, "so"),
            lambda: missing.requests.add(Request("drain", 0)),
            lambda: missing.events.add(Event(0.0, 0, 0, "", EvictedDetails("w1"))),
            lambda: missing.watch_generation(None),
        ):
            with pytest.raises(UnknownJob, match="known jobs: digits"):
                call()
        missing.delete()

    @pytest.mark.parametrize("name", ["", "a/b", ".hidden", "-x", "a" * 65, "a b", "ä"])
    def test_impossible_names_are_refused(self, session: Session, name: str) -> None:
        with pytest.raises(ConfigError, match="cannot be the name of a job"):
            JobStore(session, name)

    def test_a_job_whose_creator_lives_is_not_replaced(
        self, other: Session, store: JobStore
    ) -> None:
        with pytest.raises(JobExists):
            JobStore(other, "digits").create(JOB, {})

    def test_a_job_with_a_living_worker_is_not_replaced(
        self, zk_hosts: str, session: Session
    ) -> None:
        with Session(zk_hosts, access=DIGITS) as creator:
            JobStore(creator, "digits").create(JOB, {})
            worker = JobStore(session, "digits")
            worker.members.put(member(worker.members.new_id()))
        with pytest.raises(JobExists):
            JobStore(session, "digits").create(JOB, {})

    def test_a_job_whose_ring_trains_without_its_sessions_is_not_replaced(
        self, zk_hosts: str, session: Session
    ) -> None:
        """Not by who finds its name free; the port of another job's worker keeps nothing."""
        with Session(zk_hosts, access=DIGITS) as creator:
            old = JobStore(creator, "digits")
            old.create(JOB, {"alpha": 1})
            health = {"worker": "w0", "run": old.nodes.run}
            with DaemonServer("127.0.0.1", health=lambda: health) as server:
                member = RingMember(0, "alpha", 0, "127.0.0.1", server.port)
                put(old, old.paths.generation, Generation(1, 1, (member,), 0, (0,), (), ""))
                creator.close()
                with pytest.raises(JobExists, match=r"is already running \(w0 trains\)"):
                    JobStore(session, "digits").create(JOB, {})
                health["run"] = "another start"
                JobStore(session, "digits").create(JOB, {})

    def test_a_job_whose_processes_are_all_dead_is_replaced_with_its_leftovers(
        self, zk_hosts: str, session: Session
    ) -> None:
        with Session(zk_hosts, access=DIGITS) as creator:
            dead = JobStore(creator, "digits")
            dead.create(JOB, {"alpha": 1})
            dead.members.put(member(dead.members.new_id()))
            dead.events.add(Event(0.0, 0, 0, "first", EvictedDetails("w1")))
            dead.requests.add(Request("drain", 0))
            put_status(dead, TrainingStatus(step=9))
        fresh = JobStore(session, "digits")
        fresh.create(JOB, {"beta": 3})
        now = fresh.snapshot()
        assert (now.desired.hosts, now.requests, now.status) == ({"beta": 3}, (), TrainingStatus())
        assert fresh.events.read() == []
        assert fresh.members.new_id() == 0

    def test_an_ended_job_is_replaced_and_its_old_workers_cannot_return(
        self, other: Session, store: JobStore
    ) -> None:
        old = JobStore(other, "digits")
        old.members.put(member(old.members.new_id()))
        old.set_job_state(JobState.FINISHED, "trained")
        store.create(JOB, {"alpha": 4})
        assert store.snapshot().members == ()
        with pytest.raises(UnknownJob):
            old.members.put(member(0))
        assert store.snapshot().members == ()

    def test_a_run_is_created_once_however_often_it_is_asked_for(
        self, zk_hosts: str, session: Session
    ) -> None:
        """Also when it was stopped meanwhile; and it keeps its name until then."""
        reserved = replace(JOB, reserved=True)
        with Session(zk_hosts, access=DIGITS) as creator:
            JobStore(creator, "digits").create(reserved, {"alpha": 2}, run=RUN)
        store = JobStore(session, "digits")
        with pytest.raises(JobExists, match="no process of it lives, but its creator counts on it"):
            store.create(JOB, {"beta": 1})
        with pytest.raises(JobExists):
            store.create(reserved, {"beta": 1}, run=LATER)
        store.create(reserved, {"beta": 1}, run=RUN)
        store.set_job_state(JobState.STOPPED, "edl stop")
        store.create(reserved, {"beta": 1}, run=RUN)
        now = store.snapshot()
        assert (store.nodes.run, now.job.state) == (RUN, JobState.STOPPED)
        assert now.desired.hosts == {"alpha": 2}
        late = JobStore(session, "digits")
        late.nodes.belong_to(RUN)
        JobStore(session, "digits").create(reserved, {"beta": 1}, run=LATER)
        assert current_run(session, store.paths) == LATER
        with pytest.raises(UnknownJob, match="a new one of that name has taken its place"):
            late.hosts.put(Host("alpha", 2, "127.0.0.1"))
        with pytest.raises(UnknownJob):
            late.members.put(member(0))
        assert late.snapshot().hosts == ()
        store = JobStore(session, "digits")
        store.members.put(member(0))
        late.members.remove(0, "a")  # of its own run, as it thinks
        for write in (
            lambda: late.set_job_state(JobState.FAILED, "its worker is gone"),
            lambda: late.set_desired(lambda now: {}, RequestedBy.LAUNCHER, "it leaves"),
        ):
            with pytest.raises(UnknownJob):
                write()
        now = store.snapshot()
        assert (now.members, now.job.state) == ((member(0),), JobState.RUNNING)
        assert now.desired.hosts == {"beta": 1}

    def test_of_many_that_replace_the_same_job_one_succeeds(
        self, zk_hosts: str, store: JobStore
    ) -> None:
        assert store.events.newest_step() == 0
        for number in range(20):
            store.events.add(Event(0.0, 0, number, "", EvictedDetails("w1")))
        assert store.events.newest_step() == 19
        store.set_job_state(JobState.FAILED, "no more")
        outcomes: list[str] = []
        start = threading.Barrier(5)

        def create(name: str, session: Session) -> None:
            start.wait(10)
            try:
                JobStore(session, "digits").create(JOB, {name: 1})
            except JobExists:
                outcomes.append("exists")
            else:
                outcomes.append(name)

        sessions = [Session(zk_hosts, access=DIGITS) for _ in range(5)]
        try:
            for session in sessions:
                session.start()
            threads = [
                threading.Thread(target=create, args=(f"h{n}", session))
                for n, session in enumerate(sessions)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            winners = [name for name in outcomes if name != "exists"]
            assert (len(outcomes), len(winners)) == (5, 1)
            assert store.snapshot().desired.hosts == {winners[0]: 1}
        finally:
            for session in sessions:
                session.close()

    def test_more_events_than_fit_into_one_transaction_are_removed_with_the_job(
        self, session: Session, store: JobStore
    ) -> None:
        for number in range(600):
            store.events.add(Event(0.0, 0, number, "", EvictedDetails("w1")))
        assert len(store.events.read(after=9)) == 590
        assert store.events.trim(keep=550) == 50
        assert store.events.read()[0][0] == 50
        store.delete()
        assert list_jobs(session) == ()
        store.delete()


class TestStates:
    def test_a_state_is_left_only_from_where_it_may_be_left(self, store: JobStore) -> None:
        def stands() -> tuple[JobState, str, int]:
            job = store.snapshot().job
            return job.state, job.reason, job.exit_code

        assert store.set_job_state(JobState.STOPPING, "edl stop")
        assert stands() == (JobState.STOPPING, "edl stop", 0)
        assert not store.set_job_state(JobState.FAILED, "late", 1, only_from=(JobState.RUNNING,))
        assert stands() == (JobState.STOPPING, "edl stop", 0)
        stopping = (JobState.RUNNING, JobState.STOPPING)
        assert store.set_job_state(JobState.STOPPED, "done", 3, only_from=stopping)
        assert stands() == (JobState.STOPPED, "done", 3)

    def test_concurrent_changes_of_what_is_desired_are_all_kept(
        self, other: Session, store: JobStore
    ) -> None:
        def grow(one: JobStore) -> None:
            for _ in range(25):
                one.set_desired(
                    lambda now: {**now, "alpha": now["alpha"] + 1}, RequestedBy.PERSON, "so"
                )

        threads = [
            threading.Thread(target=grow, args=(one,)) for one in (store, JobStore(other, "digits"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        now = store.snapshot()
        assert now.desired.hosts == now.assigned.hosts == {"alpha": 52}
        assert len(store.events.read()) == 50

    def test_a_change_that_raises_changes_nothing(self, store: JobStore) -> None:
        def refuse(now: dict[str, int]) -> dict[str, int]:
            now["alpha"] = 9
            raise UsageError("too many")

        with pytest.raises(UsageError, match="too many"):
            store.set_desired(refuse, RequestedBy.PERSON, "so")
        assert store.snapshot().desired.hosts == {"alpha": 2}


class TestDesired:
    def test_a_change_its_event_and_what_is_assigned_are_written_at_once(
        self, store: JobStore
    ) -> None:
        put_status(store, TrainingStatus(step=7))
        done = store.set_desired(
            lambda now: {**now, "beta": 1}, RequestedBy.LAUNCHER, "host beta joins"
        )
        assert (done.before.hosts, done.desired.hosts) == ({"alpha": 2}, {"alpha": 2, "beta": 1})
        now = store.snapshot()
        assert (now.desired, now.assigned) == (done.desired, Assigned({"alpha": 2, "beta": 1}))
        assert (now.desired.by, now.desired.reason) == (RequestedBy.LAUNCHER, "host beta joins")
        ((_, event),) = store.events.read()
        assert event.details == DesiredDetails("launcher", {"alpha": 2}, now.desired.hosts)
        assert event.reason == "host beta joins: 2 -> 3 workers wanted (beta: 0 -> 1)"
        assert (event.generation, event.step) == (0, 7)

    def test_what_is_desired_already_is_no_change(self, store: JobStore) -> None:
        assert not store.set_desired(lambda now: now, RequestedBy.PERSON, "edl scale")
        assert (store.events.read(), store.snapshot().desired.reason) == ([], "the job starts")

    def test_a_profile_lets_stand_what_a_person_asks_for(self, store: JobStore) -> None:
        hold = ProfileHold("t", "process 7 on a", {"alpha": 2})
        assert store.profile.hold(hold)
        store.set_desired(lambda now: {"alpha": 1}, RequestedBy.PROFILE, "it measures")
        store.set_desired(lambda now: {"alpha": 3}, RequestedBy.LAUNCHER, "a host")
        assert store.profile.held() == hold
        store.set_desired(
            lambda now: now, RequestedBy.PERSON, "edl scale"
        )  # the size that there is
        assert store.profile.held() == replace(hold, asked=True)

    def test_where_slots_are_assigned_only_its_launcher_does_that(self, session: Session) -> None:
        store = JobStore(session, "digits")
        store.create(JOB, {"a": 2}, by_slot=True)
        now = store.snapshot()
        assert (now.desired.hosts, now.assigned) == ({}, Assigned({"a": 2}, by_slot=True))
        for slots in ({"a": 4}, {"a": 4, "b": 1}):  # edl-discover says it again and again
            said = store.discover(slots, {"a": 2}, 2, 5)
            assert (said.hosts, store.snapshot().discovered) == ({"a": 2}, slots)
        assert len(store.events.read()) == 1
        now = store.snapshot()
        assert (now.job.sizes.min_np, now.job.sizes.max_np) == (2, 5)
        store.set_desired(lambda now: {"a": 3}, RequestedBy.PERSON, "edl scale")
        assert store.discover({"a": 4}, {"a": 2}, 1, 9).hosts == {"a": 3}
        now = store.snapshot()
        assert (now.desired.hosts, now.assigned.hosts) == ({"a": 3}, {"a": 2})
        store.assign(lambda now: {**now, "a": 3})
        assert store.snapshot().assigned == Assigned({"a": 3}, by_slot=True)
        assert store.snapshot().job.sizes == now.job.sizes


class TestMembers:
    def test_ids_grow_from_zero_and_are_never_given_twice(self, store: JobStore) -> None:
        assert [store.members.new_id() for _ in range(4)] == [0, 1, 2, 3]

    def test_a_member_lives_as_long_as_its_session(
        self, zk_hosts: str, store: JobStore, wait_until: Wait
    ) -> None:
        with Session(zk_hosts, access=DIGITS) as session:
            worker = JobStore(session, "digits")
            worker.members.put(member(0))
            worker.members.put(member(0, stage=Stage.READY))
            assert store.snapshot().members == (member(0, stage=Stage.READY),)
        wait_until(lambda: store.snapshot().members == ())

    def test_a_new_session_of_the_same_launch_takes_its_node_over(
        self, other: Session, store: JobStore
    ) -> None:
        mine = JobStore(other, "digits")
        store.members.put(member(0))
        mine.members.put(member(0, stage=Stage.ACTIVE))
        other.close()
        assert store.snapshot().members == ()

    def test_the_id_of_another_launch_is_refused(self, other: Session, store: JobStore) -> None:
        store.members.put(member(0))
        with pytest.raises(CoordinationError, match="another launch"):
            JobStore(other, "digits").members.put(member(0, attempt_id="b"))
        assert store.snapshot().members == (member(0),)

    def test_a_member_comes_back_after_its_session_expired(
        self,
        session: Session,
        store: JobStore,
        expire: Callable[[Session], None],
        wait_until: Wait,
    ) -> None:
        store.members.put(member(0))
        expire(session)
        wait_until(lambda: session.epoch == 2)
        assert store.snapshot().members == ()
        store.members.put(member(0))
        assert store.snapshot().members == (member(0),)
        store.members.remove(0, "a")
        store.members.remove(0, "a")
        assert store.snapshot().members == ()

    def test_the_name_of_a_living_agent_is_not_given_twice(
        self, other: Session, store: JobStore
    ) -> None:
        store.hosts.put(Host("alpha", 2, "127.0.0.1", 100))
        store.hosts.put(Host("alpha", 3, "127.0.0.1", 100))
        mine = JobStore(other, "digits")
        with pytest.raises(UsageError, match="choose another --host"):
            mine.hosts.put(Host("alpha", 2, "127.0.0.1", 101))
        mine.hosts.put(Host("beta", 1, "127.0.0.1", 101))
        assert [(h.name, h.slots) for h in store.snapshot().hosts] == [("alpha", 3), ("beta", 1)]
        mine.hosts.put(Host("alpha", 1, "127.0.0.1", 101), is_dead=lambda host: host.pid == 100)
        assert [(h.name, h.slots) for h in store.snapshot().hosts] == [("alpha", 1), ("beta", 1)]
        with pytest.raises(UsageError, match="choose another --host"):
            store.hosts.put(Host("alpha", 3, "127.0.0.1", 100))
        store.hosts.put(Host("alpha", 3, "127.0.0.1", 100), is_dead=lambda _: True)
        other.close()
        assert len(store.snapshot().hosts) == 1

    def test_an_agent_declares_only_devices_that_the_job_may_use(
        self, other: Session, store: JobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        person = JobStore(other, "digits")

        def let_use(np: int, *devices: int) -> None:
            given = {"alpha": devices}
            person.set_desired(lambda _: {"alpha": np}, RequestedBy.PERSON, "so", devices=given)

        def there() -> list[tuple[int, ...]]:
            return [host.devices for host in store.snapshot().hosts]

        let_use(2, 0, 1)
        both = Host("alpha", 4, "127.0.0.1", 100, devices=(0, 1))
        store.hosts.put(both)
        let_use(1, 0)
        with pytest.raises(CoordinationError, match="the devices of job digits on host alpha were"):
            store.hosts.put(replace(both, slots=3))  # it has not read that yet
        store.hosts.put(replace(both, devices=(0,)))
        assert there() == [(0,)]

        transact = store.session.transact

        def late(*write: Any) -> Any:  # between its look and its write they are changed
            let_use(1, 1)
            return transact(*write)

        monkeypatch.setattr(store.session, "transact", late)
        with pytest.raises(CoordinationError, match="were changed; nothing was written"):
            store.hosts.put(replace(both, devices=(0,), slots=3))
        assert there() == [(0,)]

    def test_the_newest_process_of_a_slot_keeps_it(self, other: Session, store: JobStore) -> None:
        """The one before, whose session may live for a while, has died."""
        store.slots.put(SlotRecord("10.0.0.1", 1, 100))
        store.slots.put(SlotRecord("10.0.0.1", 0, 99))
        JobStore(other, "digits").slots.put(SlotRecord("10.0.0.1", 1, 101))
        other.close()
        assert store.snapshot().slots == (SlotRecord("10.0.0.1", 0, 99),)


class TestRequestsAndStatus:
    def test_requests_are_numbered_and_read_while_they_are_open(self, store: JobStore) -> None:
        numbers = [store.requests.add(Request("drain", worker)) for worker in (5, 6)]
        assert numbers == [0, 1]
        assert [(r.number, r.worker) for r in store.snapshot().requests] == [(0, 5), (1, 6)]
        assert not store.requests.get(1).done
        assert store.requests.cancel(0) is None
        assert [r.number for r in store.snapshot().requests] == [1]
        with pytest.raises(CoordinationError, match="no request number 0"):
            store.requests.get(0)

    def test_events_keep_their_order(self, store: JobStore) -> None:
        logged = [Event(1.0, n, 10 * n, f"reason {n}", EvictedDetails(f"w{n}")) for n in range(5)]
        assert [store.events.add(event) for event in logged] == [0, 1, 2, 3, 4]
        assert store.events.read() == list(enumerate(logged))
        assert store.events.read(after=3) == [(4, logged[4])]

    def test_an_event_of_a_newer_edl_can_be_left_out(self, store: JobStore) -> None:
        event = Event(1.0, 1, 10, "reason", EvictedDetails("w1"))
        store.events.add(event)
        newer = encode({**event.to_json(), "kind": "not_yet"})
        path = f"{store.paths.events}/e-"
        store.session.call("write", lambda c: c.create_async(path, newer, sequence=True))
        store.events.add(event)
        with pytest.raises(CoordinationError, match="this is not a Event: 'not_yet'"):
            store.events.read()
        found: list[tuple[int, str]] = []
        known = store.events.read_known(-1, lambda number, why: found.append((number, why)))
        assert known == [(0, event), (2, event)]
        assert [number for number, _ in found] == [1]
        assert store.events.newest(8, lambda: None) == [event, event]

    def test_the_status_is_what_was_written_last(self, store: JobStore) -> None:
        assert store.status() == TrainingStatus()
        status = TrainingStatus(
            step=7, progress_sample=ProgressSample(1, 2, 3, 0, 7, 84, 0.5), reason="why"
        )
        put_status(store, status)
        assert store.status() == store.snapshot().status == status


class TestWatches:
    @pytest.fixture
    def woken(self) -> list[int]:
        return []

    def test_every_change_wakes_and_nothing_piles_up(
        self, other: Session, store: JobStore, woken: list[int], wait_until: Wait
    ) -> None:
        def wake() -> None:
            woken.append(1)

        changer = JobStore(other, "digits")
        changes: list[Callable[[], object]] = [
            lambda: changer.members.put(member(0)),
            lambda: changer.members.put(member(0, stage=Stage.READY)),
            lambda: changer.hosts.put(Host("alpha", 1, "127.0.0.1")),
            lambda: changer.slots.put(SlotRecord("alpha", 0)),
            lambda: changer.set_desired(
                lambda now: {"alpha": now["alpha"] + 1}, RequestedBy.PERSON, "so"
            ),
            lambda: changer.requests.add(Request("drain", 0)),
            lambda: changer.set_job_state(JobState.STOPPING, "stop"),
        ]
        for change in changes:
            woken.clear()
            for _ in range(10):
                store.snapshot(wake)
            change()
            wait_until(lambda: woken)
            store.status()  # an answer that comes after all notifications of the change
            assert len(woken) == 1

    def test_status_and_events_wake_nobody(
        self, store: JobStore, woken: list[int], wait_until: Wait
    ) -> None:
        store.snapshot(lambda: woken.append(1))
        put_status(store, TrainingStatus(step=1))
        store.events.add(Event(0.0, 0, 0, "", EvictedDetails("w1")))
        store.set_desired(lambda now: {"alpha": 7}, RequestedBy.PERSON, "so")
        wait_until(lambda: woken)
        assert len(woken) == 1

    def test_a_worker_that_does_not_lead_hears_of_a_policy(
        self, store: JobStore, woken: list[int], wait_until: Wait
    ) -> None:
        assert store.watch_generation(lambda: woken.append(1)).policy == JobPolicy()
        script, person = (JobPolicy("[stragglers]\n", source) for source in ("train.py", "p.toml"))
        assert store.policy.propose(script) == script
        wait_until(lambda: woken)
        assert store.watch_generation(None).policy == script
        store.policy.change(lambda _: person, "edl policy set")
        assert store.policy.propose(script) == person, "what people say counts more"
        assert store.policy.get() == person
        kinds = [event.kind for _, event in store.events.read()]
        assert kinds.count(EventKind.POLICY_SET) == 2

    def test_what_was_learned_before_counts_until_something_is_seen(self, store: JobStore) -> None:
        before, now = (ScalingProfile(seen=((np, SizeMeasurement(40.0, 9)),)) for np in (2, 3))
        store.policy.put_learned(before)
        assert store.policy.learned() == before
        store.policy.put_learned(now)
        assert store.policy.learned() == before

    def test_a_worker_that_does_not_lead_hears_less(
        self, store: JobStore, woken: list[int], wait_until: Wait
    ) -> None:
        job, generation, evicted, leader, _ = store.watch_generation(lambda: woken.append(1))
        assert (job, generation, evicted, leader) == (JOB, None, {}, None)
        store.members.put(member(0))
        store.set_desired(lambda now: {"alpha": 1}, RequestedBy.PERSON, "so")
        store.set_job_state(JobState.STOPPING, "stop")
        wait_until(lambda: woken)
        assert len(woken) == 1


def test_an_identity_is_proved_after_all_answers_have_come(zk_hosts: str) -> None:
    """ZooKeeper answers a proof before earlier requests, which the client would mix up.

    An error is raised by the first answer, and the answers to the other reads come later.
    """
    mine, other = Access("mine", new_secret()), Access("other", new_secret())
    with Session(zk_hosts, access=mine) as owner, Session(zk_hosts, access=other) as session:
        owner.client.create("/closed", b"x" * 100_000)
        for number in range(50):
            with pytest.raises(AccessDenied):
                session.read_all("read", [get("/closed"), *[children("/")] * 10])
            session.identify(Access(f"j{number}", new_secret()))
        session.identify(mine)
        assert len(session.read_all("read", [get("/closed")])[0][0]) == 100_000
        assert session.epoch == 1
        owner.client.delete("/closed")


def test_an_identity_is_proved_while_another_thread_reads(zk_hosts: str) -> None:
    ends, reads = threading.Event(), []

    def read() -> None:
        while not ends.is_set():
            reads.append(session.read_all("read", [children("/")] * 10))

    with Session(zk_hosts, access=Access("mine", new_secret())) as session:
        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(100):
                session.identify(Access(f"j{number}", new_secret()))
        finally:
            ends.set()
            thread.join(20.0)
        assert session.epoch == 1
    assert reads


def test_what_a_signal_handler_raises_while_a_request_is_sent_is_not_lost(zk_hosts: str) -> None:
    """Ctrl-C in the moment in which the connection thread is woken; the session goes on."""
    with Session(zk_hosts) as session:
        wakes = session.client._connection._write_sock
        socket = wakes._wrapped

        def interrupted(data: bytes) -> int:
            socket.send(data)
            raise KeyboardInterrupt("Ctrl-C")

        wakes._wrapped = SimpleNamespace(send=interrupted)
        with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
            session.call("look", exists("/"))
        wakes._wrapped = socket
        assert session.call("look", exists("/"))
