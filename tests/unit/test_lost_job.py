"""Who writes a job again that ZooKeeper has lost."""

from __future__ import annotations

import pytest

from edl.job.run import TURN_S, TURNS, is_newest, may_restore, restore_delay_s
from edl.records import Generation, RingMember


def ring(*ids: int, previous: tuple[int, ...] = (), number: int = 3) -> Generation:
    members = [RingMember(worker, "alpha", worker, "127.0.0.1", 1) for worker in range(200)]
    now, before = ([members[worker] for worker in which] for which in (ids, previous))
    return Generation(number, 1, tuple(now), 0, (), (), "", previous=tuple(before))


def test_ranks_begin_one_after_the_other_and_never_late() -> None:
    now = ring(5, 0, 3)
    assert [restore_delay_s(worker, now) for worker in (5, 0, 3)] == pytest.approx(
        [0.0, TURN_S, 0.2]
    )
    assert restore_delay_s(9, now) == TURN_S * TURNS  # it leaves the ring
    assert restore_delay_s(150, ring(*range(200))) == TURN_S * TURNS
    assert restore_delay_s(150, None) == 0.0


def test_who_is_or_was_in_the_ring_may_write() -> None:
    now = ring(1, 2, previous=(1, 4))
    assert [worker for worker in range(6) if may_restore(worker, now, {2})] == [1, 4]
    assert may_restore(7, None, set())  # nobody has trained yet
    assert not may_restore(7, None, {7})


def test_who_knows_of_a_newer_generation_goes_first() -> None:
    assert is_newest(ring(1, number=3), [0, 3, 2])
    assert not is_newest(ring(1, number=3), [3, 4])
    assert is_newest(None, [])
    assert not is_newest(None, [1])
