"""Define what users are told of a job of a cluster.

The records here are only made and shown; nothing of them is in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from edl.core.cluster.events import ClusterEvent
from edl.core.cluster.job_life import LifeResult, LifeState
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.records import Goal
from edl.core.cluster.throughput_curve import ThroughputPoint
from edl.core.record import Record


@dataclass(frozen=True)
class ClusterJobStatus(Record):
    """The state of a job of a cluster, as `edl list --json` prints it."""

    name: Annotated[str, "name of the job"]
    state: Annotated[LifeState, "`queued`, `starting`, `running`, `halting`, `halted` or `ended`"]
    reason: Annotated[
        str, "why, in a sentence; of a queued job its place in the queue, and why it waits"
    ]
    wanted: Annotated[Goal, "what users want of it: `run`, `halt` or `gone`"]
    result: Annotated[
        LifeResult | None, "how it has ended: `finished`, `failed` or `deleted`; null: it has not"
    ]
    exit_code: Annotated[int, "exit code of its last run; 0 if none has ended"]
    slots: Annotated[int, "how many slots it has now"]
    surplus: Annotated[int, "how many of these are beyond the quota of its queue"]
    min: Annotated[int, "never fewer workers"]
    max: Annotated[int, "never more workers"]
    np: Annotated[int, "how many workers it asks for"]
    priority: Annotated[int, "jobs of a higher priority come first"]
    queue: Annotated[str, "the queue that it waits in"]
    submitted_s: Annotated[float, "when it was submitted, in seconds since 1970"]
    since_s: Annotated[float, "when it entered this state; 0: no controller has seen it yet"]
    started_s: Annotated[float, "when it got its first slots; 0: never"]
    ended_s: Annotated[float, "when it ended; 0: it has not"]
    runs: Annotated[int, "number of its runs so far, the present one included"]
    failures: Annotated[int, "how many of them have failed since it was submitted or resumed"]

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the job unless a user asks for it: it ended or halted."""
        halted = self.state is LifeState.HALTED and self.wanted is Goal.HALT
        return self.state is LifeState.ENDED or halted

    @property
    def outcome(self) -> str:
        """The state of the job as one word: how it has ended if it has, else its state."""
        return str(self.result or self.state)


@dataclass(frozen=True)
class ClusterJobDetails(Record):
    """All that is known of a job of a cluster, as `edl show --json` prints it."""

    job: Annotated[ClusterJobStatus, "its state, with the fields above"]
    manifest: Annotated[JobManifest, "what was submitted, with absolute paths"]
    run: Annotated[str, "token of its present or last run; empty: it was never started"]
    devices: Annotated[
        Mapping[str, tuple[int, ...]], "host -> the numbers of the devices that it has there now"
    ]
    leaving: Annotated[
        Mapping[str, tuple[int, ...]], "host -> those of `devices` that it is giving back"
    ]
    not_before_s: Annotated[
        float, "before this time it is not started again, in seconds since 1970; 0: at any time"
    ]
    slot_s: Annotated[float, "for how many seconds it has had slots, times their number"]
    throughput: Annotated[
        tuple[ThroughputPoint, ...], "how fast it trains with some numbers of workers, see below"
    ]
    history: Annotated[
        tuple[ClusterEvent, ...], "its events since it was submitted, the oldest first"
    ]
