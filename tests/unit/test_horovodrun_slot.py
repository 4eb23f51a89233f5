"""What `edl-worker` does next, and what it asks the driver of horovodrun.

The first are the texts of `scenarios/edl-worker`; tests/launcher_texts.py has their words.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from launcher_texts import decided, given
from made import changed, wanted
from scenario_texts import check, scenarios

from edl.host.horovodrun.decide import (
    AfterLoss,
    LostSlots,
    SlotLimits,
    SlotRelease,
    abandoned,
    after_loss,
    awaits_others,
    forgotten,
    last_round,
    may_ask,
    released,
    removal_pending,
    with_answer,
    without_barred,
    would_end_the_job,
)
from edl.records import Assigned, Desired, JobState, SlotRecord
from edl.spec import Sizes

LIMITS = SlotLimits()
NOW, _ = given("slot 1 | ring 1 w0 w1 | there w0(in=1) w1(in=1)")


@pytest.mark.parametrize("lines", scenarios("edl-worker"))
def test_decide_slot(lines: list[str]) -> None:
    check(lines, decided)


def test_after_the_end_the_driver_is_waited_for_and_that_is_said() -> None:
    """A success would count beside the question; a failure takes its place."""
    job = changed(NOW.job, state=JobState.FINISHED)
    assert last_round(job, 1, False, "", late=False).exit_code is None
    waits = last_round(job, 1, True, "slot 0 on b", late=True)
    assert waits.exit_code is None
    assert "digits has finished, but horovodrun waits for slot 0 on b" in waits.reason
    assert (
        "waits for an edl-worker that does not ask"
        in last_round(job, 1, True, "", late=True).reason
    )
    fails = last_round(job, 1, False, "", late=True)
    assert fails.exit_code == 1
    assert "has not answered slot 1" in fails.reason


def test_who_is_asked_to_end_gives_up_a_slot_of_its_host() -> None:
    assert released({"a": 2, "b": 1}, "a", Sizes(1)) == {"a": 1, "b": 1}
    assert released({"a": 2, "b": 1}, "a", Sizes(3)) == {"a": 2, "b": 1}
    assert released({"b": 1}, "a", Sizes(1)) == {"b": 1}


def test_a_slot_is_released_once_though_the_answer_of_a_write_is_lost() -> None:
    release = SlotRelease("a")
    lower = release.choice(Sizes(1))
    assert lower({"a": 4}) == {"a": 3}
    assert lower({"a": 6}) == {"a": 5}, "others changed it before it was written"
    assert release.choice(Sizes(1))({"a": 5}) == {"a": 5}, "the first attempt was written"
    assert release.choice(Sizes(1))({"a": 6}) == {"a": 5}, "it was not"


def test_what_is_assigned_follows_the_driver() -> None:
    assert with_answer({"a": 2, "b": 1}, "a", 0, 3) == {"a": 3, "b": 1}
    assert with_answer({"a": 3}, "a", 2, None) == {"a": 2}
    assert with_answer({"a": 2}, "a", 2, None) == {"a": 2}  # others of the host know better
    assert with_answer({"a": 3}, "a", 0, None) == {"a": 0}


def test_the_driver_is_not_asked_while_a_slot_that_it_took_back_is_in_use() -> None:
    assert not removal_pending(NOW)
    assert removal_pending(replace(NOW, **wanted({"a": 1})))
    assert removal_pending(replace(NOW, **wanted({})))
    assert removal_pending(
        replace(NOW, slots=(SlotRecord("a", 2),))
    )  # its edl-worker is to end yet
    assert not removal_pending(replace(NOW, slots=(SlotRecord("a", 1),)))


def test_who_moves_to_another_host_waits_until_it_is_assigned_there() -> None:
    def waits(now: dict[str, int], lowered: dict[str, int], desired: dict[str, int]) -> bool:
        return awaits_others(Assigned(now, by_slot=True), lowered, Desired(desired))

    assert waits({"a": 2}, {"a": 1}, {"a": 1, "b": 1})
    assert not waits({"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert not waits({"a": 2}, {"a": 1}, {"a": 1})  # a scale-in
    assert not waits({"a": 2}, {"a": 3}, {"a": 3})  # a scale-out
    assert not waits({"a": 2}, {"a": 1}, {})  # another discovery script: nobody knows


def test_a_driver_that_missed_what_is_desired_is_reminded_and_one_that_cannot_is_not() -> None:
    has, desired, limit_s = {"a": 2, "b": 0}, {"a": 2, "b": 2}, LIMITS.follow_s

    def reminded(now: float, answered: float = 0.0, barred: tuple[str, ...] = ()) -> bool:
        return forgotten(has, desired, barred, 100.0, answered, now, limit_s)

    assert not reminded(114.0)
    assert reminded(115.0)
    assert reminded(115.0, answered=101.0)  # that round may have begun before
    assert not reminded(200.0, answered=115.0)  # it knew that
    assert not reminded(115.0, barred=("b",))
    assert reminded(115.0, barred=("a",))
    assert not forgotten(has, {"a": 2}, (), 100.0, 0.0, 200.0, limit_s)
    assert not forgotten(has, {}, (), 100.0, 0.0, 200.0, limit_s)  # another discovery script


def test_a_host_is_barred_from_the_loss_of_a_slot_until_it_has_one_again() -> None:
    kept = tuple(SlotRecord(host, slot) for host in "ab" for slot in (0, 1))
    lost_slots = LostSlots("a", 0, LIMITS)

    def barred(now: float, hosts: dict[str, int], *slots: SlotRecord) -> set[str]:
        lost_slots.update(replace(NOW, **wanted(hosts), slots=slots), 0.0, now)
        return set(lost_slots.barred)

    assert barred(100.0, {"a": 2, "b": 2}, *kept) == set()
    assert barred(101.0, {"a": 2, "b": 1}, *kept[:3]) == set()  # taken back
    assert barred(102.0, {"a": 2, "b": 2}, *kept) == set()
    assert barred(103.0, {"a": 2, "b": 2}, *kept[:3]) == set()
    assert barred(108.0, {"a": 2, "b": 2}, *kept[:3]) == {"b"}
    assert barred(109.0, {"a": 2, "b": 0}, *kept[:3]) == {"b"}  # its other worker leaves
    assert barred(110.0, {"a": 2}, *kept[:2]) == {"b"}
    assert barred(200.0, {"a": 2, "b": 2}, *kept) == set()


def test_a_loss_is_acted_on_each_time_and_a_slot_that_comes_again_is_none() -> None:
    kept = (SlotRecord("a", 0), SlotRecord("b", 0))
    lost_slots = LostSlots("a", 0, LIMITS)

    def asks(now: float, hosts: dict[str, int], *slots: SlotRecord) -> bool:
        return lost_slots.update(replace(NOW, **wanted(hosts), slots=slots), 0.0, now)

    both = {"a": 1, "b": 1}
    for began in (100.0, 200.0):  # the host came back after its cool-down
        assert not asks(began, both, *kept)
        assert not asks(began + 1, both, *kept[:1])
        assert asks(began + 7, both, *kept[:1])
        assert not asks(began + 20, both, *kept[:1])  # once is enough
    assert not asks(300.0, {"a": 1}, *kept[:1])
    assert not asks(301.0, both, *kept[:1])  # a new one is to start there, however slowly
    assert not asks(400.0, both, *kept[:1])
    assert lost_slots.best is AfterLoss.NOTHING
    assert not asks(422.0, both, *kept[:1])
    assert asks(430.0, both, *kept[:1])  # it died on the way


def test_a_slot_is_abandoned_when_its_edl_worker_was_there_and_is_not() -> None:
    now = replace(NOW, **wanted({"a": 2, "b": 1}), slots=(SlotRecord("a", 1),))
    assert abandoned(now, {("a", 0), ("a", 1)}) == {("a", 0)}
    assert abandoned(now, {("a", 0), ("a", 2)}) == {("a", 0)}  # the driver took a:2 back
    assert abandoned(now, set()) == set()  # they are about to start


@pytest.mark.parametrize(
    ("hosts", "min_np", "lost", "best"),
    [
        ({"a": 2, "b": 2}, 2, [], AfterLoss.NOTHING),
        ({"a": 2, "b": 2}, 2, [("a", 0)], AfterLoss.PLACE_ANEW),
        ({"a": 2, "b": 2}, 3, [("a", 0)], AfterLoss.WAIT),  # three train, two would be left
        ({"a": 2, "b": 2}, 4, [("a", 0)], AfterLoss.PLACE_ANEW),  # too few train in any case
        ({"a": 2, "b": 2}, 2, [("a", 0), ("b", 1)], AfterLoss.HOLD),
        ({"a": 4}, 1, [("a", 3)], AfterLoss.HOLD),  # the driver would bar the only host
        ({"a": 1}, 1, [("a", 0)], AfterLoss.PLACE_ANEW),
    ],
)
def test_the_driver_places_the_slots_anew_where_that_helps(
    hosts: dict[str, int], min_np: int, lost: list[tuple[str, int]], best: AfterLoss
) -> None:
    assert after_loss(Assigned(hosts), Sizes(min_np), lost) is best


@pytest.mark.parametrize(
    ("best", "desired", "ends"),
    [
        (AfterLoss.NOTHING, {"a": 1}, False),
        (AfterLoss.PLACE_ANEW, {"a": 1}, False),
        (AfterLoss.HOLD, {"a": 9}, True),
        (AfterLoss.WAIT, {"a": 2, "b": 2}, True),  # b is barred, two would be left
        (AfterLoss.WAIT, {"a": 2, "b": 2, "c": 1}, False),
        (AfterLoss.WAIT, {}, False),  # another discovery script: nobody knows
    ],
)
def test_the_driver_is_not_asked_where_it_would_end_the_job(
    best: AfterLoss, desired: dict[str, int], ends: bool
) -> None:
    assert would_end_the_job(best, desired, {"b"}, Sizes(3)) is ends


def test_after_the_job_a_slot_asks_when_its_script_has_ended() -> None:
    assert may_ask(JobState.RUNNING, runs=True, done=True, fatal=False)
    assert not may_ask(JobState.RUNNING, runs=True, done=False, fatal=False)
    assert not may_ask(JobState.RUNNING, runs=True, done=True, fatal=True)
    assert not may_ask(JobState.FINISHED, runs=True, done=True, fatal=False)
    assert may_ask(JobState.FINISHED, runs=False, done=False, fatal=True)


def test_a_barred_host_is_not_assigned_when_the_driver_uses_no_more_than_the_others() -> None:
    hosts, lost = {"a": 2, "b": 2}, [("a", 0), ("a", 1)]
    assert without_barred(hosts, lost, 2) == {"b": 2}
    assert without_barred(hosts, lost, 4) == hosts  # nobody has asked the driver yet
    assert without_barred(hosts, lost[:1], 2) == hosts  # a:1 will say it
