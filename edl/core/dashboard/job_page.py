"""Turn the records and events of a job into the page of that job, in sections.

The server keeps a :class:`JobTrace`, which grows with each event and reading and is bounded, and
calls :func:`page_sections`. The sections are records or JSON values; the browser gets those that
have changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from edl.core.dashboard.incidents import IncidentLog
from edl.core.dashboard.job_header import job_header, standstill_s
from edl.core.dashboard.leader_report import ReportAge
from edl.core.dashboard.learning_charts import learning_charts
from edl.core.dashboard.ledger_summary import SavedWork, ledger_summary
from edl.core.dashboard.scaling_curve import scaling_curve
from edl.core.dashboard.shown_incidents import shown_incidents, with_incidents
from edl.core.dashboard.throughput_history import SpeedSample, ThroughputHistory, step_parts
from edl.core.dashboard.timeline import GenerationTimeline
from edl.core.dashboard.worker_table import worker_table
from edl.core.events import Event, GenerationDetails
from edl.core.job.profile import Curve
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.snapshot import Snapshot
from edl.core.status import job_status


@dataclass(frozen=True)
class JobObservation:
    """The records of a job as they were read at one time, the input of its page."""

    snapshot: Snapshot  # its records
    learned: ScalingProfile  # what it has measured of its sizes
    profile: Curve | None  # what `edl profile` has measured; None: nothing
    zookeeper: str  # where it was read
    at_s: float  # when, in seconds since 1970
    report: ReportAge  # how old the report of its leader was


@dataclass(frozen=True)
class JobTrace:
    """The history of a job, collected from its events and from readings of its status."""

    # its generations, and the time that was lost
    timeline: GenerationTimeline = field(default_factory=GenerationTimeline)
    speed: ThroughputHistory = field(default_factory=ThroughputHistory)  # its throughput over time
    work: SavedWork = field(default_factory=SavedWork)  # its checkpoints
    incidents: IncidentLog = field(default_factory=IncidentLog)  # what happened to it

    def with_events(self, events: Iterable[Event], read_s: float) -> JobTrace:
        """Return the trace with `events`, which follow those before in the log."""
        timeline, speed, work = self.timeline, self.speed, self.work
        incidents = self.incidents
        for event in events:
            np = timeline.bands[-1].np if timeline.bands else 0
            timeline, work = timeline.with_event(event), work.with_event(event)
            incidents = incidents.with_event(event)
            details = event.details
            if isinstance(details, GenerationDetails) and details.samples_per_s > 0 and np:
                at_s = min(event.time, read_s)  # the leader's clock may be ahead
                speed = speed.with_sample(SpeedSample(at_s, details.samples_per_s, np))
        return replace(self, timeline=timeline, speed=speed, work=work, incidents=incidents)

    def with_hosts(self, snapshot: Snapshot) -> JobTrace:
        """Return the trace with the hosts of the workers in `snapshot`, for its incidents."""
        hosts = {member.name: member.host for member in snapshot.members}
        return replace(self, incidents=self.incidents.with_hosts(hosts))

    def with_outage(self, why: str, since_s: float, now_s: float) -> JobTrace:
        """Return the trace of a job whose ZooKeeper does not answer."""
        known = self.incidents
        # A server that is started again looks overloaded: the first cause counts.
        first = known.outage_why if known.outage_s >= since_s else why
        return replace(self, incidents=replace(known, outage_why=first, outage_s=now_s))

    def cut(self, at_s: float) -> JobTrace:
        """Return the trace of a job whose log has lost the events before `at_s`."""
        return replace(self, timeline=GenerationTimeline.cut(at_s), work=SavedWork())

    def with_reading(self, reading: JobObservation) -> JobTrace:
        """Return the trace with the throughput of `reading`, if the job runs and reports."""
        status = job_status(reading.snapshot, reading.zookeeper)
        if status.state.over or not status.world_size or not reading.report.is_fresh:
            return self
        rate = 0.0 if standstill_s(status, reading.report) else status.samples_per_s
        sample = SpeedSample(
            reading.at_s, rate, status.world_size, step_parts(reading.learned.times)
        )
        return replace(self, speed=self.speed.with_sample(sample))


def page_sections(reading: JobObservation, trace: JobTrace) -> dict[str, Any]:
    """Return the sections of a job's page by name."""
    status = job_status(reading.snapshot, reading.zookeeper)
    timeline = trace.timeline
    table = worker_table(status, reading.learned.times)
    standing_s = standstill_s(status, reading.report)
    incidents = shown_incidents(trace.incidents, status, standing_s, table.rows)
    header = job_header(status, timeline, reading.report, reading.at_s)
    words, tone = with_incidents(header.words, header.tone, incidents, header.joining)
    return {
        "header": replace(header, words=words, tone=tone),
        "incidents": incidents,
        "timeline": timeline_section(timeline),
        "workers": table,
        "speed": trace.speed.columns() | {"period_s": trace.speed.period_s},
        "learning": learning_charts(reading.learned.learning, timeline),
        "ledger": ledger_summary(reading.snapshot, trace.work),
        "scaling": scaling_curve(
            reading.snapshot, reading.learned, reading.profile, header.samples_per_s
        ),
    }


def timeline_section(timeline: GenerationTimeline) -> dict[str, Any]:
    """Return the section `timeline` of a job's page: what the browser draws of `timeline`."""
    return {
        "bands": timeline.bands,
        "marks": timeline.marks,
        "began_s": timeline.began_s,
        "ended_s": timeline.ended_s,
        "is_cut": timeline.is_cut,
    }
