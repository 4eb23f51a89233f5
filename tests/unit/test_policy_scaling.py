"""What a job trains with other numbers of workers, by the model of its steps."""

from __future__ import annotations

import pytest

from edl.policy.file import ScalingModel, step_time_samples
from edl.policy.observation import SizeMeasurement
from edl.policy.step_time import StepTime, StepTimeSample

TIME = StepTime(0.02, 0.001, 0.03, 0.004, 0.08, 0.01, 2.0)


@pytest.mark.parametrize(("np", "hosts"), [(1, 1), (4, 1), (5, 2), (6, 2), (9, 2)])
def test_hosts_are_filled_one_after_the_other(np: int, hosts: int) -> None:
    scaling = ScalingModel(TIME, 32.0, (4, 2))
    assert scaling.throughput(np) == TIME.throughput(np, hosts, 32.0)
    assert ScalingModel(TIME, 32.0).throughput(np) == TIME.throughput(np, 1, 32.0)


def test_a_measurement_counts_more_than_the_model() -> None:
    """The model is a tenth too high at 4, and so it is at 5; at 2 nothing was measured for long."""
    rate = TIME.throughput(4, 1, 32.0) / 1.1
    scaling = ScalingModel(
        TIME, 32.0, (8,), {4: SizeMeasurement(rate, 50), 2: SizeMeasurement(1.0, 9)}
    )
    assert scaling.throughput(4) == pytest.approx(rate)
    assert scaling.throughput(5) == pytest.approx(TIME.throughput(5, 1, 32.0) / 1.1)


def test_throughputs_are_step_times() -> None:
    """4 workers on 2 hosts, 32 samples each: 128 in a step; of 640 a second it takes 0.2 s."""
    seen = {1: SizeMeasurement(160.0, 9), 4: SizeMeasurement(640.0, 50, 32.0, 2)}
    assert step_time_samples(seen.items()) == [StepTimeSample(4, 2, 32.0, pytest.approx(0.2))]
