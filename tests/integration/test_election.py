"""One leader at a time, terms that grow, and a fence that no deposed leader gets through."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from known import DIGITS
from made import make_job

from edl.errors import CoordinationError, LeadershipLost, UnknownJob
from edl.events import Event, EvictedDetails, GenerationDetails
from edl.job.decision import DesiredChange, MembershipDecision, set_desired
from edl.job.leader import Candidate
from edl.job.pending_writes import PendingWrites
from edl.job.run import JobEnd
from edl.records import (
    Generation,
    JobState,
    Leader,
    Member,
    Request,
    RequestedBy,
    RingFailure,
    RingMember,
    Stage,
    TrainingStatus,
)
from edl.worker.shared_state import SharedState
from edl.zookeeper.election import Election, Leadership, Write
from edl.zookeeper.nodes import JobNodes
from edl.zookeeper.session import Refused, Session
from edl.zookeeper.store import DecisionWriter, JobStore, job_election

pytestmark = pytest.mark.integration
Wait = Callable[..., None]
EVENT = Event(1.0, 1, 7, "why", GenerationDetails(1, ("w0",), ("w0",), (), True))
MEMBER = RingMember(0, "alpha", 0, "127.0.0.1", 4711)


def generation(number: int, term: int) -> Generation:
    return Generation(number, term, (MEMBER,), 0, (0,), (), "a test")


@pytest.fixture
def store(session: Session) -> JobStore:
    store = JobStore(session, "digits")
    store.create(make_job(command=("x",)), {"alpha": 2})
    return store


@pytest.fixture
def other(zk_hosts: str) -> Iterator[Session]:
    with Session(zk_hosts, session_timeout_s=2.0, access=DIGITS) as one:
        yield one


def candidate(session: Session, worker: int, job: str = "digits") -> Election:
    return job_election(JobNodes(session, job), worker)


def lead(election: Election) -> Leadership:
    election.enter()
    leadership = election.leads()
    assert leadership is not None
    return leadership


def unwritten(store: JobStore, worker: int) -> PendingWrites:
    one = PendingWrites(store, SharedState(worker))
    one.register(Member(worker, "alpha", 0, "127.0.0.1", 4711, 1, "launch"))
    return one


@dataclass
class Term:
    """What a worker does while it leads: nothing."""

    term: int

    def turn(self, wake: Callable[[], None]) -> None: ...


class TestCandidacy:
    """One that died a while ago is in no ring, and its session lives on for seconds."""

    def test_nobody_waits_behind_who_was_given_up(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        candidate(other, 1).enter()
        candidacy = Candidate(lambda one: cast(Any, Term(one.term)), lambda: "", 0.5)
        candidacy.campaign(lambda: candidate(session, 2))
        candidacy.turn(lambda: None)
        own = Member(2, "alpha", 0, "127.0.0.1", 4711, 1, "launch", broken=RingFailure(8, 40))
        assert candidacy.remove_dead(own, generation(8, 1), {}, False)
        assert not candidacy.remove_dead(own, generation(8, 1), {1: "gone"}, False)
        candidacy.turn(lambda: None)
        assert store.snapshot().leader == Leader(1, 2)

    def test_who_is_no_member_any_more_is_no_candidate(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, eleventh = candidate(other, 1), candidate(session, 11)
        first.enter()
        eleventh.enter()
        store.members.remove(1, "launch")
        assert eleventh.ahead() == []
        assert lead(eleventh).term == 1


class TestTerms:
    def test_the_first_candidate_leads_in_term_one_until_it_leaves(
        self, session: Session, other: Session, store: JobStore, wait_until: Wait
    ) -> None:
        first, second = candidate(session, 0), candidate(other, 1)
        woken = threading.Event()
        leadership = lead(first)
        second.enter()
        assert second.leads(woken.set) is None
        assert leadership.term == 1
        assert first.leads() is leadership
        assert store.snapshot().leader == Leader(1, 0)
        first.leave()
        wait_until(woken.is_set)
        assert first.leads() is None
        assert lead(second).term == 2
        assert store.snapshot().leader == Leader(2, 1)

    def test_who_does_not_stand_does_not_lead(self, session: Session, store: JobStore) -> None:
        election = candidate(session, 0)
        assert election.leads() is None
        election.leave()
        with pytest.raises(UnknownJob):
            candidate(session, 0, "letters").enter()

    def test_to_enter_twice_is_to_enter_once(self, session: Session, store: JobStore) -> None:
        election = candidate(session, 0)
        election.enter()
        election.enter()
        assert len(session.client.get_children(store.paths.election)) == 1
        leadership = election.leads()
        election.enter()
        assert election.leads() is leadership

    def test_the_last_of_a_queue_is_woken_only_by_the_one_before_it(
        self, zk_hosts: str, store: JobStore, wait_until: Wait
    ) -> None:
        sessions = [Session(zk_hosts, access=DIGITS) for _ in range(3)]
        try:
            elections = []
            for worker, one in enumerate(sessions):
                one.start()
                elections.append(candidate(one, worker))
                elections[-1].enter()
            woken = threading.Event()
            assert elections[2].leads(woken.set) is None
            sessions[0].close()
            assert lead(elections[1]).term == 1
            assert not woken.is_set()
            sessions[1].close()
            wait_until(woken.is_set)
            assert lead(elections[2]).term == 2
        finally:
            for one in sessions:
                one.close()

    def test_terms_grow_strictly_among_five_that_depose_each_other(
        self, zk_hosts: str, session: Session, store: JobStore
    ) -> None:
        won: list[tuple[int, int]] = []
        enough = threading.Event()

        def campaign(worker: int) -> None:
            with Session(zk_hosts, session_timeout_s=4.0, access=DIGITS) as mine:
                nodes = JobNodes(mine, "digits")
                election, woken = job_election(nodes, worker), threading.Event()
                while not enough.is_set():
                    woken.clear()
                    election.enter()
                    leadership = election.leads(woken.set)
                    if leadership is None:
                        woken.wait(0.05)
                        continue
                    try:
                        writer = DecisionWriter(nodes, leadership)
                        writer.put_status(TrainingStatus(step=leadership.term))
                    except LeadershipLost:
                        continue
                    won.append((leadership.term, worker))
                    if len(won) >= 30:
                        enough.set()
                    elif leadership.term % 2:
                        election.leave()
                    else:
                        election.remove(f"w{worker}")
                election.leave()

        threads = [threading.Thread(target=campaign, args=(worker,)) for worker in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        terms = [term for term, _ in won]
        assert len(won) >= 30
        assert len(set(terms)) == len(terms)
        assert len({worker for _, worker in won}) > 1
        leader = store.snapshot().leader
        assert leader is not None
        assert leader.term >= max(terms)


class TestFence:
    def test_every_write_of_a_deposed_leader_is_refused(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, second = candidate(session, 0), candidate(other, 1)
        deposed = lead(first)
        old = DecisionWriter(store.nodes, deposed)
        second.enter()
        assert second.remove("w0")
        assert not second.remove("w0")
        before = store.snapshot()
        for write in (
            lambda: old.carry_out(
                MembershipDecision("x", generation(1, 1), lower(store), {3: "x"}), events=[EVENT]
            ),
            lambda: old.put_status(TrainingStatus(step=1)),
            lambda: deposed.commit([Write(store.paths.desired, {})]),
        ):
            with pytest.raises(LeadershipLost, match="term 1"):
                write()
        assert store.snapshot() == before
        assert store.events.read() == []
        new = DecisionWriter(JobNodes(other, "digits"), lead(second))
        new.carry_out(MembershipDecision("x", generation(1, 2)))
        with pytest.raises(LeadershipLost):
            old.carry_out(MembershipDecision("x", generation(2, 1)))
        assert first.leads() is None

    def test_a_node_of_an_earlier_session_is_in_nobodys_way(
        self, session: Session, store: JobStore
    ) -> None:
        """It can even be of the living session: made with an old token, just after its end."""
        first = candidate(session, 0)
        session.client.create(f"{first.path}/w0-0ld-", b"{}", ephemeral=True, sequence=True)
        assert lead(first).term == 1
        assert len(session.client.get_children(first.path)) == 1

    def test_a_candidate_knows_who_is_before_it(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, second = candidate(session, 0), candidate(other, 12)
        lead(first)
        assert second.ahead() == ["w0"]
        second.enter()
        assert (first.ahead(), second.ahead()) == ([], ["w0"])
        second.remove("w0")
        first.enter()
        assert (first.ahead(), second.ahead()) == (["w12"], [])

    def test_a_deposed_leader_may_stand_again_behind_the_others(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, second = candidate(session, 0), candidate(other, 1)
        lead(first)
        second.enter()
        second.remove("w0")
        first.enter()
        assert first.leads() is None
        assert lead(second).term == 2

    def test_a_leader_whose_session_expired_is_refused_and_may_lead_again(
        self,
        session: Session,
        store: JobStore,
        expire: Callable[[Session], None],
        wait_until: Wait,
    ) -> None:
        election = candidate(session, 0)
        old = DecisionWriter(store.nodes, lead(election))
        expire(session)
        wait_until(lambda: session.epoch == 2)
        with pytest.raises(LeadershipLost):
            old.put_status(TrainingStatus(step=1))
        assert election.leads() is None
        new = DecisionWriter(store.nodes, lead(election))
        assert new.term == 2
        new.put_status(TrainingStatus(step=2))
        with pytest.raises(LeadershipLost):
            old.put_status(TrainingStatus(step=1))
        assert store.status() == TrainingStatus(step=2)


class TestALaterStartOfTheJob:
    """A worker of a finished start may still evaluate its model when the job is started again."""

    @pytest.fixture
    def earlier(self, session: Session, other: Session, store: JobStore) -> JobStore:
        """Return the store of a worker that belongs to the start before the present one."""
        earlier = JobStore(other, "digits")
        earlier.nodes.belong_to(store.nodes.run)
        earlier.watch_generation(None)
        store.set_job_state(JobState.FINISHED, "trained 10 steps")
        store.create(make_job(command=("y",)), {"alpha": 2})
        return earlier

    def test_is_not_led_by_a_worker_of_the_start_before(
        self, session: Session, store: JobStore, earlier: JobStore
    ) -> None:
        old = job_election(earlier.nodes, 1)
        with pytest.raises(UnknownJob):
            old.enter()
        new = job_election(store.nodes, 1)
        leadership = lead(new)
        for write in (old.enter, lambda: old.remove("w1")):
            with pytest.raises(UnknownJob):
                write()
        assert new.leads() is leadership
        names = session.client.get_children(new.path)
        assert [f"{new.path}/{name}" for name in names] == [leadership.node]

    def test_is_not_read_by_a_worker_of_the_start_before(self, earlier: JobStore) -> None:
        with pytest.raises(UnknownJob) as gone:
            earlier.watch_generation(None)
        assert not earlier.was_lost(gone.value)
        assert earlier.copy.job is not None
        assert earlier.copy.job.spec.command == ("x",)


class TestAnElectionOfSomethingElse:
    """Path, candidate and record are arguments: nothing of it is a job's."""

    ROOT = "/edl/scheduler"

    @pytest.fixture
    def nodes(self, session: Session) -> None:
        for path in ("election", "leader", "queue"):
            session.client.create(f"{self.ROOT}/{path}", makepath=True)

    def instance(self, session: Session, name: str) -> Election:
        return Election(
            session,
            f"{self.ROOT}/election",
            name,
            leader_path=f"{self.ROOT}/leader",
            record={"address": f"{name}:80"},
        )

    def value(self, session: Session, path: str) -> Any:
        return json.loads(session.client.get(f"{self.ROOT}/{path}")[0])

    @pytest.mark.usefixtures("nodes")
    def test_names_may_have_dashes_and_begin_alike(self, session: Session, other: Session) -> None:
        first, second = self.instance(session, "alpha"), self.instance(other, "alpha-2")
        assert lead(first).term == 1
        second.enter()
        assert (first.ahead(), second.ahead()) == ([], ["alpha"])
        assert self.value(session, "leader") == {"address": "alpha:80", "term": 1}
        names = session.client.get_children(first.path)
        records = [self.value(session, f"election/{name}") for name in sorted(names)]
        assert sorted(one["address"] for one in records) == ["alpha-2:80", "alpha:80"]
        assert second.remove("alpha")
        assert lead(second).term == 2
        assert self.value(session, "leader") == {"address": "alpha-2:80", "term": 2}

    @pytest.mark.usefixtures("nodes")
    def test_the_writes_of_a_removed_leader_are_refused(
        self, session: Session, other: Session
    ) -> None:
        first, second = self.instance(session, "alpha"), self.instance(other, "beta")
        old, queue = lead(first), f"{self.ROOT}/queue"
        old.commit([Write(queue, {"jobs": 1}), Write(f"{queue}/j-", {}, sequence=True)])
        with pytest.raises(CoordinationError, match="nothing was written"):
            old.commit([Write(f"{queue}/x", {}, create=True), Write(queue, {}, version=9)])
        with pytest.raises(Refused) as refused:
            old.try_commit([Write(f"{queue}/x", {}, create=True), Write(queue, {}, version=9)])
        assert refused.value.index == 1
        second.enter()
        second.remove("alpha")
        with pytest.raises(LeadershipLost, match="term 1"):
            old.commit([Write(queue, {"jobs": 2})])
        lead(second)
        with pytest.raises(LeadershipLost, match="term 1"):
            old.try_commit([Write(queue, {"jobs": 3})])
        assert self.value(session, "queue") == {"jobs": 1}
        assert session.client.get_children(queue) == ["j-0000000000"]

    @pytest.mark.usefixtures("nodes")
    def test_it_is_apart_from_the_election_of_a_job(
        self, session: Session, store: JobStore
    ) -> None:
        scheduler, worker = self.instance(session, "w0"), candidate(session, 0)
        old, leadership = lead(scheduler), lead(worker)
        assert scheduler.remove("w0")
        with pytest.raises(LeadershipLost):
            old.commit([Write(f"{self.ROOT}/queue", {})])
        assert worker.leads() is leadership
        DecisionWriter(store.nodes, leadership).put_status(TrainingStatus(step=1))
        assert store.snapshot().leader == Leader(1, 0)

    def test_its_nodes_must_exist(self, session: Session) -> None:
        with pytest.raises(CoordinationError, match="there is no election at /edl/scheduler/ele"):
            self.instance(session, "alpha").enter()


def lower(store: JobStore) -> DesiredChange:
    """One worker on alpha is left, by what ZooKeeper says now."""
    now = store.snapshot()
    return set_desired(now.desired, now.assigned, {"alpha": 1}, RequestedBy.LEADER, "w1 leaves")


class TestDecisions:
    @pytest.fixture
    def leadership(self, session: Session, store: JobStore) -> Leadership:
        return lead(candidate(session, 0))

    @pytest.fixture
    def decisions(self, store: JobStore, leadership: Leadership) -> DecisionWriter:
        return DecisionWriter(store.nodes, leadership)

    def test_all_of_a_decision_is_written_at_once(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        number = store.requests.add(Request("drain", 0))
        answer = Request("drain", 0, number, True, True, "w0 leaves")
        decision = MembershipDecision(
            "why", generation(1, 1), lower(store), {7: "too late"}, (answer,)
        )
        events = [EVENT, Event(1.0, 1, 7, "w7 was evicted: too late", EvictedDetails("w7"))]
        decisions.carry_out(decision, events)
        assert [event for _, event in store.events.read()] == events
        now = store.snapshot()
        assert now.generation == generation(1, 1)
        assert now.desired.hosts == now.assigned.hosts == {"alpha": 1}
        assert (now.desired.by, now.evicted, now.requests) == (
            RequestedBy.LEADER,
            {7: "too late"},
            (),
        )
        assert store.requests.get(number) == answer
        job, current, evicted, leader, _ = store.watch_generation(None)
        assert (job, current, evicted) == (now.job, now.generation, {7: "too late"})
        assert leader == Leader(1, 0)

    def test_a_generation_that_does_not_follow_is_refused_with_all_the_rest(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        decisions.carry_out(MembershipDecision("x", generation(1, 1)))
        for wrong in (generation(1, 1), generation(3, 1), generation(2, 2)):
            with pytest.raises(CoordinationError, match="cannot follow generation 1"):
                decisions.carry_out(MembershipDecision("x", wrong, lower(store)), events=[EVENT])
        assert store.snapshot().desired.hosts == {"alpha": 2}
        assert store.events.read() == []
        decisions.carry_out(MembershipDecision("x", generation(2, 1)))

    def test_what_is_desired_meanwhile_is_not_overwritten(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        change = lower(store)
        store.set_desired(lambda now: {"alpha": 3}, RequestedBy.PERSON, "edl scale")
        with pytest.raises(CoordinationError, match="decide again"):
            decisions.carry_out(MembershipDecision("x", generation(1, 1), change))
        now = store.snapshot()
        assert (now.desired.hosts, now.assigned.hosts) == ({"alpha": 3}, {"alpha": 3})
        assert now.generation is None
        decisions.carry_out(MembershipDecision("x", change=lower(store)))
        assert store.snapshot().assigned.hosts == {"alpha": 1}

    def test_withdrawn_requests_and_repeated_evictions_do_no_harm(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        decisions.carry_out(MembershipDecision("x", evict={7: "first"}))
        answer = Request("drain", 0, 99, True, False, "no")
        decisions.carry_out(
            MembershipDecision("x", generation(1, 1), None, {7: "second"}, (answer,))
        )
        now = store.snapshot()
        assert (now.evicted, now.generation) == ({7: "first"}, generation(1, 1))

    def test_a_worker_that_has_left_as_agreed_is_not_evicted(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        """Its record was there when the leader read it, and its port refused a moment later."""
        gone = MembershipDecision("x", evict={5: "it is gone"}, registered=frozenset({5}))
        store.members.put(Member(5, "alpha", 0, "h", 1, 1, "x", Stage.ACTIVE, 1))
        store.members.remove(5, "x")
        with pytest.raises(CoordinationError, match="left as agreed meanwhile; decide again"):
            decisions.carry_out(gone, [EVENT])
        assert (store.snapshot().evicted, store.events.read()) == ({}, [])
        store.members.put(Member(5, "alpha", 0, "h", 1, 1, "x", Stage.ACTIVE, 1))
        decisions.carry_out(gone, [EVENT])
        assert store.snapshot().evicted == {5: "it is gone"}

    def test_a_request_that_is_withdrawn_is_not_granted(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        number = store.requests.add(Request("drain", 0))
        seen = store.snapshot()
        assert store.requests.cancel(number) is None
        answer = Request("drain", 0, number, True, True, "w0 leaves")
        with pytest.raises(CoordinationError, match="withdrawn meanwhile; decide again"):
            decisions.carry_out(
                MembershipDecision("x", generation(1, 1), None, {}, (answer,)), seen
            )
        assert store.snapshot().generation is None
        assert store.requests.cancel(number) is None

    def test_a_request_that_is_answered_cannot_be_withdrawn(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        number = store.requests.add(Request("drain", 0))
        answer = Request("drain", 0, number, True, True, "w0 leaves")
        decisions.carry_out(MembershipDecision("x", answers=(answer,)))
        assert store.requests.cancel(number) == answer
        assert store.requests.get(number) == answer

    def test_a_decision_to_do_nothing_writes_nothing(
        self, store: JobStore, decisions: DecisionWriter
    ) -> None:
        before = store.snapshot()
        decisions.carry_out(MembershipDecision("all is well"))
        assert store.snapshot() == before
        assert store.events.read() == []

    def test_a_write_that_expects_another_version_changes_nothing(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        with pytest.raises(CoordinationError, match="nothing was written"):
            leadership.commit(
                [Write(store.paths.status, {"a": 1}), Write(store.paths.desired, {}, version=9)]
            )
        assert store.status() == TrainingStatus()


class TestTheEndOfAJob:
    """A ring that was cut off as a whole has trained to the end, and its job goes on without it."""

    def test_only_who_belongs_to_the_job_says_that_it_has_finished(
        self, session: Session, store: JobStore
    ) -> None:
        decisions = DecisionWriter(store.nodes, lead(candidate(session, 0)))
        decisions.carry_out(MembershipDecision("w0 trains", generation(1, 1)), [])
        outside, inside = (unwritten(store, worker) for worker in (7, 0))
        inside.end_job(JobEnd(JobState.FINISHED, "trained 60 steps", 1), None)
        outside.end_job(JobEnd(JobState.FINISHED, "trained 90 steps"), None)
        outside.write(as_member=False)
        assert outside.flush(0.0)
        assert store.snapshot().job.state is JobState.RUNNING
        inside.end_job(JobEnd(JobState.FINISHED, "its first word counts"), None)
        inside.write(as_member=False)
        job = store.snapshot().job
        assert (job.state, job.reason, job.exit_code) == (
            JobState.FINISHED,
            "trained 60 steps",
            1,
        )

    def test_not_who_was_given_up(self, session: Session, store: JobStore) -> None:
        decisions = DecisionWriter(store.nodes, lead(candidate(session, 0)))
        decision = MembershipDecision("w0 is cut off", generation(1, 1), evict={0: "it is cut off"})
        decisions.carry_out(decision, [])
        one = unwritten(store, 0)
        one.end_job(JobEnd(JobState.FINISHED, "trained 90 steps"), None)
        one.write(as_member=False)
        assert store.snapshot().job.state is JobState.RUNNING


class TestTheNewestCheckpoint:
    """w0 trains on; w7 was cut off from ZooKeeper before it could say what it had saved."""

    @pytest.mark.parametrize("is_evicted", [False, True])
    def test_is_not_replaced_by_an_earlier_one_of_a_worker_that_is_left_out(
        self, session: Session, store: JobStore, is_evicted: bool
    ) -> None:
        decisions = DecisionWriter(store.nodes, lead(candidate(session, 0)))
        members = (MEMBER, replace(MEMBER, id=7)) if is_evicted else (MEMBER,)
        ring = replace(generation(1, 1), members=members)
        evict = {7: "it is cut off"} if is_evicted else {}
        decisions.carry_out(MembershipDecision("w0 trains on", ring, evict=evict), [])
        outside, inside = (unwritten(store, worker) for worker in (7, 0))
        for writer, step, newest in (
            (outside, 900, 900),  # it is the first one
            (inside, 1500, 1500),
            (outside, 1000, 1500),
            (outside, 1600, 1600),
            (inside, 1400, 1400),  # a new ring has found the later ones damaged
        ):
            writer.put_saved(f"of step {step}", step)
            writer.write(as_member=False)
            assert writer.flush(0.0)
            job = store.snapshot().job
            assert (job.saved_step, job.checkpoint) == (newest, f"of step {newest}")
