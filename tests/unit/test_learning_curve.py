"""The loss and the learning rate of a job over its steps: what is kept, and what is told."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from edl.learning import (
    MAX_POINTS,
    PERIOD_S,
    LearningCurve,
    LearningMeter,
    LearningSample,
    LossSpike,
    spike_in_words,
    training_loss,
)
from edl.policy.scaling_profile import ScalingProfile


def trained(
    losses: list[float | None], rate: float = 0.1, np: int = 1, curve: LearningCurve | None = None
) -> tuple[LearningCurve, list[LossSpike]]:
    curve, found = curve or LearningCurve(), []
    first = curve.points[-1].step + 10 if curve.points else 1
    for number, loss in enumerate(losses):
        sample = LearningSample(first + 10 * number, loss, rate, np)
        curve, spikes = curve.with_samples([sample], sample.step / 10.0)
        found += [spike for _, spike in spikes]
    return curve, found


FALLING: list[float | None] = [2.3, 2.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.3, 0.3, 0.3]
FALLEN: list[float | None] = [*FALLING, *[0.31] * 40, *[0.3] * 5]


class TestWhatIsTold:
    def test_nothing_of_a_loss_that_falls(self) -> None:
        assert trained(FALLING)[1] == []

    def test_nothing_of_a_noisy_small_loss(self) -> None:
        assert trained([*FALLING, 0.01, 0.02, 0.001, 0.05, 0.01, 0.03, 0.09, 0.01])[1] == []

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("batch", [1, 8])
    def test_nothing_of_noise(self, seed: int, batch: int) -> None:
        draw = random.Random(seed).gauss
        noise = [sum(draw(0, 1) ** 2 for _ in range(batch)) / batch for _ in range(2000)]
        assert trained([*noise])[1] == []
        assert len(trained([*noise, *(50 * 1.1**k for k in range(20))])[1]) == 1

    def test_a_loss_that_rises_after_its_rate_rose(self) -> None:
        curve, found = trained(FALLEN)
        curve, found = trained([0.5, 2.0, 8.0, 30.0, 90.0, 200.0], 1.0, 4, curve)
        assert len(found) == 1
        words = spike_in_words(found[0])
        assert "the loss has risen to 66, 220 times" in words
        assert "0.3 at step 561" in words
        assert "rose from 0.1 to 1 at about step 571, when 1 worker became 4" in words

    def test_the_rate_rose_to_more_than_it_is_now(self) -> None:
        curve, _ = trained(FALLING)
        for rate in (0.2, 0.25, 0.258, 0.2, 0.1, 0.05):  # in small steps, and a decay
            curve, _ = trained([0.3], rate, 8, curve)
        _, found = trained([30.0] * 5, 0.02, 8, curve)
        assert spike_in_words(found[0]).endswith(
            "; the learning rate rose from 0.1 to 0.258 at about step 121, when 1 worker became 8, "
            "and is 0.02 now"
        )

    def test_a_finding_of_an_older_edl_has_the_present_rate_only(self) -> None:
        spike = LossSpike(1.73, 0.236, 388, 2.3, 20.0, 0.05, 502, 2, 2)
        assert spike_in_words(spike).endswith("rose from 0.05 to 20 at about step 502")

    def test_a_loss_that_rises_from_the_start(self) -> None:
        _, found = trained([2.3, 50.0, 1e4, 1e6, 1e8, 1e9], 10.0)
        assert len(found) == 1
        assert "its lowest value (2.3 at step 1;" in spike_in_words(found[0])
        assert "the learning rate is 10 and has not risen before" in spike_in_words(found[0])

    @pytest.mark.parametrize("loss", [math.nan, math.inf])
    def test_a_loss_that_is_not_finite_is_told_once(self, loss: float) -> None:
        curve, found = trained([*FALLING, loss, loss])
        assert [one.loss for one in found] == [None]
        assert "not finite (inf or nan) any more; it was" in spike_in_words(found[0])
        _, found = trained([0.3, 0.3, loss], curve=curve)
        assert len(found) == 1

    def test_a_loss_that_never_was_finite(self) -> None:
        _, found = trained([math.nan])
        assert "was never finite" in spike_in_words(found[0])

    def test_a_spike_is_told_again_only_after_it_has_passed(self) -> None:
        high: list[float | None] = [3.0] * 8
        curve, found = trained([*FALLEN, *high, 2.5, 3.0, 3.5])
        assert len(found) == 1
        curve, found = trained([1.0, 9.0, 1.0] * 8, curve=curve)
        assert found == []
        curve, found = trained([0.3] * 8, curve=curve)
        assert found == []
        _, found = trained(high, curve=curve)
        assert len(found) == 1

    def test_a_warm_up_of_the_rate_counts_from_its_beginning(self) -> None:
        curve = LearningCurve()
        for number in range(20):
            curve, _ = trained([2.0], 0.01 * 1.2**number, curve=curve)
        assert curve.trend.rate_before == pytest.approx(0.01)
        assert curve.trend.rate_step == 11

    def test_negative_losses_have_no_multiples(self) -> None:
        assert trained([-1.0, -2.0, -3.0, -3.0, -3.0, 5.0, 5.0, 5.0, 5.0, 5.0])[1] == []

    def test_means_do_not_compare_with_the_losses_of_one_worker(self) -> None:
        curve, _ = trained([0.01] * 8)
        found: list[LossSpike] = []
        for step in range(100, 110):
            curve, spikes = curve.with_samples([LearningSample(step, 1.0, 0.1, 1, True)], step)
            found += [spike for _, spike in spikes]
        assert found == []


class TestWhatIsKept:
    def test_it_stays_small(self) -> None:
        curve, _ = trained([1.0] * 1000)
        assert MAX_POINTS / 2 <= len(curve.points) <= MAX_POINTS
        assert curve.points[-1].step == 9991
        assert len(msgspec.json.encode(curve)) < 8000

    def test_it_is_read_as_it_was_written(self) -> None:
        profile = ScalingProfile(learning=trained([2.0, math.nan, None])[0])
        text = msgspec.json.encode(profile.to_json())
        assert ScalingProfile.from_json(msgspec.json.decode(text)) == profile

    def test_steps_that_are_trained_again_replace_the_former(self) -> None:
        curve, _ = trained([2.0, 1.5, 1.0])
        curve, _ = curve.with_samples([LearningSample(11, 1.7, 0.1, 1)], 9.0)
        assert curve.columns()["loss"] == [2.0, 1.7]

    def test_what_is_trained_again_is_no_rise(self) -> None:
        curve, _ = trained([2.0, 1.5, 1.0, 0.3, 0.1, 0.01, 0.01, 0.01, 0.01, 0.01])
        found: list[LossSpike] = []
        for step in (12, 14, 16, 18, 20, 22, 24):
            curve, spikes = curve.with_samples([LearningSample(step, 1.6, 0.1, 1)], 90.0 + step)
            found += [spike for _, spike in spikes]
        assert found == []

    def test_a_period_without_a_finite_loss_has_none(self) -> None:
        assert trained([2.0, math.nan])[0].columns()["loss"] == [2.0, None]


class TestMeter:
    def test_twice_a_second_a_step_is_sampled(self) -> None:
        meter = LearningMeter()
        meter.learning_rate = lambda: 0.1
        for step in range(1, 101):
            if meter.wants_loss:
                meter.observe_loss(step, lambda step=step: float(step))
            if (now_s := 10.0 + step * PERIOD_S / 10) >= meter.due_s:
                meter.completed(step, 2, now_s)
        samples = meter.taken()
        assert [one.step for one in samples] == [1, 2, 12, 22, 32, 42, 52, 62, 72, 82]
        assert samples[3] == LearningSample(22, 22.0, 0.1, 2)
        assert meter.taken() == ()

    def test_without_a_loss_the_rate_is_sampled(self) -> None:
        meter = LearningMeter()
        meter.completed(1, 1, 1.0)
        meter.learning_rate = lambda: 0.1
        meter.completed(2, 1, 2.0)
        assert meter.taken() == (LearningSample(2, None, 0.1, 1),)

    def test_means_replace_the_losses_of_one_worker(self) -> None:
        meter = LearningMeter()
        meter.observe_means(7, {"accuracy": 0.9, "loss": 0.5})
        meter.observe_loss(8, lambda: 3.0)
        meter.completed(8, 2, 1.0)
        assert meter.taken() == (LearningSample(7, 0.5, None, 2, is_mean=True),)

    def test_a_rate_that_the_script_logs(self) -> None:
        meter = LearningMeter()
        meter.observe_means(7, {"train/lr": 0.01, "train/loss": 0.5})
        meter.completed(8, 2, 1.0)
        assert meter.taken()[0].learning_rate == 0.01

    def test_a_device_that_fails_gives_no_loss(self) -> None:
        def broken() -> float:
            raise RuntimeError("the device is lost")

        meter = LearningMeter()
        meter.observe_loss(1, broken)
        meter.completed(1, 1, 1.0)
        assert meter.taken() == ()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("loss accuracy", "loss"),
        ("train/loss val/loss", "train/loss"),
        ("val_loss", None),
        ("accuracy", None),
        ("eval-loss Loss_G", "Loss_G"),
    ],
)
def test_which_value_is_the_loss(names: str, found: str | None) -> None:
    assert training_loss(dict.fromkeys(names.split(), 1.0)) == found
