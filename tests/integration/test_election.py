"""One leader at a time, terms that grow, and a fence that no deposed leader gets through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from known import DIGITS
from made import make_job

from edl.coordination.election import Election, Leadership, Write
from edl.coordination.job_store import JobStore
from edl.coordination.session import Session
from edl.core.events import Event, EvictedDetails, GenerationDetails
from edl.core.job.decision import MembershipDecision
from edl.core.job.desired import Change, set_desired
from edl.core.progress import TrainingStatus
from edl.core.records import (
    Generation,
    JobEnd,
    JobState,
    Leader,
    Member,
    Request,
    RequestedBy,
    RingFailure,
    RingMember,
)
from edl.daemon.candidate import Candidate
from edl.daemon.pending_writes import PendingWrites
from edl.errors import CoordinationError, LeadershipLost, UnknownJob
from edl.worker.shared_state import SharedState

pytestmark = pytest.mark.integration

Wait = Callable[..., None]
EVENT = Event(1.0, 1, 7, "why", GenerationDetails(1, ("w0",), ("w0",), (), True))
SEAT = RingMember(0, "alpha", 0, "127.0.0.1", 4711)


def generation(number: int, term: int) -> Generation:
    return Generation(number, term, (SEAT,), 0, (0,), (), "a test")


@pytest.fixture
def store(session: Session) -> JobStore:
    store = JobStore(session, "digits")
    store.create(make_job(command=("x",)), {"alpha": 2})
    return store


@pytest.fixture
def other(zk_hosts: str) -> Iterator[Session]:
    with Session(zk_hosts, session_timeout_s=2.0, access=DIGITS) as one:
        yield one


def lead(election: Election) -> Leadership:
    election.enter()
    leadership = election.leads()
    assert leadership is not None
    return leadership


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
        Election(other, "digits", 1).enter()
        candidacy = Candidate(lambda one: cast(Any, Term(one.term)), lambda: "", 0.5)
        candidacy.campaign(lambda: Election(session, "digits", 2))
        candidacy.turn(lambda: None)
        own = Member(2, "alpha", 0, "127.0.0.1", 4711, 1, "launch", broken=RingFailure(8, 40))
        assert candidacy.remove_dead(own, generation(8, 1), {}, False)
        assert not candidacy.remove_dead(own, generation(8, 1), {1: "gone"}, False)
        candidacy.turn(lambda: None)
        assert store.snapshot().leader == Leader(1, 2)

    def test_who_is_no_member_any_more_is_no_candidate(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, eleventh = Election(other, "digits", 1), Election(session, "digits", 11)
        first.enter()
        eleventh.enter()
        store.members.remove(1)
        assert eleventh.ahead() == []
        assert lead(eleventh).term == 1


class TestTerms:
    def test_the_first_candidate_leads_in_term_one_until_it_leaves(
        self, session: Session, other: Session, store: JobStore, wait_until: Wait
    ) -> None:
        first, second = Election(session, "digits", 0), Election(other, "digits", 1)
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
        election = Election(session, "digits", 0)
        assert election.leads() is None
        election.leave()
        with pytest.raises(UnknownJob):
            Election(session, "letters", 0).enter()

    def test_to_enter_twice_is_to_enter_once(self, session: Session, store: JobStore) -> None:
        election = Election(session, "digits", 0)
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
                elections.append(Election(one, "digits", worker))
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
                election, woken = Election(mine, "digits", worker), threading.Event()
                while not enough.is_set():
                    woken.clear()
                    election.enter()
                    leadership = election.leads(woken.set)
                    if leadership is None:
                        woken.wait(0.05)
                        continue
                    try:
                        leadership.put_status(TrainingStatus(step=leadership.term))
                    except LeadershipLost:
                        continue
                    won.append((leadership.term, worker))
                    if len(won) >= 30:
                        enough.set()
                    elif leadership.term % 2:
                        election.leave()
                    else:
                        election.remove(worker)
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
        first, second = Election(session, "digits", 0), Election(other, "digits", 1)
        old = lead(first)
        second.enter()
        assert second.remove(0)
        assert not second.remove(0)
        before = store.snapshot()
        for write in (
            lambda: old.carry_out(
                MembershipDecision("x", generation(1, 1), lower(store), {3: "x"}), events=[EVENT]
            ),
            lambda: old.put_status(TrainingStatus(step=1)),
            lambda: old.commit([Write(store.paths.desired, {})]),
        ):
            with pytest.raises(LeadershipLost, match="term 1"):
                write()
        assert store.snapshot() == before
        assert store.events.read() == []
        new = lead(second)
        new.carry_out(MembershipDecision("x", generation(1, 2)))
        with pytest.raises(LeadershipLost):
            old.carry_out(MembershipDecision("x", generation(2, 1)))
        assert first.leads() is None

    def test_a_node_of_an_earlier_session_is_in_nobodys_way(
        self, session: Session, store: JobStore
    ) -> None:
        """It can even be of the living session: made with an old token, just after its end."""
        first = Election(session, "digits", 0)
        session.client.create(
            f"{first.paths.election}/w0-0ld-", b"{}", ephemeral=True, sequence=True
        )
        assert lead(first).term == 1
        assert len(session.client.get_children(first.paths.election)) == 1

    def test_a_candidate_knows_who_is_before_it(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, second = Election(session, "digits", 0), Election(other, "digits", 12)
        lead(first)
        assert second.ahead() == [0]
        second.enter()
        assert (first.ahead(), second.ahead()) == ([], [0])
        second.remove(0)
        first.enter()
        assert (first.ahead(), second.ahead()) == ([12], [])

    def test_a_deposed_leader_may_stand_again_behind_the_others(
        self, session: Session, other: Session, store: JobStore
    ) -> None:
        first, second = Election(session, "digits", 0), Election(other, "digits", 1)
        lead(first)
        second.enter()
        second.remove(0)
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
        election = Election(session, "digits", 0)
        old = lead(election)
        expire(session)
        wait_until(lambda: session.epoch == 2)
        with pytest.raises(LeadershipLost):
            old.put_status(TrainingStatus(step=1))
        assert election.leads() is None
        new = lead(election)
        assert new.term == 2
        new.put_status(TrainingStatus(step=2))
        with pytest.raises(LeadershipLost):
            old.put_status(TrainingStatus(step=1))
        assert store.status() == TrainingStatus(step=2)


def lower(store: JobStore) -> Change:
    """One worker on alpha is left, by what ZooKeeper says now."""
    now = store.snapshot()
    return set_desired(now.desired, now.assigned, {"alpha": 1}, RequestedBy.LEADER, "w1 leaves")


class TestDecisions:
    @pytest.fixture
    def leadership(self, session: Session, store: JobStore) -> Leadership:
        return lead(Election(session, "digits", 0))

    def test_all_of_a_decision_is_written_at_once(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        number = store.requests.add(Request("drain", 0))
        answer = Request("drain", 0, number, True, True, "w0 leaves")
        decision = MembershipDecision(
            "why", generation(1, 1), lower(store), {7: "too late"}, (answer,)
        )
        events = [EVENT, Event(1.0, 1, 7, "w7 was given up: too late", EvictedDetails("w7"))]
        leadership.carry_out(decision, events)
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
        self, store: JobStore, leadership: Leadership
    ) -> None:
        leadership.carry_out(MembershipDecision("x", generation(1, 1)))
        for wrong in (generation(1, 1), generation(3, 1), generation(2, 2)):
            with pytest.raises(CoordinationError, match="cannot follow generation 1"):
                leadership.carry_out(MembershipDecision("x", wrong, lower(store)), events=[EVENT])
        assert store.snapshot().desired.hosts == {"alpha": 2}
        assert store.events.read() == []
        leadership.carry_out(MembershipDecision("x", generation(2, 1)))

    def test_what_is_desired_meanwhile_is_not_overwritten(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        change = lower(store)
        store.set_desired(lambda now: {"alpha": 3}, RequestedBy.PERSON, "edl scale")
        with pytest.raises(CoordinationError, match="decide again"):
            leadership.carry_out(MembershipDecision("x", generation(1, 1), change))
        now = store.snapshot()
        assert (now.desired.hosts, now.assigned.hosts) == ({"alpha": 3}, {"alpha": 3})
        assert now.generation is None
        leadership.carry_out(MembershipDecision("x", change=lower(store)))
        assert store.snapshot().assigned.hosts == {"alpha": 1}

    def test_withdrawn_requests_and_repeated_evictions_do_no_harm(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        leadership.carry_out(MembershipDecision("x", evict={7: "first"}))
        answer = Request("drain", 0, 99, True, False, "no")
        leadership.carry_out(
            MembershipDecision("x", generation(1, 1), None, {7: "second"}, (answer,))
        )
        now = store.snapshot()
        assert (now.evicted, now.generation) == ({7: "first"}, generation(1, 1))

    def test_a_request_that_is_withdrawn_is_not_granted(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        number = store.requests.add(Request("drain", 0))
        seen = store.snapshot()
        assert store.requests.cancel(number) is None
        answer = Request("drain", 0, number, True, True, "w0 leaves")
        with pytest.raises(CoordinationError, match="withdrawn meanwhile; decide again"):
            leadership.carry_out(
                MembershipDecision("x", generation(1, 1), None, {}, (answer,)), seen
            )
        assert store.snapshot().generation is None
        assert store.requests.cancel(number) is None

    def test_a_request_that_is_answered_cannot_be_withdrawn(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        number = store.requests.add(Request("drain", 0))
        answer = Request("drain", 0, number, True, True, "w0 leaves")
        leadership.carry_out(MembershipDecision("x", answers=(answer,)))
        assert store.requests.cancel(number) == answer
        assert store.requests.get(number) == answer

    def test_a_decision_to_do_nothing_writes_nothing(
        self, store: JobStore, leadership: Leadership
    ) -> None:
        before = store.snapshot()
        leadership.carry_out(MembershipDecision("all is well"))
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
        leadership = lead(Election(session, "digits", 0))
        leadership.carry_out(MembershipDecision("w0 trains", generation(1, 1)), [])
        outside, inside = (self.unwritten(store, worker) for worker in (7, 0))
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
        leadership = lead(Election(session, "digits", 0))
        decision = MembershipDecision("w0 is cut off", generation(1, 1), evict={0: "it is cut off"})
        leadership.carry_out(decision, [])
        one = self.unwritten(store, 0)
        one.end_job(JobEnd(JobState.FINISHED, "trained 90 steps"), None)
        one.write(as_member=False)
        assert store.snapshot().job.state is JobState.RUNNING

    @staticmethod
    def unwritten(store: JobStore, worker: int) -> PendingWrites:
        one = PendingWrites(store, SharedState(worker))
        one.register(Member(worker, "alpha", 0, "127.0.0.1", 4711, 1, "launch"))
        return one
