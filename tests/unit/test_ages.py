"""How long a leader has known what it decides by."""

from __future__ import annotations

from dataclasses import replace

from made import make_job

from edl.job.liveness import AWAY_S, AgeTracker
from edl.job.snapshot import Snapshot
from edl.records import Generation, Member, RingFailure, RingMember, Stage

LEADER_SINCE = 100.0


def member(number: int, stage: Stage = Stage.ACTIVE) -> Member:
    generation = 7 if stage is Stage.ACTIVE else 0
    return Member(number, "a", number, "::1", 9000, 1, "l", stage, generation)


def ring_of(*numbers: int) -> tuple[RingMember, ...]:
    return tuple(RingMember(n, "a", n, "::1", 9000) for n in numbers)


RING = Generation(7, 1, ring_of(0, 1), 0, (), (), "so it began")
NOW = Snapshot(make_job(), members=(member(0), member(1)), generation=RING)


def test_a_stage_is_as_old_as_it_was_seen() -> None:
    tracker = AgeTracker(LEADER_SINCE)
    ready = replace(NOW, members=(member(0), member(2, Stage.READY)))
    tracker.observe(ready, 110.0)
    assert tracker.observe(ready, 115.0).stage_s == {0: 5.0, 2: 5.0}
    assert tracker.observe(NOW, 120.0).stage_s == {0: 10.0, 1: 0.0}


def test_a_ring_is_broken_since_the_first_report() -> None:
    tracker = AgeTracker(LEADER_SINCE)
    assert tracker.observe(NOW, 110.0).broken_s == 0.0
    reported = replace(member(0), broken=RingFailure(7, 40))
    broken = replace(NOW, members=(reported, member(1)))
    tracker.observe(broken, 120.0)
    ages = tracker.observe(broken, 123.0)
    assert (ages.leading_s, ages.generation_s, ages.broken_s) == (23.0, 13.0, 3.0)
    repaired = replace(broken, generation=replace(RING, number=8))
    ages = tracker.observe(repaired, 124.0)
    assert (ages.generation_s, ages.broken_s) == (0.0, 0.0)


def test_an_old_report_of_an_evicted_worker_breaks_no_ring() -> None:
    """It was cut off, and registers once more before it reads that it is evicted."""
    tracker = AgeTracker(LEADER_SINCE)
    planned = replace(RING, number=8, members=ring_of(0, 1, 2), previous=RING.members, joined=(2,))
    switched = (replace(member(0), generation=8), replace(member(1), generation=8))
    now = replace(NOW, generation=planned, members=switched, evicted={3: "it was cut off"})
    back = replace(member(3), generation=6, broken=RingFailure(6, 40))
    assert tracker.observe(replace(now, members=(*switched, back)), 110.0).broken_s == 0.0
    reported = replace(switched[0], broken=RingFailure(8, 90))
    assert tracker.observe(replace(now, members=(reported, switched[1])), 900.0).broken_s == 0.0


def test_a_ring_is_lost_since_all_that_were_to_stay_are_given_up() -> None:
    """Until a planned ring is built it is the one before; who leaves is not waited for."""
    tracker = AgeTracker(LEADER_SINCE)
    planned = replace(RING, number=8, members=ring_of(0, 2), previous=RING.members, left=(1,))
    planned = replace(planned, joined=(2,))
    now = replace(NOW, generation=planned, members=(member(2, Stage.READY),))
    assert tracker.observe(now, 110.0).lost_s == 0.0
    dead = replace(now, evicted={0: "it is dead"})
    assert tracker.observe(dead, 120.0).lost_s == 0.0
    assert tracker.observe(dead, 123.0).lost_s == 3.0
    switched = replace(dead, members=(replace(member(2), generation=8),))
    assert tracker.observe(switched, 124.0).lost_s == 0.0


def test_no_time_passes_while_the_leader_cannot_read() -> None:
    """Its first look after an outage of ZooKeeper gives nobody up who could not write, either."""
    tracker = AgeTracker(LEADER_SINCE)
    broken = replace(NOW, members=(replace(member(0), broken=RingFailure(7, 40)), member(1)))
    tracker.observe(broken, 101.0)
    back = tracker.observe(broken, 500.0)
    assert (back.broken_s, back.leading_s) == (AWAY_S, AWAY_S + 1.0)
    assert back.stage_s == {0: AWAY_S, 1: AWAY_S}
    assert tracker.observe(broken, 502.0).broken_s == AWAY_S + 2.0
