"""Lay out a job's loss and learning rate over its steps, beside the changes of its ring."""

from __future__ import annotations

from typing import Any

from edl.core.dashboard.timeline import GenerationTimeline
from edl.core.learning_curve import LearningCurve

MOST_CHANGES = 60


def learning_charts(curve: LearningCurve, timeline: GenerationTimeline) -> dict[str, Any]:
    """Return the columns of the charts, and where the ring changed."""
    first = curve.points[0].step if curve.points else 0
    changes = [
        {"step": one.step, "np": one.size, "generation": one.generation}
        for one in timeline.switches
        if one.generation > 1 and one.step >= first
    ]
    return {
        **curve.columns(),
        "is_mean": curve.trend.is_mean,
        "not_finite": [one.step for one in curve.points if one.not_finite],
        "changes": changes[-MOST_CHANGES:],
    }
