"""Decide which ended jobs are removed from ZooKeeper, where they would otherwise stay for ever.

:func:`outdated` names them; :meth:`Retention.is_due` says when to look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.core.records import Job


@dataclass(frozen=True)
class Retention:
    """The limits for keeping a user's ended jobs in ZooKeeper; jobs beyond them are removed.

    Attributes:
        jobs: the number of ended jobs to keep, the newest first.
        time_s: how long a job is kept after its end, in seconds.
    """

    jobs: int
    time_s: float

    def is_due(self, known: int, hourly: bool) -> bool:
        """Return whether to read the records of all jobs now, to remove those beyond the limits.

        Args:
            known: the number of this user's jobs in ZooKeeper, ended or not. The result is True if
                it exceeds ``jobs``; with fewer, reading all records is left to the hourly call.
            hourly: whether this is a call that is made once an hour; then the result is True.
        """
        return hourly or known > self.jobs


def outdated(jobs: Iterable[Job], retention: Retention, now_s: float) -> tuple[str, ...]:
    """Return the names of the ended jobs among ``jobs`` to remove, the oldest first.

    They are the ended jobs beyond the newest ``retention.jobs``, and those that ended more than
    ``retention.time_s`` seconds ago.

    Args:
        jobs: records of jobs of one user, ended or not.
        retention: the limits for keeping ended jobs.
        now_s: the time by the wall clock, in seconds since 1970, as in the records.
    """
    ended = sorted((job for job in jobs if job.state.over), key=_ended_at)
    surplus = len(ended) - retention.jobs
    return tuple(
        job.name
        for number, job in enumerate(ended)
        if number < surplus or now_s - _ended_at(job) > retention.time_s
    )


def _ended_at(job: Job) -> float:
    """Return when ``job`` ended, in seconds since 1970.

    If no process recorded the end, it is when the job was created.
    """
    return job.ended or job.created  # nobody may have been left to write it down
