"""Learning rates by samples; the numbers were computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edl.errors import UsageError
from edl.schedules import Constant, Cosine, Knee, Linear, OneCycle, Scaling, Schedule, Step

KNEE = Knee(peak_lr=0.4, warmup=1000, explore=5000, total=10000)


@pytest.mark.parametrize(
    ("schedule", "samples", "expected"),
    [
        (KNEE, 0, 0.0),
        (KNEE, 1, 0.0004),  # 0.4 / 1000
        (KNEE, 500, 0.2),
        (KNEE, 1000, 0.4),
        (KNEE, 6000, 0.4),  # warm-up and exploration are over
        (KNEE, 7000, 0.3),  # 0.4 - 0.4 / 4000 * 1000
        (KNEE, 10000, 0.0),
        (KNEE, 20000, 0.0),
        (Knee(peak_lr=1.0, total=100), 50, 1.0),  # half of the budget, unless told otherwise
        (Knee(peak_lr=1.0, total=100), 75, 0.5),
        (Knee(peak_lr=1.0, total=100, warmup=10), 80, 0.5),  # the knee is at 60
        (Knee(peak_lr=1.0, total=100, explore=100), 100, 1.0),
        (Linear(peak_lr=1.0, total=110, warmup=10), 10, 1.0),
        (Linear(peak_lr=1.0, total=110, warmup=10, end_lr=0.2), 60, 0.6),
        (Linear(peak_lr=1.0, total=110, warmup=10, end_lr=0.2), 500, 0.2),
        (Cosine(peak_lr=2.0, total=100), 0, 2.0),
        (Cosine(peak_lr=2.0, total=100), 50, 1.0),
        (Cosine(peak_lr=2.0, total=100), 25, 1.0 + math.sqrt(0.5)),
        (Cosine(peak_lr=2.0, total=100, end_lr=1.0), 100, 1.0),
        (Step(peak_lr=1.0, milestones=[10, 20]), 10, 1.0),  # the last update of the first part
        (Step(peak_lr=1.0, milestones=[10, 20]), 11, 0.1),
        (Step(peak_lr=1.0, milestones=[10, 20], factor=0.5), 21, 0.25),
        (Constant(peak_lr=0.5, warmup=10), 5, 0.25),
        (Constant(peak_lr=0.5), 0, 0.5),
        (OneCycle(peak_lr=1.0, total=100), 0, 0.04),
        (OneCycle(peak_lr=1.0, total=100), 15, 0.52),  # half of the way from 0.04 to 1
        (OneCycle(peak_lr=1.0, total=100), 30, 1.0),
        (OneCycle(peak_lr=1.0, total=100), 65, (1.0 + 4e-6) / 2),
        (OneCycle(peak_lr=1.0, total=100), 100, 4e-6),
    ],
)
def test_the_learning_rate_of_an_update(
    schedule: Schedule, samples: float, expected: float
) -> None:
    assert schedule.at(samples) == pytest.approx(expected, rel=1e-12, abs=1e-15)


LINEAR = Scaling(batch=100, ramp=4)


def test_a_ramp_goes_in_equal_parts() -> None:
    """With gamma = 1 + (t - t0) / T (k - 1), T = 4: from 1 to 3 at t0 = 7, and then to 0.5."""
    batches = [(0, 100), (7, 300), (9, 50)]
    expected = {0: 1.0, 6: 1.0, 7: 1.0, 8: 1.5, 9: 2.0, 10: 1.625, 11: 1.25, 13: 0.5, 99: 0.5}
    assert {t: LINEAR.at(t, batches) for t in expected} == expected
    assert LINEAR.at(12, batches[:2]) == 3.0


def test_the_first_batch_has_no_ramp() -> None:
    assert LINEAR.at(0, ()) == 1.0
    assert [LINEAR.at(t, [(5, 200)]) for t in (4, 5, 6)] == [2.0, 2.0, 2.0]  # a resumed job


def test_rules() -> None:
    assert LINEAR.factor(400) == 4.0
    assert Scaling(batch=100, rule="sqrt").factor(400) == 2.0
    assert Scaling(batch=100, ramp=0).at(3, [(0, 100), (3, 400)]) == 4.0


def test_a_noise_scale_that_becomes_known_comes_in_a_ramp() -> None:
    """400 samples are worth 1.6 updates with 100, by a noise scale of 100; by 300 2.29."""
    ada = Scaling(batch=100, rule="adascale", ramp=4)
    known = [(10, 100.0), (12, 300.0)]
    rates = [ada.at(t, [(0, 400)], known) for t in (0, 10, 11, 12)]
    assert rates == pytest.approx([1.0, 1.0, 1.15, 1.3])
    later = [ada.at(t, [(0, 400)], known) for t in (13, 16, 99)]
    assert later == pytest.approx([1.3 + (16 / 7 - 1.3) / 4, 16 / 7, 16 / 7])
    resumed = [ada.at(t, [(11, 400)], known) for t in (11, 12, 16)]  # the job of before goes on
    assert resumed == pytest.approx([1.15, 1.3, 16 / 7])
    both = ada.at(14, [(0, 100), (12, 400)], known)  # of 1 until 12, then to 2.29 in 4 updates
    assert both == pytest.approx(1.0 + (16 / 7 - 1.0) / 2)
    assert LINEAR.at(12, [(0, 400)], known) == 4.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 0}, "batch is 0 samples; give the global batch for which"),
        ({"batch": 8, "rule": "cubic"}, "rule is 'cubic'; it must be linear or sqrt"),
        ({"batch": 8, "ramp": -1}, "ramp is -1; it must be 0 or more"),
    ],
)
def test_a_scaling_that_cannot_be_is_a_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=rf"edl\.schedules\.Scaling: {words}"):
        Scaling(**given)


def test_knee_is_that_of_its_authors() -> None:
    """Their scheduler counts steps from 1; here a step is a batch of 8."""

    def theirs(step: int, peak: float, warmup: int, explore: int, total: int) -> float:
        if step <= warmup:
            return peak * step / warmup
        if step <= warmup + explore:
            return peak
        decay = total - explore - warmup
        return max(0.0, peak - peak / decay * (step - warmup - explore))

    ours = Knee(peak_lr=0.1, warmup=8 * 7, explore=8 * 40, total=8 * 100)
    for step in range(1, 120):
        assert ours.at(8 * step) == pytest.approx(theirs(step, 0.1, 7, 40, 100), abs=1e-15)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Knee, {"total": 100, "warmup": 20, "explore": 90}, "together more than total, 100"),
        (Knee, {"total": 100, "warmup": 60}, "warmup is 60 samples and explore 50, together"),
        (Knee, {"total": 100, "explore": -1}, "explore is -1 samples; it must be 0 or more"),
        (Linear, {"total": 0}, "total is 0 samples"),
        (Linear, {"total": 10, "warmup": 11}, "the warm-up must fit into the whole"),
        (Cosine, {"total": math.inf}, "total is inf samples"),
        (Cosine, {"total": 10, "peak_lr": 0.0}, "peak_lr is 0; it must be a number above 0"),
        (Cosine, {"total": 10, "warmup": -2}, "warmup is -2 samples"),
        (Step, {"milestones": [20, 10]}, r"milestones are \[20, 10\]; give samples that grow"),
        (Step, {"milestones": [20], "factor": 0.0}, "factor is 0"),
        (Step, {"milestones": [20], "factor": math.inf}, "factor is inf; it must be above 0"),
        (Step, {"milestones": [math.nan]}, r"milestones are \[nan\]; give samples that grow"),
        (Linear, {"total": 10, "end_lr": math.nan}, "end_lr is nan; it must be 0 or more"),
        (Cosine, {"total": 10, "end_lr": -0.1}, "end_lr is -0.1; it must be 0 or more"),
        (OneCycle, {"total": 10, "start": math.inf}, "start is inf; it must be 0 or more"),
        (OneCycle, {"total": 10, "end": math.nan}, "end is nan; it must be 0 or more"),
        (OneCycle, {"total": 10, "warmup": 2}, "a rise of its own; leave warmup out"),
        (OneCycle, {"total": 10, "rise": 1.0}, "rise is 1; it must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    kind: type[Schedule], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=rf"edl\.schedules\.{kind.__name__}: .*{words}"):
        kind(**{"peak_lr": 1.0, **given})


@pytest.mark.parametrize("schedule", [KNEE, OneCycle(peak_lr=1.0, total=10)])
def test_there_are_no_negative_samples(schedule: Schedule) -> None:
    with pytest.raises(UsageError, match="-1 samples cannot be trained"):
        schedule.at(-1)
