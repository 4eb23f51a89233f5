"""The models of many jobs, fitted at once, are those that are fitted one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edl.policy.step_time import StepTime, StepTimeSample
from edl.policy.step_time_fit import fit, fit_all

WAYS = [[1], [2], [1, 2], [1, 4], [2, 3], [1, 2, 4], [1, 2, 4, 8], [4, 4], [1, 2, 3, 4, 8, 16]]


def measured(chance: random.Random) -> list[StepTimeSample]:
    true = StepTime(0.01, chance.uniform(0.001, 0.01), 0.02, 0.003, 0.05, 0.004, 2.0)
    batch, noise = chance.choice([64, 128]), chance.choice([0.0, 0.01, 0.05])
    found = []
    for workers in chance.choice([*WAYS, [1] * 9 + [2] * 9]):
        hosts = chance.choice([1, 1, 2]) if workers > 1 else 1
        step_s = true.step_s(workers, hosts, batch / workers) * chance.lognormvariate(0, noise)
        found.append(StepTimeSample(workers, hosts, batch / workers, step_s))
    return found


def test_each_is_as_if_it_was_fitted_alone() -> None:
    chance = random.Random(1)
    many = [measured(chance) for _ in range(60)]
    for one, found in zip(many, fit_all(many), strict=True):
        alone = fit(one)
        for workers, hosts in ((1, 1), (2, 1), (4, 1), (8, 2), (16, 2)):
            batch = 64 / workers
            expected = pytest.approx(alone.step_s(workers, hosts, batch), rel=1e-4)
            assert found.step_s(workers, hosts, batch) == expected, one


def test_a_step_without_arrays_takes_as_long_as_one_of_an_array() -> None:
    chance = random.Random(2)
    for found in fit_all([measured(chance) for _ in range(20)]):
        for workers, hosts in ((1, 1), (1, 2), (2, 1), (4, 2)):
            [rate] = found.throughputs(workers, hosts, [32.0])
            expected = pytest.approx(workers * 32.0 / rate, rel=1e-12)
            assert found.step_s(workers, hosts, 32.0) == expected


def test_what_it_does_not_fit() -> None:
    one = StepTimeSample(1, 1, 64, 0.5)
    assert fit_all([]) == []
    with pytest.raises(ValueError, match="nothing was measured"):
        fit_all([[one], []])
    with pytest.raises(ValueError, match="compute times"):
        fit_all([[replace(one, compute_s=0.4)]])
