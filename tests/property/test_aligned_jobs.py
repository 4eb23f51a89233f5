"""A fixed global batch: the same samples in every step, whoever joins and leaves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, scales, some

from edl.records import JobState
from edl.testing.counting import Counting


def steps_of(script: Counting) -> int:
    """Those of a job whose workers stay."""
    return script.epochs * -(-script.samples // script.batch_size)


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    samples=st.integers(5, 30),
    batch_size=st.integers(1, 9),
    prefetch=st.integers(0, 2),
    exchange_every=st.integers(0, 2),
    changes=some(scales(), 1, 4),
)
def test_joins_and_leaves_change_no_global_batch(
    seed: int,
    np: int,
    samples: int,
    batch_size: int,
    prefetch: int,
    exchange_every: int,
    changes: tuple[Change, ...],
) -> None:
    """No step mixes two global batches (``judge_finished``), and there are as many steps."""
    script = Counting(samples, 2, batch_size, prefetch, exchange_every, aligned=True)
    job = Scenario(seed, np, 1, 5, script, (), changes).run()
    assert job.memory.job.state is JobState.FINISHED
    assert {result.steps for result in job.results.values()} == {steps_of(script)}


@given(
    seed=SEEDS,
    np=st.integers(2, 4),
    batch_size=st.integers(1, 9),
    prefetch=st.integers(0, 2),
    changes=some(scales(), 0, 2),
    deaths=some(faults("kill", "cut", "fail", "freeze"), 1, 3),
)
def test_a_death_splits_a_step_and_mixes_none(
    seed: int, np: int, batch_size: int, prefetch: int, changes: Any, deaths: tuple[Fault, ...]
) -> None:
    script = Counting(24, 2, batch_size, prefetch, 0, aligned=True)
    Scenario(seed, np, 1, 5, script, deaths, changes).run()


@pytest.mark.parametrize("point", points(1, 90, 3))
def test_a_death_at_each_point(point: int) -> None:
    script = Counting(14, 1, 4, aligned=True)
    for worker in range(3):
        scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
        assert scenario.run().memory.job.state is JobState.FINISHED
