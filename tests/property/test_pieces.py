"""Batches that a worker trains in pieces: every sample once, as many rounds on all workers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, scales, some

from edl.records import JobState
from edl.testing.counting import Counting


@st.composite
def scripts_in_pieces(draw: st.DrawFn) -> Counting:
    samples, batch_size = draw(st.integers(5, 40)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["plain", "most", "aligned", "range"]))
    return Counting(
        samples,
        2,
        batch_size,
        draw(st.integers(0, 3)),
        draw(st.integers(0, 2)),
        max_global_batch=2 * batch_size if kind == "most" else 0,
        aligned=kind == "aligned",
        batch_range=(batch_size, 3 * batch_size) if kind == "range" else (0, 0),
        micro_batch=draw(st.integers(1, 5)),
    )


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    script=scripts_in_pieces(),
    changes=some(scales(), 0, 3),
    deaths=some(faults("kill", "cut", "fail", "freeze"), 0, 3),
)
@example(  # a ring of 5 breaks before its first step, whose slices are smaller than those of 2
    seed=7,
    np=2,
    script=Counting(14, 2, 6, aligned=True, micro_batch=2),
    changes=(Change(step=0, a=2, b=3),),
    deaths=(Fault(2, 4, "freeze"),),
)
def test_through_joins_and_deaths(
    seed: int, np: int, script: Counting, changes: tuple[Change, ...], deaths: tuple[Fault, ...]
) -> None:
    Scenario(seed, np, 1, 5, script, deaths, changes).run()


@pytest.mark.parametrize("aligned", [False, True])
def test_there_are_as_many_steps_as_without_pieces(aligned: bool) -> None:
    whole = Scenario(script=Counting(50, 2, 12, aligned=aligned)).run()
    job = Scenario(script=Counting(50, 2, 12, 1, aligned=aligned, micro_batch=2)).run()
    assert job.memory.job.state is JobState.FINISHED
    steps = {result.steps for result in (*whole.results.values(), *job.results.values())}
    assert len(steps) == 1


@pytest.mark.parametrize("point", points(1, 60, 2))
def test_a_death_at_each_point(point: int) -> None:
    script = Counting(14, 1, 4, 1, aligned=point % 4 == 1, micro_batch=1)
    for worker in range(3):
        scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
        assert scenario.run().memory.job.state is JobState.FINISHED


@pytest.mark.parametrize("point", points(1, 70, turn=4))
def test_a_death_splits_one_step_at_most(point: int) -> None:
    """Also a death between two steps: the next step has slices, and so pieces, of the old ring."""
    script = Counting(16, 2, 8, exchange_every=1, aligned=True, micro_batch=2)
    job = Scenario(point % 3, 4, script=script, faults=(Fault(3, point, "kill"),)).run()
    assert {result.steps for result in job.results.values()} <= {4, 5}
