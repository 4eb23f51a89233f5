"""Which ended jobs are removed from ZooKeeper, so that they do not stay there for ever."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.core.records import Job


@dataclass(frozen=True)
class Retention:
    """What stays of jobs that have ended: so many, the newest, each so long after its end."""

    jobs: int
    time_s: float

    def is_due(self, known: int, hourly: bool) -> bool:
        """Whether to read all of the ``known`` jobs: many short ones must not do so each."""
        return hourly or known > self.jobs


def outdated(jobs: Iterable[Job], retention: Retention, now_s: float) -> tuple[str, ...]:
    """The names of the ended ones among ``jobs`` to remove, the oldest first.

    ``now_s``: wall clock, as in the records.
    """
    ended = sorted((job for job in jobs if job.state.over), key=_ended_at)
    surplus = len(ended) - retention.jobs
    return tuple(
        job.name
        for number, job in enumerate(ended)
        if number < surplus or now_s - _ended_at(job) > retention.time_s
    )


def _ended_at(job: Job) -> float:
    return job.ended or job.created  # nobody may have been left to write it down
