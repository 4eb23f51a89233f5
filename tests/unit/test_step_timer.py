"""How long a worker's steps take, and what of it belongs to which ring."""

from __future__ import annotations

from edl.worker.loader_steps import StepTimer


def test_a_new_ring_begins_with_nothing_of_the_one_before() -> None:
    # A switch after one step showed the first step, and the wait, of the ring before: "no step for
    # 16684 ms", 0.6 s after the switch before it.
    now = [0.0]
    pace = StepTimer(lambda: now[0])
    pace.enter(0)
    now[0] = 1.0
    pace.wait()
    now[0], pace.steps_here = 16.6, 1
    pace.end()
    assert pace.first_step_us == 16_600_000
    now[0] = 17.0
    pace.enter(1)
    assert (pace.first_step_us, pace.waiting_since) == (0, 17.0)


def test_of_many_updates_before_the_second_agreement_the_first_one_counts() -> None:
    # A script with an elastic state agrees with the others every ten updates. The event of a switch
    # had the time of twenty updates as its first step: 3.52 s, where an update took 0.14 s.
    now = [0.0]
    pace = StepTimer(lambda: now[0])
    pace.enter(0)
    for number in range(1, 21):
        now[0] = number * 0.125
        pace.wait()
        pace.end()
        pace.steps_here = number // 10
    assert (pace.first_step_us, pace.median_step_s) == (125_000, 0.125)
