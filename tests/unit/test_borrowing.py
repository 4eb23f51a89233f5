"""Idle slots are borrowed by a job, and come back in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import make_job, wanted

from edl.errors import UsageError
from edl.job import membership
from edl.job.borrowing import (
    NO_TERMS,
    ReclaimTerms,
    ReclaimTracker,
    borrow,
    borrowed_after,
    describe_returned,
    is_late,
    overdue,
    overdue_on,
    reclaim,
    reclaims_after,
    returned,
    without_reclaimed,
)
from edl.job.decision import Limits, set_desired
from edl.job.liveness import Ages, AgeTracker
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
    RingMember,
    Stage,
)

A, B = Host("a", 4, "127.0.0.1"), Host("b", 2, "127.0.0.1")
JOB = make_job(min_np=1, max_np=5)
DUE = Reclaim("a", 2, 100.0, 130.0)
LATE = {DUE: 28.0}


def job_of(desired: dict[str, int], **changes: Any) -> Snapshot:
    return replace(Snapshot(JOB, hosts=(A, B), **wanted(desired)), **changes)


def as_ring_member(worker: int, host: str = "a", slot: int | None = None) -> RingMember:
    return RingMember(worker, host, worker if slot is None else slot, "127.0.0.1", 1)


def ring(*workers: int, before: tuple[int, ...] = (), number: int = 2) -> Generation:
    members, previous = tuple(map(member, workers)), tuple(map(member, before))
    return Generation(number, 1, members, workers[0], (), (), "", previous=previous)


def member(worker: int, generation: int = 2, host: str = "a") -> Member:
    stage = Stage.ACTIVE if generation else Stage.PREPARING
    return Member(worker, host, worker, "127.0.0.1", 1, 1, f"t-{worker}", stage, generation)


# --- what is asked for


@pytest.mark.parametrize(
    ("slots", "host", "before", "after"),
    [
        (1, None, {"a": 2}, {"a": 3}),
        (2, "b", {"a": 2}, {"a": 2, "b": 2}),
        (3, "b", {"a": 2}, {"a": 2, "b": 2}),  # it has two slots
        (4, None, {"a": 2}, {"a": 4, "b": 1}),  # max_np is 5
    ],
)
def test_a_job_takes_of_the_idle_slots_what_it_may(
    slots: int, host: str | None, before: dict[str, int], after: dict[str, int]
) -> None:
    placed = borrow(job_of(before), slots, host, before)
    assert {name: n for name, n in placed.items() if n} == after


def test_only_some_sizes_are_taken() -> None:
    some = replace(job_of({"a": 2}), job=make_job(max_np=6, sizes=(2, 4)))
    assert borrow(some, 3, None, {"a": 2}) == {"a": 4}
    with pytest.raises(UsageError, match="it has 2 workers, and the job may have 2 or 4 workers"):
        borrow(some, 1, None, {"a": 2})


def test_a_slot_that_is_given_up_is_not_idle() -> None:
    broken = replace(A, disabled={"3": "it failed"})
    now = job_of({"a": 3}, hosts=(broken,))
    with pytest.raises(UsageError, match="1 slot for job digits: its hosts have no free slot"):
        borrow(now, 1, None, {"a": 3})


@pytest.mark.parametrize(
    ("slots", "host", "desired", "words"),
    [
        (1, "c", {"a": 2}, "nobody offers host c; its hosts are a, b"),
        (1, "b", {"a": 2, "b": 2}, "host b has no free slot"),
        (2, None, {"a": 4, "b": 1}, "it has 5 workers, and max_np is 5"),
    ],
)
def test_what_cannot_be_lent_is_a_sentence(
    slots: int, host: str | None, desired: dict[str, int], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        borrow(job_of(desired), slots, host, desired)


def with_lent(desired: dict[str, int], borrowed: dict[str, int], **changes: Any) -> Snapshot:
    now = job_of(desired, **changes)
    return replace(now, desired=replace(now.desired, borrowed=borrowed))


def test_the_last_hosts_lent_slots_come_back_first() -> None:
    now = with_lent({"a": 3, "b": 2}, {"a": 1, "b": 1})
    assert reclaim(now, 1, None, now.desired.hosts) == {"a": 3, "b": 1}
    assert reclaim(now, None, None, now.desired.hosts) == {"a": 2, "b": 1}
    assert reclaim(now, None, "a", now.desired.hosts) == {"a": 2, "b": 2}


def test_the_next_smaller_size_is_wanted_where_the_rest_may_not_train() -> None:
    now = with_lent({"a": 4}, {"a": 1}, job=make_job(max_np=4, sizes=(2, 4)))
    assert reclaim(now, None, None, {"a": 4}) == {"a": 2}


@pytest.mark.parametrize(
    ("slots", "host", "borrowed", "words"),
    [
        (None, None, {}, "no slot is borrowed by job digits"),
        (1, "b", {"a": 1}, "no slot on host b is borrowed by job digits"),
        (3, None, {"a": 1, "b": 1}, r"3 slots back .*: 2 are borrowed by it \(a: 1, b: 1\)"),
    ],
)
def test_what_is_not_lent_cannot_come_back(
    slots: int | None, host: str | None, borrowed: dict[str, int], words: str
) -> None:
    now = with_lent({"a": 3, "b": 2}, borrowed)
    with pytest.raises(UsageError, match=words):
        reclaim(now, slots, host, now.desired.hosts)


def test_the_job_keeps_its_least_size() -> None:
    now = with_lent({"a": 2}, {"a": 1}, job=make_job(min_np=2))
    with pytest.raises(UsageError, match="1 worker would be left and min_np is 2"):
        reclaim(now, None, None, {"a": 2})


# --- what stands


def test_what_somebody_takes_from_a_host_counts_as_lent_first() -> None:
    borrowed = borrowed_after(Desired({"a": 2}), {"a": 4, "b": 1}, ReclaimTerms(borrows=True))
    assert borrowed == {"a": 2, "b": 1}
    before = Desired({"a": 4, "b": 1}, borrowed=borrowed)
    assert borrowed_after(before, {"a": 3, "b": 1}, NO_TERMS) == {"a": 1, "b": 1}
    assert borrowed_after(before, {"a": 1, "b": 1}, NO_TERMS) == {"b": 1}
    assert borrowed_after(before, {"a": 4, "b": 2}, NO_TERMS) == {"a": 2, "b": 1}  # not borrowed
    assert borrowed_after(before, {"a": 4}, NO_TERMS) == {"a": 2}


def test_a_deadline_holds_until_somebody_wants_more_there() -> None:
    before = Desired({"a": 4})
    due = reclaims_after(before, {"a": 2}, ReclaimTerms(within_s=30.0), 100.0)
    assert due == (DUE,)
    asked = Desired({"a": 2}, reclaims=due)
    assert reclaims_after(asked, {"a": 2, "b": 1}, NO_TERMS, 0.0) == due
    assert reclaims_after(asked, {"a": 1}, NO_TERMS, 0.0) == due
    assert reclaims_after(asked, {"a": 3}, NO_TERMS, 0.0) == ()


def test_a_change_carries_both() -> None:
    start = Desired({"a": 2})
    more = set_desired(
        start,
        Assigned({"a": 2}),
        {"a": 4},
        RequestedBy.PERSON,
        "so",
        9.0,
        ReclaimTerms(borrows=True),
    ).desired
    assert (more.borrowed, more.reclaims) == ({"a": 2}, ())
    less = set_desired(
        more,
        Assigned({"a": 4}),
        {"a": 2},
        RequestedBy.PERSON,
        "so",
        100.0,
        ReclaimTerms(within_s=30.0),
    )
    assert (less.desired.borrowed, less.desired.reclaims) == ({}, (DUE,))
    assert less.moves


def test_a_profile_leaves_what_is_lent() -> None:
    start = Desired({"a": 4}, borrowed={"a": 2})
    small = set_desired(start, Assigned({"a": 4}), {"a": 1}, RequestedBy.PROFILE, "so").desired
    assert small.borrowed == {"a": 2}
    assert borrowed_after(small, {"a": 1}, NO_TERMS) == {"a": 1}  # there are no more
    back = set_desired(small, Assigned({"a": 1}), {"a": 4}, RequestedBy.PROFILE, "so").desired
    assert back.borrowed == {"a": 2}


# --- the deadline


@pytest.mark.parametrize(("within_s", "late_s"), [(30.0, 28.0), (4.0, 2.0), (1.0, 0.5)])
def test_it_is_late_shortly_before_the_deadline(within_s: float, late_s: float) -> None:
    one = Reclaim("a", 1, 100.0, 100.0 + within_s)
    assert not is_late(one, late_s - 0.1)
    assert is_late(one, late_s)


@pytest.mark.parametrize("ahead_s", [-7200.0, 0.0, 7200.0])
def test_a_deadline_counts_from_the_first_look_whatever_the_clocks_say(ahead_s: float) -> None:
    """The request was made on a host whose clock is ``ahead_s`` ahead of the leader's."""
    due = Reclaim("a", 2, 100.0 + ahead_s, 130.0 + ahead_s)
    members = tuple(member(worker) for worker in range(4))
    now = owing({"a": 2}, due, generation=ring(0, 1, 2, 3), members=members)
    tracker = ReclaimTracker()
    for now_s, late in ((100.0, False), (127.9, False), (128.0, True), (150.0, True)):
        ages_s = tracker.observe(now.desired, now_s)
        assert set(overdue(now, ages_s)) == ({2, 3} if late else set())
        assert overdue_on("a", ages_s) is late
        assert not overdue_on("b", ages_s)


def test_a_request_that_is_met_and_made_again_counts_anew() -> None:
    tracker, asked = ReclaimTracker(), owing({"a": 2}, DUE).desired
    assert tracker.observe(asked, 10.0) == {DUE: 0.0}
    assert tracker.observe(asked, 15.0) == {DUE: 5.0}
    assert tracker.observe(without_reclaimed(asked, [DUE]), 16.0) == {}
    assert tracker.observe(asked, 17.0) == {DUE: 0.0}


def test_a_leader_counts_a_deadline_also_while_it_cannot_read() -> None:
    tracker, now = AgeTracker(0.0), owing({"a": 2}, DUE)
    tracker.observe(now, 5.0)
    assert tracker.observe(now, 65.0).reclaims_s == {DUE: 60.0}


def owing(desired: dict[str, int], *reclaims: Reclaim, **changes: Any) -> Snapshot:
    now = job_of(desired, **changes)
    return replace(now, desired=replace(now.desired, reclaims=reclaims))


def test_who_leaves_with_the_next_switch_is_overdue() -> None:
    now = owing(
        {"a": 2}, DUE, generation=ring(1, 3, before=(0, 1, 2, 3)),
        members=tuple(member(worker, 1) for worker in range(4)),
    )  # fmt: skip
    assert overdue(now, {DUE: 27.0}) == {}
    why = "its slot was to be given back within 30 s"
    assert overdue(now, LATE) == {0: why, 2: why}


def test_where_no_switch_is_planned_the_highest_ranks_are_overdue() -> None:
    members = tuple(member(worker) for worker in range(4))
    now = owing({"a": 2}, DUE, generation=ring(3, 1, 0, 2), members=members)
    assert set(overdue(now, LATE)) == {0, 2}
    switched = replace(now, generation=ring(3, 1, before=(3, 1, 0, 2)))
    assert overdue(switched, LATE) == {}


def test_under_horovodrun_who_is_in_a_slot_beyond_is_overdue() -> None:
    members = tuple(as_ring_member(worker, slot=3 - worker) for worker in range(4))
    now = owing({"a": 2}, DUE, generation=replace(ring(0), members=members))
    now = replace(now, assigned=Assigned({"a": 4}, by_slot=True))
    assert set(overdue(now, LATE)) == {0, 1}


def test_who_leaves_anyway_goes_before_who_takes_its_place() -> None:
    """A ring of one is one of two while its only worker is replaced."""
    due = Reclaim("a", 1, 100.0, 130.0)
    leaves = replace(member(0), stage=Stage.LEAVING)
    now = owing({"a": 1}, due, generation=ring(0, 1), members=(leaves, member(1)))
    assert set(overdue(now, {due: 28.0})) == {0}
    asked = replace(
        now, members=(member(0), member(1)), requests=(Request(RequestKind.REPLACE, 0),)
    )
    assert set(overdue(asked, {due: 28.0})) == {0}
    comes = replace(ring(0, 1, before=(0,)), joined=(1,))
    entering = replace(now, generation=comes, members=(leaves, member(1, 0)))
    assert overdue(entering, {due: 28.0}) == {}  # it may not have the state yet


def test_who_has_more_time_is_not_overdue() -> None:
    later = Reclaim("a", 1, 110.0, 170.0)
    members = tuple(member(worker) for worker in range(4))
    now = owing({"a": 1}, DUE, later, generation=ring(0, 1, 2, 3), members=members)
    assert set(overdue(now, {DUE: 28.0, later: 18.0})) == {2, 3}
    assert set(overdue(now, {DUE: 68.0, later: 58.0})) == {1, 2, 3}


def test_the_order_of_two_deadlines_is_that_of_the_time_that_is_left() -> None:
    """The shorter request was made on a host whose clock is two hours ahead."""
    short, long = Reclaim("a", 1, 7300.0, 7330.0), Reclaim("a", 1, 100.0, 700.0)
    members = tuple(member(worker) for worker in range(4))
    now = owing({"a": 2}, long, short, generation=ring(0, 1, 2, 3), members=members)
    assert set(overdue(now, {long: 30.0, short: 28.0})) == {3}
    left = replace(now, generation=ring(0, 1, 2), members=members[:3])
    assert returned(left, {long: 30.0, short: 28.0}, "a") == (short,)
    assert set(overdue(left, {long: 598.0, short: 596.0})) == {2}


def test_slots_are_back_when_their_processes_are_gone() -> None:
    gone = owing({"a": 2}, DUE, generation=ring(0, 1), members=(member(0), member(1)))
    assert returned(gone, {}, "a") == (DUE,)
    assert (
        returned(gone, {}, "a", hidden=1) == ()
    )  # a process that ZooKeeper does not know any more
    assert returned(gone, {}, "b") == ()
    assert returned(gone, {}) == ()  # host a has an agent, which knows better
    assert returned(replace(gone, hosts=(B,)), {}) == (DUE,)
    left = replace(gone, members=(*gone.members, member(2)))
    assert returned(left, {}, "a") == ()
    unswitched = replace(
        gone, generation=ring(0, 1, before=(0, 1, 2), number=3), members=gone.members
    )
    assert returned(unswitched, {}, "a") == ()


def test_the_event_says_how_long_it_took() -> None:
    details, text = describe_returned(DUE, 1.23)
    assert text == "2 slots of host a were given back after 1.2 s"
    assert (details.host, details.slots, details.after_s, details.within_s) == ("a", 2, 1.23, 30.0)
    _, late = describe_returned(DUE, 40.0)
    assert late.endswith("after 40.0 s, later than the 30 s that were left")


# --- what leaders and agents do

AGES = Ages(100.0, {}, 100.0)
LIMITS = Limits(120.0, 120.0, 3.0, 30.0, 10.0, 30.0, 0.5)


def test_a_leader_notes_what_a_host_without_an_agent_has_given_back() -> None:
    now = owing({"a": 2}, DUE, generation=ring(0, 1), members=(member(0), member(1)), hosts=())
    made = membership.decide(now, 1, AGES, LIMITS)
    assert made.reclaimed == (DUE,)
    assert made.change is not None
    assert made.change.desired == without_reclaimed(now.desired, [DUE])
    assert not made.change.moves
    over = replace(now, job=make_job(state=JobState.FINISHED))
    assert not membership.decide(over, 1, AGES, LIMITS).acts


def test_a_leader_gives_up_who_is_overdue() -> None:
    members = tuple(member(worker) for worker in range(4))
    now = owing({"a": 2}, DUE, generation=ring(0, 1, 2, 3), members=members)
    late = overdue(now, LATE)
    assert set(membership.decide(now, 1, AGES, LIMITS, overdue=late).evict) == {2, 3}


@pytest.mark.parametrize("how", ["dead", "silent", "absent"])
def test_a_leader_gives_nobody_up_who_may_be_the_last_with_the_state(how: str) -> None:
    due, members = Reclaim("a", 1, 100.0, 130.0), (member(0), member(1))
    now = owing({"a": 1}, due, generation=ring(0, 1), members=members)
    late = overdue(now, {due: 28.0})
    assert set(late) == {1}
    if how == "absent":
        now = replace(now, members=members[1:])
    dead = {0: "its port is refused"} if how == "dead" else {}
    silent = frozenset({0} if how == "silent" else ())
    assert 1 not in membership.decide(now, 1, AGES, LIMITS, dead, silent, late).evict
