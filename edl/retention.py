"""Decide which ended jobs are removed from ZooKeeper, where they would otherwise stay for ever.

:func:`outdated` names them; :meth:`Retention.is_due` says when to look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.records import Job


@dataclass(frozen=True)
class Retention:
    """The limits for keeping a user's ended jobs in ZooKeeper; jobs beyond them are removed."""

    jobs: int  # ended ones to keep, the newest first
    time_s: float  # after a job's end

    def is_due(self, known: int, hourly: bool) -> bool:
        return hourly or known > self.jobs


def outdated(jobs: Iterable[Job], retention: Retention, now_s: float) -> tuple[str, ...]:
    """Return the names of the ended jobs to remove, the oldest first; `now_s` is since 1970."""
    ended = sorted((job for job in jobs if job.state.over), key=_ended_at)
    surplus = len(ended) - retention.jobs
    return tuple(
        job.name
        for number, job in enumerate(ended)
        if number < surplus or now_s - _ended_at(job) > retention.time_s
    )


def _ended_at(job: Job) -> float:
    return job.ended or job.created  # nobody may have been left to write it down
