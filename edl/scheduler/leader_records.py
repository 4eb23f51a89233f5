"""Hold the records of a cluster that its leader has read in one turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from edl.coordination.cluster.job_reader import StoredJob
from edl.coordination.cluster.runs import JobViews, cluster_view
from edl.coordination.cluster.store import ClusterSnapshot
from edl.core.cluster.measured_throughput import MeasuredThroughput
from edl.core.cluster.run_records import RunRecords
from edl.core.cluster.view import ClusterView


@dataclass(frozen=True)
class LeaderRecords:
    """The records that the leader has read in one turn."""

    # the jobs, hosts and settings of the cluster, with the versions of their nodes
    snapshot: ClusterSnapshot
    # the secrets of its jobs, by job; a job without one was never started
    secrets: Mapping[str, str]
    kept: Mapping[str, MeasuredThroughput]  # what former runs have measured, by name of the job
    runs: Mapping[str, RunRecords]  # the records of the present or last run, by name of the job
    mark: Callable[[ClusterView], ClusterView]  # marks the hosts that are not lent any more
    views: JobViews  # the views of jobs that former turns have made
    # job -> why the records of its run cannot be read, in a sentence
    unreadable: Mapping[str, str] = field(default_factory=dict)
    # job -> why its session does not read now, in a sentence. No order is carried out.
    unread: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def view(self) -> ClusterView:
        """The records that were read, as the `ClusterView` from which a plan is made."""
        why = self.unreadable, self.unread
        view = cluster_view(self.snapshot, self.runs, self.kept, *why, self.views)
        self.views.keep_only({job.name for job in self.snapshot.jobs})
        return self.mark(view)

    @cached_property
    def job_named(self) -> Mapping[str, StoredJob]:
        return {job.name: job for job in self.snapshot.jobs}
