"""A global batch that the job chooses: every sample once, the same batches on all workers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, scales, some

from edl.records import JobState
from edl.testing.counting import Counting


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    samples=st.integers(5, 40),
    batch_range=st.tuples(st.integers(1, 6), st.integers(1, 12)).map(lambda n: (n[0], sum(n))),
    prefetch=st.integers(0, 2),
    accumulated=st.integers(1, 2),
    changes=some(scales(), 0, 3),
    deaths=some(faults("kill", "cut", "fail", "freeze"), 0, 3),
)
@example(0, 1, 22, (1, 3), 3, 1, (Change(3, 1, 2),), ())  # 2 of 3 join beside a batch read ahead
def test_it_changes_through_joins_and_deaths(
    seed: int,
    np: int,
    samples: int,
    batch_range: tuple[int, int],
    prefetch: int,
    accumulated: int,
    changes: tuple[Change, ...],
    deaths: tuple[Fault, ...],
) -> None:
    script = Counting(samples, 2, 1, prefetch, 0, accumulated, batch_range=batch_range)
    Scenario(seed, np, 1, 5, script, deaths, changes).run()


@pytest.mark.parametrize("shared", [True, False])
def test_of_a_stream(shared: bool) -> None:
    shards = (40,) if shared else (9, 14, 17)
    script = Counting(40, 2, 1, 1, shards=shards, shared=shared, batch_range=(3, 12))
    job = Scenario(5, 3, script=script, faults=(Fault(1, 60, "kill"),), changes=(Change(4, a=4),))
    assert job.run().memory.job.state is JobState.FINISHED


@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_step_has_what_was_chosen(prefetch: int) -> None:
    """Three workers, 5 samples more every third step: 4, 4, 4, then 9 and 14, and back."""
    script = Counting(200, 1, 1, prefetch, batch_range=(4, 16))
    job = Scenario(script=script).run()
    for result in job.results.values():
        assert [batch for _, batch in result.batches][:4] == [4, 9, 14, 6]
        assert [update for update, _ in result.batches][1] in (3, 4, 5)


@pytest.mark.parametrize("point", points(1, 130, 3))
def test_a_death_at_each_point(point: int) -> None:
    """Also in the step in which all take another batch, which some have completed then."""
    script = Counting(60, 1, 1, point % 3, batch_range=(3, 9))
    for worker in range(3):
        scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
        assert scenario.run().memory.job.state is JobState.FINISHED
