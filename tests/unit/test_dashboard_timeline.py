"""The time line of a job's generations, and the time that it lost."""

from __future__ import annotations

import pytest
from shown_job import CREATED, event, generation, story, switch

from edl.dashboard.view import timeline as timelines
from edl.dashboard.view.timeline import GenerationTimeline
from edl.events import (
    CheckpointFailedDetails,
    Event,
    JobFinishedDetails,
    LeaderDetails,
    PausedDetails,
    SwitchDetails,
    ZookeeperBackDetails,
)
from edl.records import SwitchParts


def folded(*events: Event, cut: bool = False) -> GenerationTimeline:
    found = GenerationTimeline.cut(events[0].time) if cut else GenerationTimeline()
    for one in events:
        found = found.with_event(one)
    return found


def test_each_generation_is_a_band_with_its_cause_and_its_loss() -> None:
    found = folded(*story())
    assert [(b.first, b.cause, b.np, b.from_s - CREATED, b.loss_s) for b in found.bands] == [
        (1, "start", 2, 3.0, None),
        (2, "join", 3, 98.0, pytest.approx(0.16)),  # 0.11 and 0.05 of a longer first step
        (3, "crash", 2, pytest.approx(300.2), pytest.approx(0.28)),
        (4, "join", 3, 320.0, pytest.approx(0.17)),
        (5, "rebuild", 3, 480.0, pytest.approx(0.13)),
    ]
    assert found.bands[-1].to_s is None
    assert all(a.to_s == b.from_s for a, b in zip(found.bands, found.bands[1:], strict=False))
    assert [(mark.kind, mark.tone) for mark in found.marks] == [
        ("slow_worker", "warning"),
        ("worker_failed", "bad"),
        ("evicted", "warning"),
    ]
    assert found.goodput(CREATED + 603.0) == pytest.approx(1.0 - 0.74 / 600.0)
    assert found.goodput(CREATED + 603.0, standing_s=60.0) == pytest.approx(1.0 - 60.74 / 600.0)


def test_a_change_of_the_leader_is_marked_and_the_first_leader_is_not() -> None:
    found = folded(*(event(at, LeaderDetails(who)) for at, who in ((2, "w0"), (3, "w0"))))
    assert (found.leader, found.led_s, found.marks) == ("w0", CREATED + 2, ())
    found = folded(event(2, LeaderDetails("w0")), event(9, LeaderDetails("w1"), 1, 5, "w1 leads"))
    assert (found.leader, found.led_s) == ("w1", CREATED + 9)
    (mark,) = found.marks
    assert (mark.kind, mark.tone) == ("leader", "change")
    assert mark.reason == "w1 leads; before, w0 led"


def test_an_outage_of_zookeeper_is_marked_where_it_began() -> None:
    begun = folded(generation(0, 1, ("w0",)))
    lasts = begun.with_outage(CREATED + 50.0)
    (mark,) = lasts.marks
    assert (mark.at_s, mark.kind, mark.tone) == (CREATED + 50.0, "zookeeper_away", "bad")
    assert (mark.generation, mark.reason) == (1, "ZooKeeper does not answer")
    over = begun.with_event(event(55, CheckpointFailedDetails(), 1, 5)).with_event(
        event(60, ZookeeperBackDetails(10.0, 4), 1, 9)
    )
    assert [(one.kind, one.tone, one.at_s - CREATED) for one in over.marks] == [
        ("zookeeper_away", "warning", 50.0),
        ("checkpoint_failed", "bad", 55.0),
    ], "in the order of time"
    assert over.marks[0].reason == "ZooKeeper did not answer for 10 s"


def test_a_start_costs_nothing_for_there_was_nothing_to_hold_up() -> None:
    new = SwitchParts(role="new", stall_s=5.0, first_step_s=1.0)
    begun = folded(generation(0, 1, ("w0",)), event(1, SwitchDetails(1, {"w0": new}), 1))
    assert begun.bands[0].loss_s == 0.0
    assert begun.goodput(CREATED + 10.0) == 1.0


def test_goodput_is_not_known_before_the_first_ring() -> None:
    assert GenerationTimeline().goodput(CREATED) is None
    assert folded(generation(0, 1, ("w0",))).goodput(CREATED) is None


def test_a_pause_is_lost_and_not_counted_twice() -> None:
    begun = (generation(0, 1, ("w0", "w1")), generation(10, 2, ("w0",), (), ("w1",), True))
    paused = folded(*begun, event(10, PausedDetails(1, 2), 2))
    assert paused.goodput(CREATED + 20.0) == pytest.approx(0.5)
    again = paused.with_event(generation(30, 3, ("w0", "w2"), ("w2",)))
    assert again.bands[1].paused_s == 20.0
    # The old worker has waited in the pause, and its switch says so once more.
    again = again.with_event(switch(31, 3, 20.5))
    assert again.lost_s == pytest.approx(20.55)
    assert again.paused_since_s is None


def test_the_end_closes_the_line() -> None:
    ended = folded(generation(0, 1, ("w0",)), event(50, JobFinishedDetails()))
    assert (ended.bands[-1].to_s, ended.ended_s) == (CREATED + 50.0, CREATED + 50.0)
    assert ended.goodput(CREATED + 5000.0) == 1.0
    # A generation without members ends training before the job's end is recorded.
    ended = folded(generation(0, 1, ("w0",)), generation(9, 2, ()), event(50, JobFinishedDetails()))
    assert ended.ended_s == CREATED + 9.0


def test_a_week_of_changes_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MAX_BANDS", 8)
    names = [tuple(f"w{n}" for n in range(1 + number % 4)) for number in range(100)]
    found = folded(*(generation(10.0 * n, n + 1, names[n]) for n in range(100)))
    assert len(found.bands) <= 8
    assert (found.bands[0].first, found.bands[-1].last) == (1, 100)
    pairs = zip(found.bands, found.bands[1:], strict=False)
    assert all(a.last + 1 == b.first and a.to_s == b.from_s for a, b in pairs)
    assert (found.bands[0].least_np, found.bands[0].most_np) == (1, 4)
    late = found.with_event(switch(1001, 1, 0.5))  # of a band that was merged
    assert late.bands[0].loss_s == pytest.approx(0.55)


def test_of_a_thousand_workers_the_slowest_are_kept() -> None:
    stalls = [0.001 * n for n in range(1000)]
    found = folded(generation(0, 1, ("w0",)), switch(1, 1, *stalls)).switch_of(1)
    assert found is not None
    assert (found.size, len(found.workers)) == (1000, timelines.MAX_WORKERS)
    assert found.workers[0].worker == "w999"
    assert folded().switch_of(1) is None


def test_of_a_log_that_was_cut_only_what_is_known_counts() -> None:
    # The switch of a generation whose own event is gone: most of it lies before.
    orphan = folded(switch(1000, 6, 500.0), generation(1001, 7, ("w0",), (), ("w1",)), cut=True)
    assert orphan.is_cut
    assert [(b.first, b.cause, b.np, b.from_s - CREATED) for b in orphan.bands] == [
        (6, "unknown", 2, 1000.0),
        (7, "leave", 1, 1001.0),  # and no start
    ]
    assert orphan.lost_s == 0.0
    assert orphan.goodput(CREATED + 1600.0) == 1.0
    later = orphan.with_event(switch(1011, 7, 9.95))
    assert later.goodput(CREATED + 1100.0) == pytest.approx(0.9)


def test_a_switch_that_began_before_the_cut_counts_from_there() -> None:
    found = folded(
        event(100, CheckpointFailedDetails(), 4),
        generation(110, 5, ("w0", "w1"), ("w1",)),
        switch(140, 5, 500.0),
        cut=True,
    )
    assert [(b.first, b.cause, b.np) for b in found.bands] == [(4, "unknown", 1), (5, "join", 2)]
    assert (found.lost_s, found.goodput(CREATED + 180.0)) == (40.0, 0.5)


def test_a_pause_after_the_cut_counts() -> None:
    paused = folded(event(10, PausedDetails(1, 2), 2), cut=True)
    assert paused.goodput(CREATED + 20.0) == 0.0
    again = paused.with_event(generation(30, 3, ("w0", "w2"), ("w2",)))
    assert (again.bands[0].paused_s, again.lost_s) == (20.0, 20.0)
    assert again.with_event(switch(31, 3, 20.5)).lost_s == pytest.approx(20.55)


def test_a_cut_log_without_a_generation_is_known_from_its_oldest_event() -> None:
    found = folded(event(10, CheckpointFailedDetails(), 2), cut=True)
    assert (found.bands, found.goodput(CREATED + 20.0)) == ((), 1.0)
    # All workers had died: there was no ring before.
    anew = found.with_event(generation(40, 3, ("w5",), ("w5",), (), True))
    assert [(b.first, b.cause) for b in anew.bands] == [(3, "crash")]
    assert anew.began_s == CREATED + 40.0
