"""Step times and progress between what was measured, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.published import application
from benchmarks.published.application import Application, Scaled, Timed, Validation
from benchmarks.published.pollux_measurements import measured_applications
from benchmarks.published.pollux_workload import LOADS, WORKLOADS, ApplicationWork, pollux_jobs
from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample


def made(**changes) -> Application:
    """Trained with batches of 16 and 64; measured on (1), (2), (1, 2), and two points far off."""
    validations = [
        Validation(64, (40.0, 90.0), (20.0, 40.0), (2.0, 2.0), (12.0, 6.0)),
        Validation(16, (50.0, 100.0), (50.0, 100.0), (2.0, 2.0), (6.0, 6.0)),
    ]
    timed = [
        Timed((1,), 8, 1.0, 0.0),
        Timed((1,), 16, 2.0, 0.0),
        Timed((2,), 4, 1.0, 0.5),
        Timed((2,), 16, 4.0, 0.8),
        Timed((1, 2), 4, 2.0, 1.0),
        Timed((1, 2), 16, 5.0, 1.0),
    ]
    far = [Scaled(4, 8, 4, 4.0, 2.0), Scaled(4, 8, 16, 8.0, 2.0)]
    return Application("made", 2, validations, timed, far, **changes)


def test_between_two_local_batches_it_is_linear() -> None:
    # 10 is half way from 4 to 16: (1 + 4) / 2, (0.5 + 0.8) / 2.
    assert made().parts((2,), 10) == pytest.approx((2.5, 0.65))
    assert made().parts((2,), 4) == (1.0, 0.5)
    assert made().parts((2,), 16) == pytest.approx((4.0, 0.8))


def test_a_placement_measured_with_one_local_batch_is_known_for_that_alone() -> None:
    validation = Validation(16, (1.0,), (1.0,), (1.0,), (1.0,))
    once = Application("once", 1, [validation], [Timed((1,), 8, 1.5, 0.25)], [])
    assert once.parts((1,), 8) == (1.5, 0.25)
    with pytest.raises(UsageError, match="once was not measured with 9 samples a slot on 1 slots"):
        once.parts((1,), 9)


def test_placements_that_are_rotations_are_one() -> None:
    assert made().parts((2, 1), 4) == made().parts((1, 2), 4) == (2.0, 1.0)


def test_other_placements_lie_between_those_around() -> None:
    # Four points are one simplex. 2 nodes, 3 slots and 10 samples have a quarter of each:
    # (1 + 2 + 5 + 3) / 4 and (0 + 0 + 2 + 1) / 4.
    timed = [Timed((1,), 8, 1.0, 0.0), Timed((1,), 16, 2.0, 0.0)]
    scaled = [Scaled(5, 5, 8, 5.0, 2.0), Scaled(1, 5, 8, 3.0, 1.0)]
    validation = Validation(16, (1.0,), (1.0,), (1.0,), (1.0,))
    simplex = Application("simplex", 1, [validation], timed, scaled)
    assert simplex.parts((2, 1), 10) == pytest.approx((2.75, 0.75))
    with pytest.raises(UsageError, match="simplex was not measured with 8 samples a slot on 40 sl"):
        simplex.parts((20, 20), 8)


def test_what_lies_outside_is_refused() -> None:
    with pytest.raises(UsageError, match="made was not measured with 17 samples a slot on 2 slots"):
        made().parts((2,), 17)


def test_without_scipy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.interpolate", None)
    with pytest.raises(UsageError, match=r"scipy, which is not installed: `pip install 'edl"):
        application.interpolator()
    assert made().parts((1,), 8) == (1.0, 0.0)  # measured as it is


def test_a_batch_that_does_not_fit_is_accumulated() -> None:
    # 64 on 2 slots: 32 each, which is two batches of 16. On 3: 22 each, two of 11; together 66, and
    # 64 are the most: 10.
    assert made().split(2, 64) == (16, 1)
    assert made().split(3, 64) == (10, 1)
    # On 4 slots it fits. One slot alone accumulates at least one, but for the initial batch.
    assert made().split(4, 64) == (16, 0)
    assert made().split(1, 24) == (12, 1)
    assert made().split(1, 16) == (16, 0)
    assert made().split(1, 16, always=True) == (8, 1)
    # 62 on 6 slots would be 66 with 11 each: 64 are the most, so 10.
    assert made().split(6, 62) == (10, 0)


def test_the_rate_of_progress() -> None:
    # 64 on (2,): two batches of 16, 4.0 s and 3.2 s. m is 4, s 2 and v 12 in the first epoch:
    # 14 / (12 / 4 + 2) = 2.8; in the second v is 6: 8 / (6 / 4 + 2).
    assert made().rate((2,), 64, 0) == pytest.approx(2.8 / 7.2)
    assert made().rate((2,), 64, 1) == pytest.approx(8 / 3.5 / 7.2)
    # A batch of 40 is half way from 16 to 64: v is 9, m is 2.5.
    assert made().gain(40, 0) == pytest.approx(11 / (9 / 2.5 + 2))
    with pytest.raises(UsageError, match="made was not trained with a batch of 8; it may be 16 to"):
        made().gain(8, 0)


def test_what_a_job_measures_of_itself() -> None:
    # 64 on (2,): a batch of 16 takes 4.0 s, 3.2 s of it without the synchronisation. The noise
    # scale is v / s of the initial batch, of 16 samples: 12 / 2 * 16, and half of it later.
    assert made().observed((2,), 64, 0) == (StepTimeSample(2, 1, 16, 4.0, 4.0 - 0.8), 96.0)
    assert made().observed((2,), 64, 1)[1] == 48.0
    noise = Validation(16, (1.0,), (1.0,), (0.0,), (1.0,))
    timed = [Timed((1,), 8, 1.0, 0.0), Timed((1,), 16, 2.0, 0.0)]
    found = Application("noise", 1, [noise], timed, []).observed((1,), 16, 0)
    assert found == (StepTimeSample(1, 1, 16, 2.0, 2.0), math.inf)


def test_ends_of_epochs_and_steps() -> None:
    # An epoch ends at the least progress of all batches: 40 and 90.
    assert [made().end_of(epoch) for epoch in range(2)] == [40.0, 90.0]
    # 40 is half way: (50 + 20) / 2, (100 + 40) / 2 steps.
    assert [made().steps_at(40, epoch) for epoch in range(2)] == [35.0, 70.0]


def test_what_policies_are_told() -> None:
    model = ApplicationWork(made()).model(0, 0.0)
    # 16 on one slot: two batches of 8, 1 s each, without synchronisation.
    assert model.step_s((1,), 16) == 2.0
    # Of batches of 64 20 are left after the first epoch; in the last epoch it is always 1.
    assert model.steps_left(64) == 20.0
    assert ApplicationWork(made()).model(1, 0.0).steps_left(64) == 1.0
    # A step of 64 brings 2.8 of the initial ones with 4 times the samples.
    assert model.efficiency(64) == pytest.approx(0.7)


def test_the_published_applications_are_there() -> None:
    known = measured_applications()
    assert {name: one.epochs for name, one in known.items()} == {
        "bert": 2,
        "cifar10": 100,
        "deepspeech2": 80,
        "imagenet": 90,
        "ncf": 10,
        "yolov3": 50,
    }
    assert known["yolov3"].max_local_batch == 8
    assert known["cifar10"].batches == (128, 4096)
    # As the file has it: bert, placement 1, local batch 4.
    assert known["bert"].parts((1,), 4) == (0.45532354712486267, 0.013738612174987792)


def test_the_published_jobs_are_there() -> None:
    counts = {load: {len(pollux_jobs(load, n)) for n in WORKLOADS} for load in LOADS}
    assert counts == {"0.5": {80}, "1.0": {160}, "1.5": {240}, "2.0": {320}, "realistic": {160}}
    first = pollux_jobs("0.5", 1)[0]
    assert (first.name, first.arrival_s, first.requested_slots) == ("deepspeech2-0", 110, 6)
    # Local batches are at least 10: 320 samples are for at most 32 slots, 640 for 64.
    assert (first.min_slots, first.max_slots, first.batch, first.batches) == (1, 64, 320, (20, 640))
    assert first.local_batches == (10, 80)
    # ncf has one slot, and the batch that its user wants.
    short = {(job.max_slots, job.batches) for job in pollux_jobs("1.0", 1) if job.kind == "ncf"}
    assert short == {(1, (32768, 32768))}
