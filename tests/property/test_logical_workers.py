"""Logical workers: each step has all samples of its global batch, whatever happens to workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, scales, some

from edl.records import JobState
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackJob


def assert_whole_steps(job: LoopbackJob, script: Counting) -> None:
    """Each step had all samples of its global batch, so there are as many as without a fault."""
    steps = script.epochs * -(-script.samples // (script.batch_size * script.logical))
    for worker, result in job.results.items():
        assert result.split == 0, f"w{worker} has trained a part of a global batch in a step"
        assert result.steps == steps


@st.composite
def scripts(draw: st.DrawFn) -> Counting:
    """Draw a script with logical workers; some have fewer of them than there may be workers."""
    return Counting(
        draw(st.integers(5, 40)),
        2,
        draw(st.integers(1, 3)),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 2)),
        logical=draw(st.integers(1, 8)),
    )


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    script=scripts(),
    changes=some(scales(), 0, 3),
    deaths=some(faults("kill", "cut", "fail", "freeze"), 0, 3),
)
def test_each_step_has_its_global_batch(
    seed: int, np: int, script: Counting, changes: tuple[Change, ...], deaths: tuple[Fault, ...]
) -> None:
    job = Scenario(seed, np, 1, 5, script, deaths, changes).run()
    assert_whole_steps(job, script)


@pytest.mark.parametrize("point", points(1, 90, 2))
def test_a_death_at_each_point(point: int) -> None:
    """Three workers share four logical workers, so some have one and some two pieces of a step."""
    script = Counting(22, 1, 2, 1, logical=4)
    for worker in range(3):
        scenario = Scenario(point % 2, script=script, faults=(Fault(worker, point, "kill"),))
        job = scenario.run()
        assert job.memory.job.state is JobState.FINISHED
        assert_whole_steps(job, script)
