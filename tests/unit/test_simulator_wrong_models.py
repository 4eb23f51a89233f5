"""A policy sees wrong step times and lengths, and learns how wrong the times are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from clusters import decide, job, nodes

from benchmarks.published.model_errors import ErrorModelPolicy, ModelErrors, step_time_error
from edl.cluster.state import EXACT, Allocation, ClusterState

JOBS = [job(f"j{number}") for number in range(40)]


@dataclass
class Watching:
    """A policy that gives nothing, and keeps what it is asked."""

    asked: list[ClusterState] = field(default_factory=list)

    def __call__(self, cluster: ClusterState) -> Allocation:
        self.asked.append(cluster)
        return Allocation({}, {one.name: "waits" for one in cluster.jobs}, {"own": 1})


def seen(errors: ModelErrors, *times_s: float) -> list[ClusterState]:
    """Return what a policy is asked at these times, one after the other."""
    watching, state = Watching(), {}
    for now_s in times_s:
        asked = ErrorModelPolicy(watching, errors)
        state = decide(asked, JOBS, nodes(4), state=state, now_s=now_s).state
    return watching.asked


def test_each_time_is_wrong_by_another_factor_at_each_decision() -> None:
    first, then = seen(ModelErrors(step_times=0.1), 60.0, 120.0)
    wrong = [
        [math.log(one.model.step_s((2,), 1) / 0.5) for one in state.jobs] for state in (first, then)
    ]
    assert np.std(wrong, axis=1) == pytest.approx(0.1, rel=0.5)
    assert abs(np.corrcoef(wrong)[0, 1]) < 0.5
    again = first.jobs[3].model
    assert again.step_s((2,), 1) == again.step_s((2,), 1) != again.step_s((3,), 1) * 1.5
    assert again.steps_left(1) == 100.0
    assert again.efficiency(1) == 1.0


def test_the_error_is_what_differed_between_decisions() -> None:
    errors = ModelErrors(step_times=0.1)
    first, then = seen(errors, 60.0, 120.0)
    assert {one.model.error for one in first.jobs} == {EXACT}
    by_hand = [
        step_time_error(errors, one.name, 120.0, (slots,), 1)
        - step_time_error(errors, one.name, 60.0, (slots,), 1)
        for one in JOBS
        for slots in (1, 2, 3, 4)
    ]
    deviation = math.sqrt(np.mean(np.square(by_hand)) / 2)
    assert [one.model.error.deviation for one in then.jobs] == pytest.approx([deviation] * 40)
    assert deviation == pytest.approx(0.1, rel=0.2)
    assert then.state == {"own": 1}


def test_a_length_is_wrong_for_good() -> None:
    first, then = seen(ModelErrors(lengths=1.0), 60.0, 120.0)
    left = [[one.model.steps_left(1) for one in state.jobs] for state in (first, then)]
    assert left[0] == left[1]
    assert np.std(np.log(left[0])) == pytest.approx(1.0, rel=0.5)
    assert first.jobs[0].model.step_s((2,), 1) == 0.5
    assert then.jobs[0].model.error == EXACT
