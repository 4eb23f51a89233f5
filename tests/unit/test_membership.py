"""Who is in the ring next, and why: the guards of the module's docstring, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from made import changed, make_job, wanted

from edl.job.decision import Limits, MembershipDecision, set_desired
from edl.job.liveness import Ages
from edl.job.membership import decide
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    JobState,
    Member,
    Reclaim,
    Request,
    RequestedBy,
    RequestKind,
    RingFailure,
    RingMember,
    SlotRecord,
    Stage,
)

LIMITS = Limits(
    start_s=120,
    prepare_s=300,
    gather_s=3,
    leave_grace_s=30,
    notice_s=60,
    report_s=600,
    leave_gather_s=0.5,
)
JOB = make_job(command=("true",))
TERM = 5


def worker(number: int, host: str = "a", **changes: Any) -> Member:
    """Return a worker in the ring of generation 7, unless changed."""
    fresh = Member(number, host, number, "::1", 9000 + number, 100 + number, f"launch{number}")
    return replace(fresh, **{"stage": Stage.ACTIVE, "generation": 7, **changes})


def newcomer(
    number: int, host: str = "a", stage: Stage = Stage.READY, newest_generation: int = 7
) -> Member:
    """Return a newcomer that has taken note of generation 7."""
    return worker(number, host, stage=stage, generation=0, newest_generation=newest_generation)


def ring(*members: Member, **changes: Any) -> Generation:
    """Return generation 7, which all its members have entered."""
    ring_members = tuple(as_ring_member(m) for m in members)
    return replace(
        Generation(7, 4, ring_members, ring_members[0].id, (), (), "so it began"), **changes
    )


def as_ring_member(m: Member) -> RingMember:
    return RingMember(m.id, m.host, m.slot, m.address, m.port)


def job_of(
    *members: Member, newcomers: tuple[Member, ...] = (), by_slot: bool = False, **changes: Any
) -> Snapshot:
    """Return a job that trains with ``members``, as many as are wanted."""
    hosts = Counter(m.host for m in members)
    known = tuple(sorted((*members, *newcomers), key=lambda m: m.id))
    now = Snapshot(JOB, members=known, **wanted(hosts, by_slot), generation=ring(*members))
    return replace(now, **changes)


def ages(
    leading_s: float = 1000.0,
    generation_s: float = 1000.0,
    broken_s: float = 0.0,
    **stage_s: float,
) -> Ages:
    """``w3=2.5``: worker 3 is in its stage for 2.5 s; all others for long."""
    known = dict.fromkeys(range(20), 1000.0)
    known |= {int(name[1:]): age for name, age in stage_s.items()}
    return Ages(leading_s, known, generation_s, broken_s)


def decided(
    now: Snapshot,
    when: Ages | None = None,
    dead: tuple[int, ...] = (),
    silent: tuple[int, ...] = (),
) -> MembershipDecision:
    proofs = dict.fromkeys(dead, "its port is refused")
    return decide(now, TERM, when or ages(), LIMITS, proofs, frozenset(silent))


def made(decision: MembershipDecision) -> Generation:
    assert decision.generation is not None, decision.reason
    return decision.generation


def waits(decision: MembershipDecision, reason: str) -> None:
    assert decision == MembershipDecision(reason)
    assert not decision.acts


A, B, C = worker(0), worker(1), worker(2)


def lowered(decision: MembershipDecision) -> Mapping[str, int] | None:
    """Return what is desired from now on; None: as before."""
    return decision.change.desired.hosts if decision.change else None


# --- 1. a stopping job ---


def test_a_stopping_job_gets_a_generation_without_seats() -> None:
    now = job_of(A, B, newcomers=(newcomer(2),))
    now = replace(now, job=replace(JOB, state=JobState.STOPPING, reason="edl stop"))
    new = made(decided(now))
    assert (new.number, new.term, new.members, new.left) == (8, TERM, (), (0, 1))
    assert new.reason == "the job is asked to stop: edl stop"


def test_a_job_is_stopped_before_it_starts() -> None:
    now = Snapshot(replace(JOB, state=JobState.STOPPING), members=(newcomer(0),))
    assert (made(decided(now)).number, made(decided(now)).members) == (1, ())


def test_a_stop_does_not_wait_for_anything() -> None:
    broken = replace(A, broken=RingFailure(7, 40))
    now = job_of(broken, B, job=replace(JOB, state=JobState.STOPPING))
    assert made(decided(now)).members == ()


@pytest.mark.parametrize("state", [s for s in JobState if s.over])
def test_a_job_that_is_over_stays_over(state: JobState) -> None:
    now = job_of(A, B, newcomers=(newcomer(2),), **wanted({"a": 3}), job=replace(JOB, state=state))
    waits(decided(now), "the job has ended")


def test_a_generation_without_seats_is_the_last() -> None:
    end = Generation(8, 4, (), -1, (), (0, 1), "edl stop")
    waits(decided(job_of(A, newcomers=(newcomer(2),), generation=end)), "the job has ended")


# --- 2. a job without a ring ---


def starting(*members: Member, **changes: Any) -> Snapshot:
    return Snapshot(changed(JOB, **changes), members=members, **wanted({"a": 2}))


def test_a_job_starts_when_np_workers_are_ready() -> None:
    new = made(decided(starting(newcomer(0), newcomer(1)), ages(leading_s=0)))
    assert (new.number, new.term, new.worker_ids) == (1, TERM, (0, 1))
    assert (new.joined, new.left, new.previous) == ((0, 1), (), ())
    assert new.state_source == 0
    assert new.reason == "the job starts with 2 of 2 workers"


def test_the_ranks_of_a_start_go_host_by_host() -> None:
    """Neighbours in the ring send each other every gradient: rather within a host."""
    members = (newcomer(0, "b"), newcomer(1, "a"), newcomer(2, "b"), newcomer(3, "a"))
    assert made(decided(starting(*members, np=4))).worker_ids == (0, 2, 1, 3)


def test_a_restart_keeps_the_order_of_the_hosts() -> None:
    dead = ring(worker(0, "b"), worker(1, "a"))
    fresh = (newcomer(2, "a"), newcomer(3, "c"), newcomer(4, "b"))
    job = changed(JOB, np=3, saved_step=40)
    now = Snapshot(job, members=fresh, **wanted({"a": 1, "b": 1, "c": 1}), generation=dead)
    assert made(decided(now, dead=(0, 1))).worker_ids == (4, 2, 3)


def test_a_start_waits_for_the_last_of_np() -> None:
    now = starting(newcomer(0), newcomer(1, stage=Stage.PREPARING))
    waits(decided(now, ages(119.9, w1=119.0)), "1 of 2 workers are ready to start")


def test_a_start_does_not_wait_for_slots_whose_workers_die() -> None:
    now = starting(newcomer(0), newcomer(1), newcomer(2), np=4)
    waits(decided(now, ages(1.0)), "3 of 4 workers are ready to start")
    now = replace(now, hosts=(Host("b", 1, "", failing={"0": ""}),))
    assert made(decided(now, ages(1.0))).worker_ids == (0, 1, 2)


def test_a_start_goes_on_with_min_np_after_the_limit() -> None:
    now = starting(newcomer(0), newcomer(1, stage=Stage.PREPARING))
    assert made(decided(now, ages(120, w1=119.0))).worker_ids == (0,)


def test_a_start_never_goes_on_with_fewer_than_min_np() -> None:
    now = starting(newcomer(0), min_np=2)
    waits(decided(now, ages(9999)), "1 of 2 workers are ready to start")


def test_a_start_takes_all_that_are_ready_up_to_max_np() -> None:
    now = starting(*(newcomer(n) for n in range(6)))
    assert made(decided(now)).worker_ids == (0, 1, 2, 3)


def test_a_start_does_not_count_the_dead() -> None:
    now = starting(newcomer(0), newcomer(1))
    waits(decided(now, ages(0), dead=(1,)), "1 of 2 workers are ready to start")


def test_a_worker_that_hangs_before_the_start_is_given_up() -> None:
    now = starting(newcomer(0), newcomer(1, stage=Stage.PREPARING), min_np=2)
    decision = decided(now, ages(w1=300.0))
    assert decision.evict == {1: "it was not ready after 300 s"}
    assert decision.generation is None


def test_a_job_whose_ring_is_dead_to_the_last_starts_again() -> None:
    now = job_of(A, B, newcomers=(newcomer(2), newcomer(3)))
    new = made(decided(now, dead=(0, 1)))
    assert (new.number, new.worker_ids, new.joined, new.left) == (8, (2, 3), (2, 3), (0, 1))
    assert new.reason.startswith("all 2 workers of generation 7 died, their state is lost")


def test_a_job_that_starts_again_waits_for_no_host_that_died_with_its_workers() -> None:
    c, d = worker(2, "b"), worker(3, "b")
    now = job_of(A, c, d, newcomers=(newcomer(4),), hosts=(Host("a", 2, "::1"),))
    early = decided(now, ages(leading_s=1.0), dead=(0, 2, 3))  # b's session may be opened again
    assert early.generation is None
    assert early.reason == "all 3 workers of generation 7 died; 1 of 3 workers are ready to start"
    new = made(decided(now, ages(leading_s=10.0), dead=(0, 2, 3)))
    assert new.worker_ids == (4,)
    assert new.reason.endswith(
        "the job starts with 1 of 1 worker; nobody waits for b, where no agent is"
    )
    there = replace(now, hosts=(*now.hosts, Host("b", 2, "::1")))
    assert decided(there, ages(leading_s=10.0), dead=(0, 2, 3)).generation is None
    few = replace(now, job=changed(now.job, min_np=2))
    assert decided(few, ages(leading_s=10.0), dead=(0, 2, 3)).generation is None


def test_the_death_of_one_that_was_left_alone_is_told_so() -> None:
    new = made(decided(job_of(A, newcomers=(newcomer(1),)), dead=(0,)))
    assert new.reason.startswith("w0, the last worker of generation 7 died, their state is lost")


def test_a_ring_that_is_only_absent_may_be_training() -> None:
    """ZooKeeper forgot everybody for a moment; the newcomers must not start a second job."""
    now = job_of(A, B, newcomers=(newcomer(2), newcomer(3)))
    now = replace(now, members=(newcomer(2), newcomer(3)))
    decision = decided(now, dead=(0,))
    assert decision.generation is None
    assert decision.reason == (
        "all of w0, w1 left ZooKeeper and w1 may be training; "
        "no change until they come back or are proven dead"
    )


def test_a_newcomer_that_may_have_the_state_is_waited_for() -> None:
    """It has just switched, the only old worker died, and its own session is over."""
    now = job_of(A, generation=ring(A, B, joined=(1,), previous=(as_ring_member(A),)))
    now = replace(now, members=(newcomer(2),))
    decision = decided(now, dead=(0,))
    assert decision.generation is None
    assert decision.reason.startswith("all of w0, w1 left ZooKeeper and w1 may be training")
    assert made(decided(now, dead=(0, 1))).worker_ids == (2,)


def of_one_and_two_newcomers(*newcomers: Member) -> Snapshot:
    """w0 was alone and is dead; generation 7 was planned with two others. It is proven."""
    planned = ring(A, *newcomers, joined=(1, 2), previous=(as_ring_member(A),))
    return job_of(A, generation=planned, members=newcomers, evicted={0: "it is dead"})


def test_nobody_starts_while_a_newcomer_may_have_the_state() -> None:
    """They may have switched, and not have said so yet: ZooKeeper was away."""
    one, two = newcomer(1, newest_generation=6), newcomer(2, newest_generation=6)
    waits(
        decided(of_one_and_two_newcomers(one, two)),
        "w0, the last worker of generation 7 died; w1, w2 may hold the state: no change until it "
        "is known",
    )
    waits(
        decided(of_one_and_two_newcomers(newcomer(1), two)),
        "w0, the last worker of generation 7 died; w2 may hold the state: no change until it is "
        "known",
    )


def test_newcomers_that_were_never_in_the_ring_start_again() -> None:
    """Each has taken note that it never came to be, or has seen it fail without a state."""
    new = made(decided(of_one_and_two_newcomers(newcomer(1), broke(newcomer(2), -1))))
    assert (new.worker_ids, new.state_source, new.joined) == ((1, 2), 1, (1, 2))
    assert "their state is lost" in new.reason


def test_newcomers_with_the_state_go_on_from_it() -> None:
    one, two = broke(worker(1), 40), broke(worker(2), 41)
    new = made(decided(of_one_and_two_newcomers(one, two)))
    assert (new.worker_ids, new.state_source, new.joined, new.left) == ((1, 2), 2, (1,), (0,))
    assert new.reason == "generation 7 broke and w0 went; 2 of 3 go on from step 41 of w2"
    silent = newcomer(1, newest_generation=6)
    waits(
        decided(of_one_and_two_newcomers(silent, two)),
        "generation 7 is broken; w1 did not report yet",
    )


def test_a_newcomer_has_the_state_from_a_ring_that_was_replaced() -> None:
    """It entered generation 6, whose other newcomer died, so 7 was written; then w0 died."""
    with_state = broke(worker(2, generation=6), 40, generation=6)
    new = made(decided(of_one_and_two_newcomers(newcomer(1), with_state)))
    assert (new.worker_ids, new.state_source, new.left) == ((2,), 2, (0,))
    assert new.reason == "generation 7 broke and w0 went; 1 of 2 go on from step 40 of w2"


def test_a_newcomer_that_does_not_say_whether_it_has_the_state_is_given_up() -> None:
    now = of_one_and_two_newcomers(newcomer(1), newcomer(2, newest_generation=6))
    assert not decided(now, replace(ages(), lost_s=LIMITS.report_s - 1)).acts
    decision = decided(now, replace(ages(), lost_s=LIMITS.report_s))
    assert decision.evict == {
        2: "w0, the last worker of generation 7 died, and it did not say within 600 s whether it "
        "holds the state"
    }
    assert decision.generation is None


# --- 3. a broken ring ---


def broke(m: Member, step: int, generation: int = 7) -> Member:
    return replace(m, broken=RingFailure(generation, step))


def test_survivors_go_on_when_all_others_are_dead() -> None:
    now = job_of(broke(A, 40), B, broke(C, 40))
    new = made(decided(now, dead=(1,)))
    assert (new.number, new.worker_ids, new.left, new.joined) == (8, (0, 2), (1,), ())
    assert new.state_source == 0
    assert new.previous == (), "its members come from no ring that runs"
    assert "2 of 3 go on from step 40 of w0" in new.reason


@pytest.mark.parametrize("how", ["proven", "evicted"])
def test_who_counts_as_dead(how: str) -> None:
    now = job_of(broke(A, 40), B)
    if how == "evicted":
        now = replace(now, evicted={1: "frozen"})
    assert made(decided(now, dead=(1,) if how == "proven" else ())).worker_ids == (0,)


def test_who_left_zookeeper_is_waited_for() -> None:
    """Its session is opened again, and then it reports; so are those of most workers."""
    now = job_of(broke(A, 40), B)
    waits(
        decided(replace(now, members=now.members[:1])),
        "generation 7 is broken; w1 left ZooKeeper: no change until it reports or is proven dead",
    )
    back = replace(now, members=(broke(A, 40), broke(B, 41)))
    assert made(decided(back)).worker_ids == (0, 1)


@pytest.mark.parametrize("absent", [False, True])
def test_who_lets_the_others_wait_for_too_long_is_given_up(absent: bool) -> None:
    now = job_of(broke(A, 40), B)
    if absent:
        now = replace(now, members=now.members[:1])
    decision = decided(now, ages(broken_s=LIMITS.report_s))
    assert decision.generation is None
    assert decision.evict == {1: "generation 7 is broken, and it did not report within 600 s"}
    assert not decided(now, ages(broken_s=LIMITS.report_s - 1)).acts


def test_an_answered_report_is_no_word_of_the_state() -> None:
    """w0 holds it, and is in its own code; that its ring broke before says nothing about now."""
    busy = replace(A, broken=RingFailure(5, 30))
    now = job_of(busy, broke(B, -1))
    assert not decided(now, ages(broken_s=LIMITS.report_s)).acts


def test_the_only_one_with_the_state_is_never_given_up_for_being_late() -> None:
    now = job_of(broke(A, -1), B)
    assert not decided(now, ages(broken_s=LIMITS.report_s)).acts


def test_the_roll_call_waits_for_everyone_who_lives() -> None:
    now = job_of(broke(A, 40), B, C)
    waits(decided(now), "generation 7 is broken; w1, w2 did not report yet")


def test_a_ring_may_break_without_a_death() -> None:
    new = made(decided(job_of(broke(A, 40), broke(B, 40))))
    assert (new.worker_ids, new.left) == ((0, 1), ())
    assert "nobody died" in new.reason


def test_who_missed_the_last_step_takes_the_state_of_one_who_did_not() -> None:
    new = made(decided(job_of(broke(A, 40), broke(B, 41), broke(C, 41))))
    assert (new.worker_ids, new.state_source, new.joined) == ((0, 1, 2), 1, (0,))


def test_who_missed_the_last_exchange_only_needs_its_answer() -> None:
    """The root is one who has it; nobody is sent the state for it."""
    first = replace(A, broken=RingFailure(7, 41, exchanges=2))
    broken = replace(B, broken=RingFailure(7, 41, exchanges=3))
    new = made(decided(job_of(first, broken, replace(C, broken=RingFailure(7, 41, exchanges=3)))))
    assert (new.state_source, new.joined) == (1, ())
    assert new.reason.endswith("3 of 3 go on from step 41 of w1")


def test_a_step_is_more_than_the_exchanges_before_it() -> None:
    behind = replace(A, broken=RingFailure(7, 40, exchanges=3))
    new = made(decided(job_of(behind, replace(B, broken=RingFailure(7, 41, exchanges=3)))))
    assert (new.state_source, new.joined) == (1, (0,))


def test_if_nobody_has_the_state_all_join() -> None:
    new = made(decided(job_of(broke(A, -1), broke(B, -1))))
    assert (new.state_source, new.joined) == (0, (0, 1))


def test_the_only_one_with_the_state_must_be_proven_dead() -> None:
    """Its session is over, and it may be alive: then it comes back and brings the state."""
    now = job_of(broke(A, -1), B)
    now = replace(now, members=now.members[:1])
    waits(
        decided(now),
        "generation 7 is broken; w1 left ZooKeeper, and may be the only one with the state: "
        "no change until it reports or is proven dead",
    )
    assert made(decided(now, dead=(1,))).worker_ids == (0,)


def test_newcomers_wait_while_a_ring_is_repaired() -> None:
    now = job_of(broke(A, 40), broke(B, 40), newcomers=(newcomer(2),), **wanted({"a": 3}))
    assert made(decided(now)).worker_ids == (0, 1)


def test_a_report_about_a_ring_that_was_left_is_stale() -> None:
    now = job_of(broke(A, 40, generation=6), B)
    waits(decided(now), "2 workers train; 2 are wanted")


def test_who_has_trained_to_the_end_is_not_heard() -> None:
    finished = replace(A, stage=Stage.FINISHED)
    new = made(decided(job_of(finished, broke(B, 40))))
    assert (new.worker_ids, new.left) == ((1,), (0,))


# --- 3 and 4: while a generation is announced ---

OLD, NEW = (worker(0), worker(1)), newcomer(2)


def announced(
    members: tuple[Member, ...],
    ring_members: tuple[int, ...] = (0, 1, 2),
    joined: tuple[int, ...] = (2,),
    left: tuple[int, ...] = (),
    **changes: Any,
) -> Snapshot:
    """Return a job in which generation 8 follows the ring of w0 and w1, and is announced."""
    every = {m.id: as_ring_member(m) for m in (worker(0), worker(1), newcomer(2), newcomer(3))}
    generation = Generation(
        number=8,
        term=4,
        members=tuple(every[number] for number in ring_members),
        state_source=ring_members[0],
        joined=joined,
        left=left,
        reason="w2 joined",
        previous=(every[0], every[1]),
    )
    now = Snapshot(JOB, members=members, **wanted({"a": 3}), generation=generation)
    return replace(now, **changes)


def waiting(*members: Member, **changes: Any) -> Snapshot:
    """Return :func:`announced`, whose newcomer waits for the end of the epoch."""
    now = announced(members, **changes)
    assert now.generation is not None
    return replace(now, generation=replace(now.generation, at_epochs=True))


def test_newcomers_join_at_epochs_once_one_has_stepped_back() -> None:
    back = replace(A, broken=RingFailure(7, 40, at_epochs=True))
    new = made(decided(job_of(back, broke(B, 40), C), dead=(2,)))
    assert new.at_epochs
    assert "newcomers join at the start of an epoch" in new.reason
    after = job_of(
        A, B, newcomers=(NEW,), **wanted({"a": 3}), generation=ring(A, B, at_epochs=True)
    )
    joins = made(decided(after))
    assert (joins.joined, joins.waits_for_epoch) == ((2,), True)
    assert "at_epochs" in joins.to_json()


def test_no_worker_waits_for_the_epoch_to_leave() -> None:
    waits(decided(waiting(*OLD, NEW)), "w2 joins at the next epoch's start")
    leaving = replace(OLD[1], stage=Stage.LEAVING)
    new = made(decided(waiting(OLD[0], leaving, NEW, **wanted({"a": 2}))))
    assert (new.number, new.worker_ids, new.joined, new.left) == (9, (0,), (), (1,))
    assert (ids(new.previous), new.at_epochs) == ((0, 1), True)


def test_newcomers_that_come_while_one_waits_for_the_epoch_join_with_it() -> None:
    more = tuple(newcomer(number, newest_generation=8) for number in (3, 4))
    new = made(decided(waiting(*OLD, NEW, *more, **wanted({"a": 4}))))
    assert (new.number, new.worker_ids, new.joined) == (9, (0, 1, 2, 3), (2, 3))
    assert new.reason.startswith("w2, w3 join at the next epoch's start: 2 -> 4 workers")
    waits(decided(waiting(*OLD, NEW, *more)), "w2 joins at the next epoch's start")


def test_a_newcomer_that_waits_for_the_epoch_and_is_wanted_no_more_is_given_up() -> None:
    fewer = decided(waiting(*OLD, NEW, **wanted({"a": 2})))
    assert fewer.generation is None
    assert fewer.evict == {2: "host a has the 2 workers wanted there"}


def test_a_newcomer_does_not_wait_for_the_epoch_where_fewer_than_min_np_train() -> None:
    now = waiting(*OLD, NEW)
    few = decided(replace(now, job=changed(now.job, min_np=3)))
    waits(few, "w2 joins now: too few are left to train")
    after = job_of(
        A, B, newcomers=(NEW,), **wanted({"a": 3}), generation=ring(A, B, at_epochs=True)
    )
    new = made(decided(replace(after, job=changed(after.job, min_np=3))))
    assert new.reason == "w2 joined: 2 -> 3 workers, 3 wanted"


def test_nobody_waits_for_the_end_of_a_newcomer_that_steps_back() -> None:
    broken = RingFailure(7, 40, at_epochs=True, gone=(2,))
    stay = (replace(A, broken=broken), replace(B, broken=broken))
    for members in (stay, (*stay, C)):  # it has left ZooKeeper, or not yet
        new = made(decided(job_of(*members, generation=ring(A, B, C))))
        assert (new.worker_ids, new.left, new.repairs) == ((0, 1), (2,), True)


def test_a_ring_that_breaks_while_a_newcomer_waits_is_repaired_without_it() -> None:
    new = made(decided(waiting(broke(OLD[0], 40), OLD[1], NEW), dead=(1,)))
    assert (new.number, new.worker_ids, new.repairs, new.at_epochs) == (9, (0,), True, True)


def test_a_generation_is_adopted_by_all_before_the_next() -> None:
    now = announced((worker(0, generation=8), worker(1), NEW), **wanted({"a": 1}))
    waits(decided(now), "generation 8 waits for w1, w2 to switch")


def test_a_newcomer_that_dies_before_the_switch_changes_nothing() -> None:
    new = made(decided(announced(OLD), dead=(2,)))
    assert (new.number, new.worker_ids, new.joined, new.left) == (9, (0, 1), (), ())
    assert ids(new.previous) == (0, 1)
    assert new.reason == "w2 ended before joining generation 8"


def test_a_newcomer_that_only_lost_its_session_keeps_its_seat() -> None:
    """It registers again in a moment; its death is proven, or it comes."""
    waits(decided(announced(OLD)), "generation 8 waits for w0, w1 to switch")
    adopted = tuple(replace(m, generation=8) for m in OLD)
    waits(
        decided(announced(adopted)),
        "w2 of generation 8 left ZooKeeper; no change until it comes back or the ring breaks",
    )


def test_a_newcomer_that_was_given_up_has_no_seat() -> None:
    new = made(decided(announced((*OLD, NEW), evicted={2: "frozen"})))
    assert (new.number, new.worker_ids) == (9, (0, 1))
    assert new.reason == "w2 was evicted before joining generation 8"


def test_the_other_newcomers_still_join() -> None:
    now = announced((*OLD, newcomer(3)), ring_members=(0, 1, 2, 3), joined=(2, 3))
    new = made(decided(now, dead=(2,)))
    assert (new.worker_ids, new.joined) == ((0, 1, 3), (3,))


def test_a_leaver_whose_replacement_died_stays() -> None:
    leaver = worker(0, stage=Stage.LEAVING)
    now = announced((leaver, worker(1)), ring_members=(1, 2), left=(0,), **wanted({"a": 2}))
    new = made(decided(now, dead=(2,)))
    assert (new.worker_ids, new.left) == ((0, 1), ()), "in its old place"
    assert new.reason == "w2 ended before joining generation 8; w0 cannot leave yet"


def test_a_newcomer_that_goes_on_to_another_fit_leaves_its_seat() -> None:
    """The others are in a later fit, and do not enter the ring that it was ready for."""
    moved_on = replace(NEW, fits=1, stage=Stage.PREPARING)
    new = made(decided(announced((*OLD, moved_on))))
    assert (new.number, new.worker_ids, new.joined, new.fits) == (9, (0, 1), (), 0)
    assert new.reason == "w2 went on to another fit before joining generation 8"
    planned = announced((*OLD, replace(NEW, fits=1)))
    assert planned.generation is not None
    still = replace(planned, generation=replace(planned.generation, fits=1))
    waits(decided(still), "generation 8 waits for w0, w1, w2 to switch")


def test_newcomers_join_for_the_fit_that_they_are_ready_for() -> None:
    one = replace(newcomer(1), fits=2)
    new = made(decided(job_of(A, newcomers=(one,), **wanted({"a": 2}))))
    assert (new.worker_ids, new.fits) == ((0, 1), 2)
    behind = replace(newcomer(2), fits=1)
    later = replace(ages(), stage_s={1: LIMITS.gather_s})
    new = made(decided(job_of(A, newcomers=(one, behind), **wanted({"a": 3})), later))
    assert (new.worker_ids, new.fits) == ((0, 1), 2)


def test_a_leaver_that_nobody_was_to_replace_leaves() -> None:
    now = announced(OLD, ring_members=(1, 2), left=(0,), **wanted({"a": 1}))
    assert made(decided(now, dead=(2,))).worker_ids == (1,)


def test_a_newcomer_that_dies_after_the_switch_breaks_the_ring() -> None:
    """w0 is in the ring of generation 8: it was built, so its reports are waited for."""
    now = announced((worker(0, generation=8), worker(1)))
    decision = decided(now, dead=(2,))
    assert decision.generation is None
    assert decision.evict == {2: "its port is refused"}, "which breaks the ring"


def test_no_newcomer_is_replaced_in_a_ring_that_is_about_to_break() -> None:
    """Else a worker that is evicted would be a member of the next generation."""
    now = announced((worker(0),), evicted={1: "frozen", 2: "frozen"})
    waits(decided(now), "generation 8 waits for w0 to switch")


def test_a_break_of_the_old_ring_counts_while_the_next_is_announced() -> None:
    """The newcomer has not heard of a switch, and is not waited for."""
    new = made(decided(announced((broke(worker(0), 40), worker(1), NEW)), dead=(1,)))
    assert (new.number, new.worker_ids, new.left, new.previous) == (9, (0,), (1,), ())


def test_a_failed_build_of_the_next_ring_counts_too() -> None:
    members = (broke(worker(0), 41, 8), broke(worker(1), 41, 8), broke(NEW, -1, 8))
    new = made(decided(announced(members)))
    assert (new.worker_ids, new.state_source, new.joined) == ((0, 1, 2), 0, (2,))


def test_a_leaver_that_is_gone_as_agreed_is_not_given_up() -> None:
    """It has removed its node; one that was killed has not, and others may wait for it."""
    gone = announced((worker(0),), ring_members=(0,), left=(1,), joined=())
    assert decided(gone, dead=(1,)).evict == {}
    killed = announced((worker(0), worker(1)), ring_members=(0,), left=(1,), joined=())
    decision = decided(killed, dead=(1,))
    assert (decision.evict, decision.registered) == ({1: "its port is refused"}, {1})


def test_a_leaver_that_freezes_before_the_switch_is_given_up() -> None:
    """Its session has ended; its port is silent, and not refused, and all wait for it."""
    frozen = announced((worker(0),), ring_members=(0,), left=(1,), joined=())
    assert decided(frozen, dead=(1,), silent=(1,)).evict == {1: "its port is refused"}
    switched = announced((worker(0, generation=8),), ring_members=(0,), left=(1,), joined=())
    assert decided(switched, dead=(1,), silent=(1,)).evict == {}


def test_a_leaver_saves_the_state_when_all_who_stay_die() -> None:
    now = announced((broke(worker(0), 40), NEW), ring_members=(1, 2), left=(0,))
    new = made(decided(now, dead=(1,)))
    assert (new.worker_ids, new.state_source, new.left) == ((0,), 0, (1,))


def test_a_report_that_is_answered_does_not_count_again() -> None:
    """Generation 8 repairs generation 7; its survivors are on their way."""
    now = job_of(broke(A, 40), broke(B, 40), generation=ring(A, B, number=8))
    waits(decided(now), "generation 8 waits for w0, w1 to switch")


def test_without_a_ring_to_go_on_a_death_is_a_break() -> None:
    """Some may have built the ring and taken a step in it: only a roll-call can show it."""
    start = ring(A, B, C, number=8, joined=(0, 1, 2))
    now = job_of(newcomer(0), newcomer(1), newcomer(2), generation=start)
    decision = decided(now, dead=(2,))
    assert decision.generation is None
    assert decision.evict == {2: "its port is refused"}, "which cuts the ring that is being built"
    reports = (broke(newcomer(0), 0, 8), broke(newcomer(1), 1, 8))
    new = made(decided(replace(now, members=reports, evicted=decision.evict)))
    assert (new.worker_ids, new.state_source, new.joined) == ((0, 1), 1, (0,))


# --- 5. planned changes ---


def test_nothing_to_do() -> None:
    waits(decided(job_of(A, B)), "2 workers train; 2 are wanted")


def test_scale_out() -> None:
    now = job_of(A, B, newcomers=(newcomer(2),), **wanted({"a": 3}))
    new = made(decided(now))
    assert (new.number, new.term, new.worker_ids) == (8, TERM, (0, 1, 2))
    assert (new.state_source, new.joined, new.left) == (0, (2,), ())
    assert ids(new.previous) == (0, 1)
    assert new.reason == "w2 joined: 2 -> 3 workers, 3 wanted"


def test_several_newcomers_are_gathered() -> None:
    now = job_of(A, newcomers=(newcomer(1), newcomer(2, stage=Stage.PREPARING)), **wanted({"a": 3}))
    waits(decided(now, ages(w1=2.9, w2=9)), "w1 are ready and wait for w2")
    assert made(decided(now, ages(w1=3.0, w2=9))).worker_ids == (0, 1)


def test_all_that_are_ready_join_in_one_switch_by_id() -> None:
    now = job_of(worker(5), newcomers=(newcomer(3, "b"), newcomer(1, "c")))
    now = replace(now, **wanted({"a": 1, "b": 1, "c": 1}))
    assert made(decided(now, ages(w1=0, w3=0))).worker_ids == (5, 1, 3)


def test_max_np_is_never_exceeded() -> None:
    now = job_of(A, B, C, newcomers=(newcomer(3), newcomer(4)), **wanted({"a": 5}))
    assert made(decided(now)).worker_ids == (0, 1, 2, 3)


def test_scale_in_takes_the_highest_ranks() -> None:
    now = job_of(worker(5), worker(3), worker(4), **wanted({"a": 1}))
    new = made(decided(now))
    assert (new.worker_ids, new.left, new.joined) == ((5,), (3, 4), ())
    assert new.reason == "w3, w4 left: 3 -> 1 worker, 1 wanted"


def test_scale_in_never_goes_below_min_np() -> None:
    now = job_of(A, B, C, **wanted({"a": 1}), job=changed(JOB, min_np=2))
    assert len(made(decided(now)).worker_ids) == 2


def test_migrate_is_join_and_leave_in_one_switch() -> None:
    now = job_of(
        A, worker(1, "b"), newcomers=(newcomer(2, "c"),), **wanted({"a": 1, "b": 0, "c": 1})
    )
    new = made(decided(now))
    assert (new.worker_ids, new.joined, new.left) == ((0, 2), (2,), (1,))


def test_migrating_workers_wait_for_their_replacements() -> None:
    now = job_of(A, worker(1, "b"), **wanted({"a": 1, "b": 0, "c": 1}))
    waits(decided(now), "w1 leaves when its replacement is ready")


def test_one_old_member_brings_the_state_when_all_are_replaced() -> None:
    now = job_of(A, B, newcomers=(newcomer(2, "b"), newcomer(3, "b")), **wanted({"b": 2}))
    new = made(decided(now))
    assert (new.worker_ids, new.state_source, new.left) == ((0, 2, 3), 0, (1,))
    members = tuple(worker(n, h, generation=8) for n, h in ((0, "a"), (2, "b"), (3, "b")))
    last = made(decided(replace(now, members=members, generation=new)))
    assert (last.worker_ids, last.left) == ((2, 3), (0,))


def migrating(*newcomers: Member, slots: int = 2, **changes: Any) -> Snapshot:
    """w1 and w2 of three workers on a are to move to b, where an agent starts others."""
    b = (Host("b", slots, "::2"),) if slots else ()
    now = job_of(A, B, C, newcomers=newcomers, hosts=b, **changes)
    return replace(now, **wanted({"a": 1, "b": 2}, now.assigned.by_slot))


def test_several_that_move_make_one_switch() -> None:
    """The first that is ready waits for the second, which is not even registered, then prepares."""
    first, second = newcomer(3, "b"), newcomer(4, "b")
    waits(decided(migrating(first), ages(w3=1)), "w3 are ready and move together with 1 more of b")
    preparing = replace(second, stage=Stage.PREPARING)
    now = migrating(first, preparing)
    waits(decided(now, ages(w3=299, w4=250)), "w3 are ready and move together with w4")
    new = made(decided(migrating(first, second)))
    assert (new.worker_ids, new.joined, new.left) == ((0, 3, 4), (3, 4), (1, 2))


def test_those_that_move_do_not_wait_for_ever() -> None:
    one = made(decided(migrating(newcomer(3, "b")), ages(w3=300)))
    assert (one.worker_ids, one.left) == ((0, 2, 3), (1,)), "the ring does not shrink"


def test_nobody_waits_for_a_host_without_an_agent() -> None:
    new = made(decided(migrating(newcomer(3, "b"), slots=0), ages(w3=1)))
    assert (new.worker_ids, new.left) == ((0, 2, 3), (1,))


def test_a_newcomer_that_dies_is_waited_for_again() -> None:
    now = migrating(newcomer(3, "b"), newcomer(4, "b", stage=Stage.PREPARING))
    waits(decided(now, ages(w3=99), dead=(4,)), "w3 are ready and move together with 1 more of b")


def test_a_ring_that_lacks_a_worker_takes_who_is_ready() -> None:
    """w2 was killed; w1 goes on to wait for the second replacement."""
    now = job_of(A, B, newcomers=(newcomer(3, "b"),), **wanted({"a": 1, "b": 2}))
    now = replace(now, hosts=(Host("b", 2, "::2"),))
    assert made(decided(now, ages(w3=1))).worker_ids == (0, 3)


def test_a_leaver_in_a_hurry_takes_the_first_replacement() -> None:
    now = migrating(newcomer(3, "b"))
    now = replace(now, members=(A, leaving(B), *now.members[2:]))
    new = made(decided(now, ages(w1=1, w3=1)))
    assert (new.worker_ids, new.left) == ((0, 2, 3), (1,))


def test_who_needs_no_replacement_leaves_while_others_move() -> None:
    now = migrating(newcomer(3, "b"), requests=(drain(0, 0),))
    new = made(decided(now, ages(w3=1)))
    assert (new.worker_ids, new.joined, new.left) == ((1, 2), (), (0,))


def with_a_dead_host(*members: Member, **changes: Any) -> Snapshot:
    """Of hosts a, b, c and d the last one has died; its worker is still wanted."""
    agents = tuple(Host(name, 1, "::1") for name in "abc")
    four = {"a": 1, "b": 1, "c": 1, "d": 1}
    return job_of(*members, hosts=agents, **wanted(four), **changes)


def test_who_is_asked_to_leave_does_not_wait_for_the_dead() -> None:
    """Nobody can start the workers that are wanted on a host that has died."""
    a, b, c = worker(0, "a"), worker(1, "b"), worker(2, "c")
    drained = decided(with_a_dead_host(a, b, c, requests=(drain(0, 2),)))
    assert (made(drained).worker_ids, lowered(drained)) == (
        (0, 1),
        {"a": 1, "b": 1, "c": 0, "d": 1},
    )
    decision = decided(with_a_dead_host(a, b, leaving(c)), ages(w2=0))
    assert (made(decision).worker_ids, lowered(decision)) == (
        (0, 1),
        {"a": 1, "b": 1, "c": 0, "d": 1},
    )


def test_a_dead_host_is_no_spare_worker() -> None:
    """min_np is 2 of the two that train: a replacement is needed, in the same place."""
    now = with_a_dead_host(worker(0, "a"), leaving(worker(1, "b")))
    now = replace(now, **wanted({"a": 1, "b": 1, "d": 1}), job=changed(JOB, min_np=2))
    waits(decided(now, ages(w1=0)), "w1 leaves when its replacement is ready")
    ready = replace(now, members=(*now.members, newcomer(3, "b")))
    assert made(decided(ready, ages(w1=0))).worker_ids == (0, 3)


def test_those_that_move_are_one_switch_beside_a_dead_host() -> None:
    now = migrating(newcomer(3, "b"))
    now = replace(
        now, **wanted({**now.desired.hosts, "dead": 1}), hosts=(Host("a", 3, "::1"), *now.hosts)
    )
    waits(decided(now, ages(w3=1)), "w3 are ready and move together with 1 more of b")


def test_a_drain_is_answered_with_the_switch_in_which_its_worker_goes() -> None:
    """All are to go, so one has to bring the state: not the one that was promised to leave."""
    a, b = worker(0, "a"), worker(1, "b")
    now = job_of(a, b, newcomers=(newcomer(2, "a"),), requests=(drain(0, 0),))
    now = replace(now, **wanted({"a": 2, "b": 0}), hosts=(Host("a", 2, "::1"), Host("b", 1, "::1")))
    decision = decided(now)
    assert made(decision).worker_ids == (1, 2)
    assert [(one.worker, one.accepted) for one in decision.answers] == [(0, True)]


def test_a_drain_waits_for_its_answer_while_its_worker_brings_the_state() -> None:
    """The only other one got SIGTERM and is in a hurry."""
    hosts = tuple(Host(name, 1, "::1") for name in "abc")
    members = (worker(0, "a"), leaving(worker(1, "b")))
    now = job_of(*members, newcomers=(newcomer(2, "c"),), hosts=hosts, requests=(drain(0, 0),))
    now = replace(now, **wanted({"a": 1, "b": 1, "c": 1}))
    decision = decided(now)
    assert (made(decision).worker_ids, made(decision).left) == ((0, 2), (1,))
    assert (decision.answers, lowered(decision)) == ((), {"a": 1, "b": 0, "c": 1})


def test_a_drain_that_waits_leaves_what_is_desired_as_it_was() -> None:
    """w2 is wanted elsewhere already; it waits for its replacement there."""
    members = (worker(0, "a"), worker(1, "a"), worker(2, "b"))
    requests = (drain(0, 0), drain(1, 2))
    hosts = (Host("a", 4, "::1"), Host("b", 4, "::1"))
    now = replace(job_of(*members, hosts=hosts, requests=requests), **wanted({"a": 3, "b": 0}))
    decision = decided(now)
    assert made(decision).worker_ids == (1, 2)
    assert ([one.worker for one in decision.answers], lowered(decision)) == ([0], {"a": 2, "b": 0})


def test_a_ring_is_as_large_as_is_desired_with_it() -> None:
    """Two workers leave, w0 by a drain and w1 by SIGTERM, when their replacements are ready.

    No lower number is desired for a drain that is postponed, so the ring may not shrink for it
    either: both wait until the replacement is ready.
    """
    host = (Host("a", 4, "::1"),)
    preparing = newcomer(2, stage=Stage.PREPARING)
    now = job_of(A, leaving(B), newcomers=(preparing,), hosts=host, requests=(drain(0, 0),))
    when = ages(w1=0, w2=0)
    waits(decided(now, when), "w0, w1 leave when their replacements are ready")
    decision = decided(replace(now, members=(A, leaving(B), newcomer(2))), ages(w1=0))
    assert (made(decision).worker_ids, made(decision).left) == ((0, 2), (1,))
    assert (lowered(decision), decision.answers) == (None, ()), (
        "the drain is carried out with the next"
    )
    after = job_of(replace(A, generation=7), worker(2), hosts=host, requests=(drain(0, 0),))
    decision = decided(after)
    assert (made(decision).worker_ids, lowered(decision)) == ((2,), {"a": 1})
    assert decision.answers[0].accepted


def test_a_newcomer_that_hangs_is_given_up() -> None:
    now = job_of(A, newcomers=(newcomer(1, stage=Stage.PREPARING),), **wanted({"a": 2}))
    waits(decided(now, ages(w1=299)), "w1 is preparing; 1 of 2 train")
    decision = decided(now, ages(w1=300))
    assert decision.evict == {1: "it was not ready after 300 s"}
    assert decision.generation is None


def test_a_newcomer_that_is_not_wanted_any_more_is_given_up() -> None:
    decision = decided(job_of(A, newcomers=(newcomer(1),)))
    assert decision.evict == {1: "host a has the 1 worker wanted there"}


def test_a_newcomer_that_died_does_not_count() -> None:
    now = job_of(A, newcomers=(newcomer(1),), **wanted({"a": 2}))
    waits(decided(now, dead=(1,)), "1 worker trains; 2 are wanted")


def test_a_newcomer_that_does_not_answer_gets_no_seat() -> None:
    """It may be frozen; its session shows it soon."""
    now = job_of(A, newcomers=(newcomer(1),), **wanted({"a": 2}))
    waits(decided(now, silent=(1,)), "w1 does not answer; 1 of 2 train")
    assert made(decided(now)).worker_ids == (0, 1)
    both = job_of(A, newcomers=(newcomer(1), newcomer(2)), **wanted({"a": 3}))
    waits(decided(both, ages(w2=2.9), silent=(1,)), "w2 are ready and wait for w1")
    assert made(decided(both, ages(w2=3.0), silent=(1,))).worker_ids == (0, 2)


def test_a_newcomer_that_has_not_taken_note_of_the_last_generation_gets_no_seat() -> None:
    """The others had to go on without it, so it may be stuck; it is given up if it stays so."""
    now = job_of(A, newcomers=(newcomer(1, newest_generation=6),), **wanted({"a": 2}))
    waits(decided(now, ages(generation_s=59)), "w1 does not answer; 1 of 2 train")
    waits(decided(now, ages(w1=59)), "w1 does not answer; 1 of 2 train")
    decision = decided(now, ages(generation_s=60))
    assert decision.generation is None
    assert decision.evict == {1: "it was ready and takes no note of what goes on for 60 s"}


def test_a_newcomer_that_is_able_goes_before_one_that_is_stuck() -> None:
    now = job_of(A, newcomers=(newcomer(1, newest_generation=6), newcomer(2)), **wanted({"a": 2}))
    decision = decided(now)
    assert made(decision).worker_ids == (0, 2)
    assert decision.evict == {1: "host a has the 2 workers wanted there"}


def test_nobody_is_dropped_for_being_absent_from_zookeeper() -> None:
    now = job_of(A, B, C, newcomers=(newcomer(3),), **wanted({"a": 4}))
    now = replace(now, members=(A, C, newcomer(3)))
    waits(
        decided(now),
        "w1 of generation 7 left ZooKeeper; no change until it comes back or the ring breaks",
    )


def test_no_change_once_a_worker_has_trained_to_the_end() -> None:
    now = job_of(replace(A, stage=Stage.FINISHED), B, newcomers=(newcomer(2),), **wanted({"a": 3}))
    waits(decided(now), "the job has trained to its end")


def test_a_dead_worker_with_a_seat_is_given_up() -> None:
    """So that every daemon cuts the ring that it is in."""
    decision = decided(job_of(A, B), dead=(1,))
    assert decision.evict == {1: "its port is refused"}
    assert decided(job_of(A, B, evicted={1: "known"}), dead=(1,)).evict == {}


# --- 5. asked to leave: SIGTERM ---


def leaving(m: Member) -> Member:
    return replace(m, stage=Stage.LEAVING)


def test_a_leaver_is_wanted_no_more() -> None:
    decision = decided(job_of(A, leaving(B), C))
    assert (made(decision).worker_ids, made(decision).left) == ((0, 2), (1,))
    assert lowered(decision) == {"a": 2}


def test_a_leaver_that_is_not_wanted_lowers_nothing() -> None:
    decision = decided(job_of(A, leaving(B), C, **wanted({"a": 2})))
    assert made(decision).worker_ids == (0, 2)
    assert lowered(decision) is None


def test_a_leaver_that_waits_lowers_the_size_once() -> None:
    """A fourth worker is on its way; each look at the leaver would lower the size again."""
    coming = newcomer(3, stage=Stage.PREPARING)
    now = job_of(A, leaving(B), C, newcomers=(coming,), **wanted({"a": 4}))
    decision = decided(now, ages(w1=29))
    assert (decision.generation, lowered(decision)) == (None, None), decision.reason
    decision = decided(now, ages(w1=30))
    assert (made(decision).worker_ids, lowered(decision)) == ((0, 2), {"a": 3})
    now = job_of(A, leaving(B), C, newcomers=(newcomer(3),), **wanted({"a": 4}))
    decision = decided(now, ages(w1=29))
    assert (made(decision).worker_ids, lowered(decision)) == ((0, 2, 3), {"a": 3})


def test_every_leaver_lowers_the_size_for_itself() -> None:
    """One of two is the one that is not wanted; the other one lowers the size."""
    decision = decided(job_of(leaving(A), leaving(B), C, worker(3), **wanted({"a": 3})))
    assert made(decision).worker_ids == (2, 3)
    assert lowered(decision) == {"a": 2}


def test_a_leaver_at_min_np_is_held_until_its_replacement_is_ready() -> None:
    job = changed(JOB, min_np=2)
    now = job_of(A, leaving(B), job=job)
    waits(decided(now, ages(w1=29)), "w1 leaves when its replacement is ready")
    now = job_of(A, leaving(B), newcomers=(newcomer(2),), job=job, **wanted({"a": 2}))
    new = made(decided(now, ages(w1=29)))
    assert (new.worker_ids, new.joined, new.left) == ((0, 2), (2,), (1,))


def test_a_leaver_at_min_np_is_released_after_the_grace() -> None:
    now = job_of(A, leaving(B), job=changed(JOB, min_np=2))
    decision = decided(now, ages(w1=30))
    assert made(decision).worker_ids == (0,)
    assert lowered(decision) is None, "its replacement is still wanted"


def test_the_last_to_be_asked_waits() -> None:
    """w0 got a SIGTERM, w2 is to migrate; one of them may go now."""
    now = job_of(
        leaving(A), B, worker(2, "b"), **wanted({"a": 2, "c": 1}), job=changed(JOB, min_np=1)
    )
    decision = decided(now)
    assert (made(decision).left, made(decision).worker_ids) == ((0,), (1, 2))


def test_the_last_worker_ends_the_job_when_its_grace_is_over() -> None:
    new = made(decided(job_of(leaving(A)), ages(w0=30)))
    assert (new.members, new.state_source, new.left) == ((), -1, (0,))
    assert new.reason == "w0 left: 1 -> 0 workers, 1 wanted; the job ends"


# --- 5. asked to leave: several workers of a host at nearly the same time ---

D = worker(3, "b")
E = worker(4, "b")


def test_leavers_of_a_host_leave_in_one_switch() -> None:
    """An engine signals both workers of b; the leader sees the second one 0.2 s later."""
    decision = decided(job_of(A, B, leaving(D), E), ages(w3=0.0))
    waits(
        replace(decision, again_s=None),
        "w3 leaves within 0.5 s, in one switch with other workers of the same host that are asked "
        "to leave by then; asked so far: 1 of 2 on b",
    )
    assert decision.again_s == 0.5
    assert decided(job_of(A, B, leaving(D), E), ages(w3=0.125)).again_s == 0.375
    decision = decided(job_of(A, B, leaving(D), leaving(E)), ages(w3=0.2, w4=0.0))
    assert (made(decision).left, made(decision).worker_ids) == ((3, 4), (0, 1))
    assert lowered(decision) == {"a": 2, "b": 0}


def test_a_leaver_does_not_wait_longer_for_others_of_its_host() -> None:
    decision = decided(job_of(A, B, leaving(D), E), ages(w3=0.5))
    assert (made(decision).left, lowered(decision)) == ((3,), {"a": 2, "b": 1})
    c, d = worker(5, "b"), worker(6, "b")
    decision = decided(job_of(A, leaving(D), leaving(E), c, d), ages(w3=0.5, w4=0.0))
    assert made(decision).left == (3, 4), "the second one has the time of the first"


def test_a_leaver_that_is_alone_on_its_host_leaves_at_once() -> None:
    decision = decided(job_of(A, B, leaving(D)), ages(w3=0.0))
    assert (made(decision).left, lowered(decision)) == ((3,), {"a": 2, "b": 0})


def test_leavers_of_several_hosts_leave_in_one_switch() -> None:
    """All of b have asked, and one of two of c: the other one has not noted its signal yet."""
    f, g = worker(5, "c"), worker(6, "c")
    when = ages(w3=0.3, w4=0.25, w5=0.125)
    decision = decided(job_of(A, leaving(D), leaving(E), leaving(f), g), when)
    assert decision.reason.startswith("w3, w4, w5 leave within 0.5 s")
    assert decision.reason.endswith("asked so far: 1 of 2 on c")
    assert decision.again_s == pytest.approx(0.2)
    decision = decided(job_of(A, leaving(D), leaving(E), leaving(f), leaving(g)), when)
    assert made(decision).left == (3, 4, 5, 6)


def test_a_leaver_leaves_with_an_agent_that_takes_its_host_away() -> None:
    """The agent got SIGTERM, too, and wants no worker on b; w4 has not noted its own yet."""
    decision = decided(job_of(A, B, leaving(D), E, **wanted({"a": 2, "b": 0})), ages(w3=0.0))
    assert (made(decision).left, lowered(decision)) == ((3, 4), None)


@pytest.mark.parametrize("other", ["drain", "scale", "newcomer", "deadline"])
def test_what_is_due_anyway_takes_a_leaver_along(other: str) -> None:
    now, when = job_of(A, B, leaving(D), E), ages(w3=0.0)
    drained: tuple[int, ...] = ()
    if other == "drain":
        now, drained = replace(now, requests=(Request("drain", 1, 0),)), (1,)
    elif other == "scale":  # w3 is the one fewer
        now = replace(now, **wanted({"a": 2, "b": 1}))
    elif other == "newcomer":
        now = job_of(A, B, leaving(D), E, newcomers=(newcomer(5),), **wanted({"a": 3, "b": 2}))
    else:
        reclaims = (Reclaim("b", 1, asked_s=100.0, by_s=130.0),)
        now = replace(now, desired=Desired({"a": 2, "b": 2}, reclaims=reclaims))
    assert made(decided(now, when)).left == (*drained, 3)


def test_a_drain_does_not_wait_for_other_workers_of_its_host() -> None:
    decision = decided(job_of(A, B, C, requests=(Request("drain", 1, 0),)), ages(w1=0.0))
    assert made(decision).left == (1,)


def test_a_leaver_that_is_needed_counts_among_those_that_were_asked() -> None:
    """Both of b are asked, but min_np lets only one go: it does not wait for the other one."""
    now = job_of(A, B, leaving(D), leaving(E), job=changed(JOB, min_np=3))
    decision = decided(now, ages(w3=0.0, w4=0.0))
    assert len(made(decision).left) == 1
    assert lowered(decision) == {"a": 2, "b": 1}


@pytest.mark.parametrize("dead", [D, E], ids=["who waits", "the other one of its host"])
def test_a_death_ends_the_wait_with_a_repair(dead: Member) -> None:
    """The ring breaks, so the others go on without the dead one at once."""
    members = tuple(
        replace(m, broken=RingFailure(7, 40)) for m in (A, B, leaving(D), E) if m.id != dead.id
    )
    now = replace(job_of(A, B, leaving(D), E), members=members)
    new = made(decided(now, ages(w3=0.1), dead=(dead.id,)))
    assert (new.left, new.repairs) == ((dead.id,), True)


def test_who_is_alone_on_its_host_after_a_repair_leaves_at_once() -> None:
    decision = decided(job_of(A, B, leaving(D), **wanted({"a": 2, "b": 1})), ages(w3=0.1))
    assert (made(decision).left, lowered(decision)) == ((3,), {"a": 2, "b": 0})


# --- 5. a job that horovodrun started ---


def test_with_a_driver_the_slots_beyond_the_assigned_leave_whatever_their_rank() -> None:
    first, second = worker(3, slot=1), worker(4, slot=0)  # the ranks are not in order of the slots
    now = job_of(first, second, **wanted({"a": 1}, by_slot=True))
    assert made(decided(now)).left == (3,)


def test_with_a_driver_a_leaver_lowers_nothing_for_its_slot_is_filled_again() -> None:
    leaver = worker(1, stage=Stage.LEAVING)
    decision = decided(job_of(A, leaver, C, by_slot=True), ages(w1=0.0))
    assert made(decision).left == (1,)
    assert lowered(decision) is None


def test_with_a_driver_a_switch_leaves_what_is_desired_alone() -> None:
    """Three are desired, and the driver has not assigned the third yet."""
    now = job_of(A, newcomers=(newcomer(1),), **wanted({"a": 2}, by_slot=True))
    decision = decided(replace(now, desired=Desired({"a": 2, "b": 1})))
    assert (made(decision).worker_ids, lowered(decision)) == ((0, 1), None)


def test_with_a_driver_a_slot_beyond_the_assigned_waits_for_the_one_that_lacks_a_worker() -> None:
    b, c, again = worker(1), worker(2), newcomer(5)
    now = job_of(b, c, **wanted({"a": 2}, by_slot=True))
    assert decided(now).generation is None
    now = job_of(b, c, newcomers=(replace(again, slot=0),), **wanted({"a": 2}, by_slot=True))
    assert made(decided(now)).worker_ids == (1, 5)


def moving(*newcomers: Member, kept: int = 2) -> Snapshot:
    """w1 and w2 of three workers on a are to move to b, where edl-workers start others."""
    slots = [SlotRecord("a", slot) for slot in range(3)] + [SlotRecord("b", n) for n in range(kept)]
    now = migrating(*newcomers, slots=0, by_slot=True)
    return replace(now, slots=tuple(slots))


def test_with_a_driver_those_that_move_wait_for_edl_workers_that_start_others() -> None:
    """Their scripts come up at different times; one that is not registered yet counts, too."""
    first, second = (replace(newcomer(3 + slot, "b"), slot=slot) for slot in (0, 1))
    waits(decided(moving(first), ages(w3=1)), "w3 are ready and move together with 1 more of b")
    assert made(decided(moving(first, second))).worker_ids == (0, 3, 4)
    assert made(decided(moving(first, kept=0), ages(w3=1))).worker_ids == (0, 2, 3), (
        "nobody starts it"
    )
    assert made(decided(moving(first), ages(w3=300))).worker_ids == (0, 2, 3)
    stray = replace(
        moving(first, second), **wanted({"a": 1, "b": 1}, by_slot=True)
    )  # slot 1 was taken back again
    assert made(decided(stray, ages(w3=1))).worker_ids == (0, 3)


def test_with_a_driver_a_newcomer_in_a_slot_that_was_taken_back_is_given_up() -> None:
    now = job_of(A, B, newcomers=(newcomer(2),), **wanted({"a": 2}, by_slot=True))
    assert decided(now).evict == {2: "its launcher has taken back its slot"}


def test_when_horovodrun_ends_all_its_workers_end_after_the_same_step() -> None:
    leavers = (worker(0, stage=Stage.LEAVING), worker(1, stage=Stage.LEAVING))
    assert made(decided(job_of(*leavers, by_slot=True))).members == ()
    elsewhere = (replace(newcomer(2, host="b"), slot=0),)
    replaced = job_of(*leavers, newcomers=elsewhere, **wanted({"a": 2, "b": 1}, by_slot=True))
    assert 2 in made(decided(replaced)).worker_ids


def test_where_no_agent_is_left_all_that_are_asked_leave_at_once() -> None:
    """Nobody could start the replacements that they would wait for."""
    leavers = (worker(0, stage=Stage.LEAVING), worker(1, stage=Stage.LEAVING))
    assert made(decided(job_of(*leavers, hosts=()))).members == ()


def test_with_a_driver_nobody_is_drained() -> None:
    (answer,) = decided(job_of(A, B, C, requests=(drain(0, 1),), by_slot=True)).answers
    assert not answer.accepted
    assert "use `edl scale`" in answer.outcome


# --- 5. asked to leave: drain ---


def drain(number: int, target: int) -> Request:
    return Request("drain", target, number)


def test_a_drain_lowers_the_size_and_is_answered_with_the_switch() -> None:
    decision = decided(job_of(A, B, C, requests=(drain(0, 1),)))
    assert (made(decision).worker_ids, made(decision).left) == ((0, 2), (1,))
    assert lowered(decision) == {"a": 2}
    assert decision.answers == (
        Request("drain", 1, 0, True, True, "w1 leaves with the next switch"),
    )


def replaced(*members: Member, number: int = 0, target: int = 1, **changes: Any) -> Snapshot:
    """Return a job of two workers on a, of which one is to be replaced; ``members``: newcomers."""
    hosts = (Host("a", 4, "::1"), Host("b", 4, "::1"))
    asked = Request(RequestKind.REPLACE, target, number, host="a")
    return job_of(A, B, newcomers=members, hosts=hosts, requests=(asked,), **changes)


def test_who_is_replaced_waits_for_who_comes_and_both_change_places_in_one_switch() -> None:
    waits(decided(replaced(**wanted({"a": 2}))), "w1 leaves when its replacement is ready")
    preparing = newcomer(2, stage=Stage.PREPARING)
    waits(
        decided(replaced(preparing, **wanted({"a": 2})), ages(w2=0)),
        "w1 leaves when its replacement is ready",
    )
    decision = decided(replaced(newcomer(2), **wanted({"a": 2})))
    assert (made(decision).worker_ids, made(decision).left) == ((0, 2), (1,))
    assert lowered(decision) is None, "as many are wanted as before"
    [answer] = decision.answers
    assert (answer.accepted, answer.outcome) == (True, "w1 is replaced with the next switch")


def test_who_is_replaced_on_another_host_is_the_one_that_was_named() -> None:
    """Not the highest rank of its host, as when a person moves workers."""
    now = replaced(newcomer(2, "b"), target=0, **wanted({"a": 1, "b": 1}))
    assert made(decided(now)).worker_ids == (1, 2)


def test_who_is_not_in_the_ring_or_has_a_driver_is_not_replaced() -> None:
    [answer] = decided(replaced(target=7)).answers
    assert answer.outcome == "w7 is not training in this job"
    [answer] = decided(replaced(by_slot=True)).answers
    assert answer.outcome.startswith("cannot replace w1: its launcher, horovodrun, would start")


def test_a_drain_at_min_np_is_refused() -> None:
    decision = decided(job_of(A, B, requests=(drain(0, 1),), job=changed(JOB, min_np=2)))
    assert (decision.generation, lowered(decision)) == (None, None)
    (answer,) = decision.answers
    assert (answer.done, answer.accepted) == (True, False)
    assert answer.outcome == (
        "cannot drain w1: 2 workers train, 2 are wanted and min_np is 2; scale out first"
    )


def test_drains_are_accepted_down_to_min_np() -> None:
    requests = (drain(0, 0), drain(1, 1), drain(2, 2))
    decision = decided(job_of(A, B, C, requests=requests))
    assert [answer.accepted for answer in decision.answers] == [True, True, False]
    assert made(decision).worker_ids == (2,)
    assert lowered(decision) == {"a": 1}


@pytest.mark.parametrize("target", [3, 9, -1])
def test_a_drain_of_who_does_not_train_is_refused(target: int) -> None:
    now = job_of(A, B, newcomers=(newcomer(3),), **wanted({"a": 3}), requests=(drain(0, target),))
    (answer,) = decided(now).answers
    assert answer.outcome == f"w{target} is not training in this job"


def test_a_worker_is_drained_once() -> None:
    decision = decided(job_of(A, B, C, requests=(drain(0, 1), drain(1, 1))))
    assert [answer.accepted for answer in decision.answers] == [True, False]
    assert lowered(decision) == {"a": 2}


def test_an_accepted_drain_stays_open_until_its_worker_leaves() -> None:
    """A newcomer is waited for; a refusal is said at once."""
    newcomers = (newcomer(2), newcomer(3, stage=Stage.PREPARING))
    now = job_of(A, B, newcomers=newcomers, **wanted({"a": 5}), requests=(drain(0, 1), drain(1, 9)))
    decision = decided(now, ages(w2=0, w3=0))
    assert (decision.generation, lowered(decision)) == (None, None)
    assert [answer.number for answer in decision.answers] == [1]


def test_an_unknown_request_is_refused() -> None:
    (answer,) = decided(job_of(A, B, requests=(Request("polish", 1, 4),))).answers
    assert (answer.number, answer.accepted) == (4, False)
    assert answer.outcome == "this leader does not know requests of kind 'polish'"


# --- 5. only some sizes ---

FEW = changed(JOB, sizes=(1, 2, 4))
HERE = (Host("a", 4, "::1"),)


def test_a_start_goes_on_with_an_allowed_size_after_the_limit() -> None:
    now = starting(*(newcomer(n) for n in range(3)), np=4, sizes=(1, 2, 4))
    waits(decided(now, ages(leading_s=119)), "3 of 4 workers are ready to start")
    assert len(made(decided(now, ages(leading_s=120))).members) == 2


def test_newcomers_wait_until_an_allowed_size_can_train() -> None:
    now = job_of(A, B, newcomers=(newcomer(2),), **wanted({"a": 4}), job=FEW, hosts=HERE)
    waits(decided(now), "w2 is ready and waits: the job may have 1, 2 or 4 workers; 2 of 4 train")
    now = replace(now, members=(*now.members, newcomer(3)))
    assert made(decided(now)).worker_ids == (0, 1, 2, 3)


def test_a_ring_with_another_size_goes_on_and_has_an_allowed_one_with_the_next_change() -> None:
    """One of four was killed."""
    now = job_of(A, B, C, **wanted({"a": 4}), job=FEW, hosts=HERE)
    waits(decided(now), "3 workers train; 4 are wanted")
    ready = replace(now, members=(*now.members, newcomer(3)))
    assert made(decided(ready)).worker_ids == (0, 1, 2, 3)
    scaled = replace(now, **wanted({"a": 2}))
    assert made(decided(scaled)).worker_ids == (0, 1)


def test_a_size_that_nobody_can_make_allowed_again_becomes_the_next_smaller() -> None:
    """Host b has died with one of four workers; sizes 1, 2 and 4."""
    now = job_of(A, B, C, job=FEW, hosts=HERE)
    now = replace(now, **wanted({"a": 3, "b": 1}))
    soon, late = Ages(generation_s=119), Ages(generation_s=120)
    assert decided(now, soon).generation is None, "it may come back"
    decision = decided(now, late)
    assert (made(decision).worker_ids, lowered(decision)) == ((0, 1), {"a": 2, "b": 0})
    assert str(decision.change) == (
        "nobody can start who is lacking, and the job may have 1, 2 or 4 workers: "
        "4 -> 2 workers wanted (a: 3 -> 2, b: 1 -> 0)"
    )
    assert decided(replace(now, **wanted({"a": 4})), late).generation is None, "its agent is there"
    by_slot = replace(now, **wanted({"a": 3, "b": 1}, by_slot=True))
    assert decided(by_slot, late).generation is None, "its launcher fills each slot again"
    two = job_of(A, B, job=FEW, hosts=HERE)
    assert decided(replace(two, **wanted({"a": 2, "b": 2})), late).generation is None


def test_a_drain_to_another_size_names_the_nearest() -> None:
    now = job_of(A, B, C, worker(3), requests=(drain(0, 3),), job=FEW)
    (answer,) = decided(now).answers
    assert not answer.accepted
    assert answer.outcome == (
        "cannot drain w3: 4 workers train, 4 are wanted; without it 3 would be, and the job may "
        "have 1, 2 or 4 workers; nearest to 3 are 2 and 4"
    )


def test_a_signal_to_one_of_four_needs_a_replacement_and_two_leave_as_they_are() -> None:
    members = (A, B, C, leaving(worker(3)))
    now = job_of(*members, job=FEW, hosts=HERE)
    waits(decided(now, ages(w3=1)), "w3 leaves when its replacement is ready")
    late = decided(now, ages(w3=30))
    assert (len(made(late).members), lowered(late)) == (3, None), "four are still wanted"
    two = decided(job_of(A, B, leaving(C), leaving(worker(3)), job=FEW, hosts=HERE), ages(w3=1))
    assert (made(two).worker_ids, lowered(two)) == ((0, 1), {"a": 2})


def test_those_that_move_keep_the_size() -> None:
    now = replace(migrating(newcomer(3, "b"), newcomer(4, "b")), job=changed(JOB, sizes=(1, 3)))
    assert made(decided(now)).worker_ids == (0, 3, 4)
    alone = job_of(
        A, newcomers=(newcomer(1, "b"),), **wanted({"b": 1}), job=changed(JOB, sizes=(1, 4))
    )
    assert made(decided(alone)).worker_ids == (0, 1), "one brings the state, and goes with the next"


# --- what always holds ---


def ids(members: tuple[RingMember, ...]) -> tuple[int, ...]:
    return tuple(each.id for each in members)


def test_old_members_keep_their_order_and_newcomers_follow_by_id() -> None:
    now = job_of(worker(7), worker(4), worker(9), newcomers=(newcomer(2), newcomer(8, "b")))
    now = replace(now, **wanted({"a": 4, "b": 1}), job=changed(JOB, max_np=9))
    assert made(decided(now)).worker_ids == (7, 4, 9, 2, 8)


def test_a_decision_without_effect_does_not_act() -> None:
    assert not MembershipDecision("nothing to do").acts
    before = Desired({"a": 1})
    assert MembershipDecision(
        "less", change=set_desired(before, Assigned(), {}, RequestedBy.LEADER, "less")
    ).acts
    same = set_desired(before, Assigned(), {"a": 1}, RequestedBy.LEADER, "no change")
    assert not MembershipDecision("the same", change=same).acts
    assert MembershipDecision("evicted", evict={1: "frozen"}).acts
