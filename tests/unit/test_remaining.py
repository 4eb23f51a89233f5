"""What part of a job is trained, how long the rest takes, and its bar."""

from __future__ import annotations

import pytest

from edl.records import TrainingStatus
from edl.status import bar, estimated_remaining_s, trained_fraction
from edl.step.source import TrainingLength


@pytest.mark.parametrize(
    ("left", "samples_per_s", "seconds"),
    [
        (1000.0, 50.0, 20.0),
        (0.0, 50.0, 0.0),
        (None, 50.0, None),  # a stream, or a script with its own place
        (1000.0, 0.0, None),  # it stands still
    ],
)
def test_the_rest_takes_as_long_as_at_the_present_speed(
    left: float | None, samples_per_s: float, seconds: float | None
) -> None:
    assert estimated_remaining_s(TrainingStatus(left=left, samples_per_s=samples_per_s)) == seconds


@pytest.mark.parametrize(
    ("length", "total", "left"),
    [
        (TrainingLength(10), 1000, 6900.0),  # in epoch 3, of which 100 samples are trained
        (TrainingLength(1000, 50), 1000, 640.0),  # 10 updates of 64 samples
        (TrainingLength(max_steps=50), 1000, 640.0),
        (TrainingLength(max_steps=50), 0, 640.0),  # a stream
        (TrainingLength(4, 5000), 1000, 900.0),
        (TrainingLength(4, 30), 1000, 0.0),  # it was resumed for fewer updates than it has made
        (TrainingLength(4, 5000), 0, None),  # the stream may end before
        (TrainingLength(4), 0, None),
        (TrainingLength(), 1000, None),
        (TrainingLength.asked(None, 2**62), 1000, None),  # a Lightning Trainer without an end
    ],
)
def test_epochs_or_updates_end_the_training(
    length: TrainingLength, total: int, left: float | None
) -> None:
    assert length.left(3, 100, total, 40, 64) == left


@pytest.mark.parametrize(
    ("status", "fraction"),
    [
        (TrainingStatus(), None),
        (TrainingStatus(epoch_done=64), None),  # of a stream
        (TrainingStatus(epoch=3, epoch_done=25, epoch_total=100), 0.25),  # of this epoch
        (TrainingStatus(epoch=1, epoch_done=50, epoch_total=100, left=150.0), 0.5),
        (TrainingStatus(epoch=2, epoch_done=100, epoch_total=100, left=0.0), 1.0),
    ],
)
def test_what_part_of_the_job_is_trained(status: TrainingStatus, fraction: float | None) -> None:
    assert trained_fraction(status) == fraction


@pytest.mark.parametrize(
    ("fraction", "parts"),
    [(0.0, ("", "────")), (0.5, ("━━", "──")), (0.99, ("━━━", "─")), (1.0, ("━━━━", ""))],
)
def test_a_bar_is_full_only_at_the_end(fraction: float, parts: tuple[str, str]) -> None:
    assert bar(fraction, 4) == parts
    assert bar(1.5, 2) == ("━━", "")
