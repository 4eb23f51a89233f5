"""Several optimizers on a loopback ring: each counts each sample once, whatever happens, anywhere.

A batch has several steps then, and a worker may die between two of them. See `scenarios.py` for how
to replay a failure.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, sampled, scales, some
from several_optimizers import BOTH_FIRST, GAN, ONE, THREE, TOGETHER, CountingSeveral

from edl.records import JobState

SCHEDULES = {
    "as in a GAN": (GAN,),
    "one backward pass": (TOGETHER,),
    "all backward passes first": (BOTH_FIRST,),
    "three": (THREE,),
    "the second one seldom": (GAN, ONE, ONE),
}
MORE = settings(max_examples=3 * settings().max_examples)
each_schedule = pytest.mark.parametrize("turns", SCHEDULES.values(), ids=SCHEDULES)


@st.composite
def scripts(draw: st.DrawFn) -> CountingSeveral:
    shards = draw(st.sampled_from([(), (), (9, 0, 4, 7), (1, 2, 11), (21,)]))
    return CountingSeveral(
        draw(st.sampled_from([*SCHEDULES.values()])),
        samples=sum(shards) or draw(st.integers(5, 30)),
        batch_size=draw(st.integers(1, 3)),
        exchange_every=draw(st.integers(0, 3)),
        shards=shards,
        shared=len(shards) == 1,
    )


@each_schedule
@pytest.mark.parametrize("np", [1, 3])
def test_a_step_has_all_that_lies_between_two_updates(
    np: int, turns: tuple[tuple[str, ...], ...]
) -> None:
    script = CountingSeveral(turns, samples=24)
    job = Scenario(np=np, script=script).run()
    steps = {(GAN,): 2, (TOGETHER,): 1, (BOTH_FIRST,): 1, (THREE,): 2}
    if turns in steps:
        expected = steps[turns] * script.epochs * script.samples // (np * script.batch_size)
        assert {result.counted.steps for result in job.results.values()} == {expected}


@each_schedule
@pytest.mark.parametrize("what", ["kill", "cut", "fail"])
def test_a_fault_at_each_point(what: str, turns: tuple[tuple[str, ...], ...]) -> None:
    """Between two steps of a batch, too; some have completed one and some have not."""
    script = CountingSeveral(turns, samples=14, epochs=1)
    for worker in range(3):
        for point in points(1 + worker, 80, 5, worker):
            scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, what),))
            job = scenario.run()
            assert job.memory.job.state is JobState.FINISHED
            assert what == "kill" or len(job.results) == 3


@MORE
@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    script=scripts(),
    changes=some(scales() | st.builds(Change, st.integers(0, 8), drain=st.integers(0, 5)), 0, 3),
    faults=some(faults(), 0, 4),
    restart_s=st.sampled_from([0.0, 0.5]),
)
@example(  # the second epoch has more batches than the first
    seed=0,
    np=2,
    script=CountingSeveral((GAN, ONE, ONE), samples=5, batch_size=1),
    changes=(Change(0, a=0, b=0), Change(1, a=0, b=2)),
    faults=(),
    restart_s=0.0,
)
def test_everything_at_once(
    seed: int,
    np: int,
    script: CountingSeveral,
    changes: tuple[Change, ...],
    faults: tuple[Fault, ...],
    restart_s: float,
) -> None:
    Scenario(seed, np, 1, 5, script, faults, changes, restart_s).run()


@pytest.mark.parametrize(
    "turns", [(GAN, ONE, ONE), (ONE, ONE, ONE, GAN)], ids=["first of three", "last of four"]
)
def test_a_newcomer_comes_in_where_the_schedule_begins_anew(
    turns: tuple[tuple[str, ...], ...],
) -> None:
    """Each worker's script counts its batches by itself."""
    script = CountingSeveral(turns, samples=48)
    for step in sampled(range(0, 24, 2)):
        scenario = Scenario(np=2, script=script, changes=(Change(step, a=3),))
        job = scenario.run()
        assert {len(g.members) for g in job.memory.generations} == {2, 3}
