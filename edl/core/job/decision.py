"""Define a leader's decision about the members of a job, and the time limits of such decisions.

They are :class:`MembershipDecision` and :class:`Limits`; :mod:`edl.core.job.membership` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.core.job.ages import Ages
from edl.core.job.desired import DesiredChange
from edl.core.records import Generation, Member, Reclaim, Request, RingMember, Stage
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class Limits:
    """The time limits of the leader's decisions about members, in seconds."""

    # how long the first ring of a job waits for all `np` workers; then `min_np` are enough
    start_s: float
    # how long a newcomer may take from its registration until it is ready; then it is evicted
    prepare_s: float
    # how long ready newcomers wait for other newcomers that are preparing; also how long a new
    # leader waits for agents of hosts that have none, before it starts a job again after the death
    # of all its workers
    gather_s: float
    # how long a worker that got SIGTERM and is still needed waits for its replacement
    leave_grace_s: float
    # how long a ready newcomer may take to note, in its record in ZooKeeper, that it has seen a
    # generation that it is not in
    notice_s: float
    # how long a worker may take to report that its ring broke; then it is evicted, if another
    # worker holds the job's state
    report_s: float
    # how long a worker that got SIGTERM waits for other workers of its host to get it, too
    leave_gather_s: float


@dataclass(frozen=True)
class MembershipDecision:
    """A decision of the leader about the members of a job."""

    # why this was decided, as a sentence; it is always set, also if there is nothing to do
    reason: str
    generation: Generation | None = None  # the next generation; None: the newest one stays
    # the change of the number of desired workers; None: it stays
    change: DesiredChange | None = None
    # the reason to evict a worker, by worker id; empty: none is evicted
    evict: Mapping[int, str] = field(default_factory=dict)
    # the requests (to drain or replace a worker) that are answered with this decision
    answers: tuple[Request, ...] = ()
    # new requests (to drain or replace a worker) that the leader itself makes; a later decision
    # answers them
    asks: tuple[Request, ...] = ()
    # the requests to give slots back that are fulfilled; `change` removes them from the open
    # requests
    reclaimed: tuple[Reclaim, ...] = ()
    # after how many seconds to decide again although nothing has changed, because a time limit is
    # over then; None: it is enough to decide as often as usual
    again_s: float | None = None
    # the ids of evicted workers that must have a record in ZooKeeper still: without it they have
    # left as agreed, and the decision is not carried out
    registered: frozenset[int] = frozenset()

    @property
    def acts(self) -> bool:
        """Whether there is anything to write to ZooKeeper; False if the decision is to wait."""
        changes = self.generation or self.change or self.evict
        return bool(changes or self.answers or self.asks)


def end_generation(now: Snapshot, term: int, reason: str) -> MembershipDecision:
    """Return the decision to end the job: all workers leave after the same step."""
    current = now.generation
    number, members = (current.number, current.worker_ids) if current else (0, ())
    return MembershipDecision(reason, Generation(number + 1, term, (), -1, (), members, reason))


def ring_member(member: Member) -> RingMember:
    """The entry for a worker in the members of a generation: its id, host, slot and address"""
    return RingMember(member.id, member.host, member.slot, member.address, member.port)


def is_stuck(member: Member, ages: Ages, limits: Limits) -> bool:
    """Return whether a worker is in stage PREPARING for `limits.prepare_s` seconds or longer."""
    age = ages.stage_s.get(member.id, 0.0)
    return member.stage is Stage.PREPARING and age >= limits.prepare_s
