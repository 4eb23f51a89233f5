"""What part of a job is trained, how long the rest takes, and its bar."""

from __future__ import annotations

import pytest

from edl.core.progress import TrainingStatus
from edl.core.remaining import bar, estimated_remaining_s, trained_fraction


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
