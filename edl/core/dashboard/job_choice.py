"""Choose the jobs of a cluster that its page lists: by state, queue and words, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from edl.cluster.lifecycle import LifeState
from edl.cluster.status import ClusterJobStatus
from edl.core.record import Record

PAGE = 50
MOST_JOBS = 500  # of one answer

_ORDER = {LifeState.QUEUED: 1, LifeState.HALTED: 2, LifeState.ENDED: 3}


@dataclass(frozen=True)
class JobChoice:
    """A filter of jobs."""

    states: frozenset[str] = frozenset()  # the states to show, by `outcome`; empty: all
    queue: str = ""  # the queue to show; empty: all
    text: str = ""  # words that must all occur in a job's name, queue or reason, in any case
    limit: int = PAGE  # the largest number of jobs

    def matches(self, job: ClusterJobStatus) -> bool:
        """Return whether `job` is to be shown."""
        if self.states and not self.states & {str(job.state), job.outcome}:
            return False
        if self.queue and job.queue != self.queue:
            return False
        said = f"{job.name} {job.queue} {job.reason}".lower()
        return all(word in said for word in self.text.lower().split())


@dataclass(frozen=True)
class JobPage(Record):
    """The jobs that a filter chooses, as far as they are shown."""

    jobs: Annotated[tuple[ClusterJobStatus, ...], "the first of them"]
    total: Annotated[int, "how many there are"]


def chosen_jobs(jobs: Sequence[ClusterJobStatus], choice: JobChoice) -> JobPage:
    """Return the jobs that `choice` shows."""
    found = sorted(filter(choice.matches, jobs), key=_place)
    return JobPage(tuple(found[: choice.limit]), len(found))


def job_counts(jobs: Sequence[ClusterJobStatus]) -> dict[str, int]:
    """Return how many jobs there are in each state; of those that have ended, by how they did."""
    found = Counter(job.outcome for job in jobs)
    return dict(sorted(found.items()))


def _place(job: ClusterJobStatus) -> tuple[int, float]:
    """Return a sort key of a job: by its state, then by its place among those in that state."""
    by_priority = -float(job.priority) if job.state is LifeState.QUEUED else 0.0
    by_end = -job.ended_s if job.state is LifeState.ENDED else 0.0
    return _ORDER.get(job.state, 0), by_priority + by_end
