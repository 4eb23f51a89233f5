"""Lay out the workers of a job beside their median: what each spends its steps with.

The times come from the leader's scaling profile, which has those of the slowest workers. Of a
worker's reduction, what is longer than the shortest reduction of all is waiting: the worker that
all others wait for waits for none (:func:`edl.core.policy.stragglers._network`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from edl.core.policy.stragglers import Times
from edl.core.record import Record
from edl.core.records import Stage
from edl.core.status import JobStatus, MemberStatus

MOST_ROWS = 40
MOST_HOSTS = 24

SLOW_BELOW = 0.8  # of the median speed, as the default of the policy for stragglers has it


@dataclass(frozen=True)
class WorkerRow(Record):
    """One worker in the table. Times are in seconds a step; None: not known."""

    worker: str  # its name
    host: str
    slot: int
    device: int | None
    rank: int | None  # its rank; None: it is not in the ring
    stage: str
    leads: bool  # whether it leads
    pid: int  # its process
    samples: float | None = None  # the samples that it trains in a step
    compute_s: float | None = None
    data_s: float | None = None  # waiting for its batch
    reduce_s: float | None = None  # reducing the gradients
    wait_s: float | None = None  # waiting for slower workers
    speed: float | None = None  # its samples in a second of its own time, relative to the median
    # whether it is marked as slow: its `speed` is below `SLOW_BELOW`, or the workers report that
    # they wait for it, which they do sooner
    is_slow: bool = False
    note: str = ""  # what is unusual about it, in a few words; empty: nothing

    @property
    def own_s(self) -> float | None:
        """Computing and loading in a step, in seconds; None: not known."""
        known = self.compute_s is not None and self.data_s is not None
        return (self.compute_s or 0.0) + (self.data_s or 0.0) if known else None


@dataclass(frozen=True)
class WorkerTable(Record):
    """The workers of a job."""

    # the workers that are shown: the unusual and the slow ones first if not all are
    rows: tuple[WorkerRow, ...]
    total: int  # the number of workers
    stages: Mapping[str, int]  # the number of workers by stage
    hosts: Mapping[str, int]  # the number of workers by host, of at most `MOST_HOSTS` hosts
    host_count: int  # the number of hosts
    timed: int  # the number of workers whose times are known: the slowest ones
    # the median, over the timed workers, of computing and loading in a step; None: none
    own_s: float | None
    step_s: float  # the longest step of a timed worker: the length of a full bar; 0: none
    evicted: Mapping[str, str]  # worker -> why it was evicted, the newest few
    disabled_slots: Mapping[str, str]  # slot -> why no worker is started in it


def worker_table(status: JobStatus, times: Sequence[Times]) -> WorkerTable:
    here = {one.id for one in status.members}
    known = {f"w{one.worker}": one for one in times if f"w{one.worker}" in here}
    own_s = median(one.own_s for one in known.values()) if known else None
    rates = [one.samples / one.own_s for one in known.values() if one.own_s > 0 and one.samples > 0]
    usual = median(rates) if rates else None
    least_s = min((one.reduce_s for one in known.values()), default=0.0)
    rows = [_row(one, status, known.get(one.id), usual, least_s) for one in status.members]
    if len(rows) > MOST_ROWS:
        rows = sorted(rows, key=_unusual)[:MOST_ROWS]
    rows.sort(key=lambda one: (one.rank is None, one.rank or 0, one.worker))
    hosts = Counter(one.host for one in status.members)
    return WorkerTable(
        rows=tuple(rows),
        total=len(status.members),
        stages=dict(sorted(Counter(str(one.stage) for one in status.members).items())),
        hosts=dict(sorted(hosts.items())[:MOST_HOSTS]),
        host_count=len(hosts),
        timed=len(known),
        own_s=own_s,
        step_s=max((one.own_s + one.reduce_s for one in known.values()), default=0.0),
        evicted=dict(list(status.evicted.items())[-5:]),
        disabled_slots=dict(list(status.disabled_slots.items())[:20]),
    )


def _row(
    member: MemberStatus,
    status: JobStatus,
    times: Times | None,
    usual: float | None,
    least_s: float,
) -> WorkerRow:
    row = WorkerRow(
        worker=member.id,
        host=member.host,
        slot=member.slot,
        device=member.device,
        rank=member.rank,
        stage=str(member.stage),
        leads=member.id == status.leader,
        pid=member.pid,
        is_slow=member.id == status.slowest,
        note=_note(member, None, member.id == status.slowest),
    )
    if times is None or member.rank is None:
        return row
    speed = times.samples / times.own_s / usual if usual and times.own_s > 0 else None
    measured = {
        "samples": times.samples,
        "compute_s": times.compute_s,
        "data_s": times.data_s,
        "reduce_s": least_s,
        "wait_s": max(0.0, times.reduce_s - least_s),
        "speed": speed,
        "is_slow": row.is_slow or (speed is not None and speed < SLOW_BELOW),
        "note": _note(member, speed, row.is_slow),
    }
    return WorkerRow(**{**vars(row), **measured})


def _note(member: MemberStatus, speed: float | None, is_slowest: bool) -> str:
    """Return what is unusual about a worker, in a few words; empty if nothing is."""
    if member.stage == Stage.PREPARING:
        return "starts and warms up; the others train on"
    if member.stage == Stage.READY:
        return "ready; joins with the next switch"
    if member.stage == Stage.LEAVING:
        return "leaves with the next switch"
    if member.stage == Stage.FINISHED:
        return "has trained to the end"
    if member.rank is None:
        return "not in the newest ring"
    if speed is not None and speed < SLOW_BELOW:
        return f"slow: {speed:.2f} of the usual speed"
    return "slow: the others wait for it" if is_slowest else ""


def _unusual(row: WorkerRow) -> tuple[bool, float, str]:
    return (not row.note, -(row.own_s or 0.0), row.worker)
