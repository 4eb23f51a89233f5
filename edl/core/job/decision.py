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

    start_s: float  # the first ring of a job waits for all `np` workers; then `min_np` are enough
    prepare_s: float  # from a newcomer's registration until it is ready
    # Ready newcomers wait so long for others that are preparing, and a new leader for agents of
    # hosts that have none, before it starts a job again after the death of all its workers.
    gather_s: float
    leave_grace_s: float  # a worker with SIGTERM that is still needed waits for its replacement
    notice_s: float  # a ready newcomer notes in its record that it has seen a generation
    report_s: float  # a worker reports that its ring broke; else it is evicted, if that is safe
    leave_gather_s: float  # a worker with SIGTERM waits for others of its host to get it, too


@dataclass(frozen=True)
class MembershipDecision:
    """A decision of the leader about the members of a job, carried out in one transaction."""

    reason: str  # always set, also if there is nothing to do
    generation: Generation | None = None  # the next generation; None: the newest one stays
    change: DesiredChange | None = None
    evict: Mapping[int, str] = field(default_factory=dict)  # the reason, by worker id
    answers: tuple[Request, ...] = ()  # requests with their answers
    asks: tuple[Request, ...] = ()  # new requests of the leader, which a later decision answers
    reclaimed: tuple[Reclaim, ...] = ()  # fulfilled; `change` removes them from the open ones
    again_s: float | None = None  # when a time limit is over; None: decide as often as usual
    # The ids of evicted workers that must have a record in ZooKeeper still: without it they have
    # left as agreed, and the decision is not carried out.
    registered: frozenset[int] = frozenset()

    @property
    def acts(self) -> bool:
        changes = self.generation or self.change or self.evict
        return bool(changes or self.answers or self.asks)


def end_generation(now: Snapshot, term: int, reason: str) -> MembershipDecision:
    """Return the decision to end the job: all workers leave after the same step."""
    current = now.generation
    number, members = (current.number, current.worker_ids) if current else (0, ())
    return MembershipDecision(reason, Generation(number + 1, term, (), -1, (), members, reason))


def ring_member(member: Member) -> RingMember:
    return RingMember(member.id, member.host, member.slot, member.address, member.port)


def is_stuck(member: Member, ages: Ages, limits: Limits) -> bool:
    age = ages.stage_s.get(member.id, 0.0)
    return member.stage is Stage.PREPARING and age >= limits.prepare_s
