"""Estimate what part of a job is trained and how long the rest takes, and draw a progress bar.

:func:`estimated_remaining_s` and :func:`trained_fraction` take a job's progress, and :func:`bar`
returns text.
"""

from __future__ import annotations

from edl.core.progress import JobProgress, TrainingStatus

FILLED, EMPTY = "━", "─"  # two characters, so that a bar can be read without colours


def estimated_remaining_s(status: TrainingStatus) -> float | None:
    """Return how long the job takes at its present speed; None if nobody knows."""
    if status.left is None or status.samples_per_s <= 0:
        return None
    return status.left / status.samples_per_s


def trained_fraction(progress: JobProgress, finished: bool = False) -> float | None:
    """Return the part of the job, or else of its epoch, that is trained; None if nobody knows."""
    if finished:
        return 1.0
    total, done = progress.epoch_total, progress.epoch_done
    if not total:
        return None
    if progress.left is None:
        return min(1.0, done / total)
    trained = progress.epoch * total + done
    whole = trained + progress.left
    return trained / whole if whole else 1.0


def bar(fraction: float, width: int) -> tuple[str, str]:
    """Return the two parts of a progress bar as text: what is trained, and what is not."""
    filled = min(width, int(width * max(0.0, fraction)))
    return FILLED * filled, EMPTY * (width - filled)
