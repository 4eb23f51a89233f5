"""Decide which changes of a user's goal for a job of a cluster are allowed, and describe them."""

from __future__ import annotations

from dataclasses import replace

from edl.core.cluster.job_life import JobLife, LifeState
from edl.core.cluster.records import Goal, Wanted
from edl.errors import UsageError


def deleted(before: Wanted, life: JobLife, once: bool = False) -> Wanted:
    """Return what is wanted of a job that a user deletes: that it is gone."""
    # a repeated request: the job may have ended because of the first
    if once and before.goal is Goal.GONE:
        return before
    removed = before.removed or life.state is LifeState.ENDED
    return replace(before, goal=Goal.GONE, removed=removed)


def check_change(job: str, life: JobLife, before: Wanted, after: Wanted) -> None:
    """Raise an error if it is too late to change what users want of `job`."""
    if life.state is LifeState.ENDED and after.goal is not Goal.GONE:
        how = life.result or "ended"
        raise UsageError(f"job {job} has ended ({how}); submit it again to run it once more")
    if before.goal is Goal.GONE and after.goal is not Goal.GONE:
        raise UsageError(f"job {job} is being deleted; submit it again when it is gone")


def describe_change(before: Wanted, after: Wanted) -> str:
    """Return a text for the event log that says in what `after` differs from `before`."""
    changes = []
    if before.goal is not after.goal:
        changes.append(f"{after.goal} is wanted, no longer {before.goal}")
    if before.priority != after.priority:
        changes.append(f"the priority is {after.priority}, no longer {before.priority}")
    if after.removed and not before.removed:
        changes.append("its records are to be removed")
    return ", and ".join(changes)
