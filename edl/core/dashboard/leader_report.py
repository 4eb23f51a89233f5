"""Decide how old the newest report of a job's leader is: by one clock, that of the reader.

The leader writes the status of its job, with the time of its own clock. What a reader knows for
certain is for how long it has not seen a new one, by a clock of its own that nobody sets. Only at
the first look, before it has seen any report change, does the age come from both machines' clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.record import Record
from edl.core.snapshot import Snapshot

UNREPORTED_S = 15.0  # after which a report is old, or more:
PERIODS = 3  # of the job's status_period_s


@dataclass(frozen=True)
class LeaderReport(Record):
    """The newest report that a reader has seen, and since when."""

    # when the leader wrote it, in seconds since 1970 by the leader's clock; 0: none was seen
    written_s: float = 0.0
    # when the reader saw it first, by the reader's own steady clock, in seconds; of the first one
    # that it saw, when it was written, as far as both clocks agree
    since_s: float = 0.0

    def at(self, written_s: float, now_s: float, steady_s: float) -> LeaderReport:
        """Return what a reader has seen after one more look."""
        if written_s == self.written_s:
            return self
        if not self.written_s:
            return LeaderReport(written_s, steady_s - max(0.0, now_s - written_s))
        return LeaderReport(written_s, steady_s)


@dataclass(frozen=True)
class ReportAge:
    """The age of the newest report of a job's leader."""

    age_s: float | None  # its age in seconds; None: the leader has not reported yet
    limit_s: float = UNREPORTED_S  # an older report is no sign of life

    @property
    def is_fresh(self) -> bool:
        """Whether there is a report that is not too old."""
        return self.age_s is not None and self.age_s <= self.limit_s

    @property
    def is_old(self) -> bool:
        """Whether there is a report that is too old."""
        return self.age_s is not None and self.age_s > self.limit_s


def report_age(snapshot: Snapshot, newest: LeaderReport, steady_s: float) -> ReportAge:
    """Return the age of the newest report of a job's leader, with the limit that the job sets."""
    period_s = snapshot.job.spec.settings.status_period_s
    age_s = steady_s - newest.since_s if newest.written_s else None
    return ReportAge(age_s, max(UNREPORTED_S, PERIODS * period_s))
