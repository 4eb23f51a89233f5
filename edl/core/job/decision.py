"""What the leader's decisions about membership are made with, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.core.job.ages import Ages
from edl.core.job.desired import Change
from edl.core.records import Generation, Member, Reclaim, Request, RingMember, Snapshot, Stage


@dataclass(frozen=True)
class Limits:
    """Time limits of the leader's decisions, in seconds."""

    start_s: float  # for `np` workers to come up at the start of the job
    prepare_s: float  # for a newcomer, from its registration to ready
    gather_s: float  # how long ready newcomers wait for others that are preparing
    leave_grace_s: float  # how long a leaver that is needed waits for its replacement
    notice_s: float  # for a newcomer to take note of a generation that passed it by
    report_s: float  # for a worker of a broken ring to report, while it is not proven dead


@dataclass(frozen=True)
class MembershipDecision:
    """What the leader does now; all of it in one transaction. ``reason`` is always set.

    ``asks``: requests of its own, which it or its successor answers later. ``reclaimed``: slots
    that were borrowed by the job and are given back; the ``change`` says so.
    """

    reason: str
    generation: Generation | None = None
    change: Change | None = None  # of what is wanted
    evict: Mapping[int, str] = field(default_factory=dict)
    answers: tuple[Request, ...] = ()
    asks: tuple[Request, ...] = ()
    reclaimed: tuple[Reclaim, ...] = ()

    @property
    def acts(self) -> bool:
        changes = self.generation or self.change or self.evict
        return bool(changes or self.answers or self.asks)


def end(now: Snapshot, term: int, reason: str) -> MembershipDecision:
    """A generation without members: everybody leaves after the same step."""
    current = now.generation
    number, members = (current.number, current.worker_ids) if current else (0, ())
    return MembershipDecision(reason, Generation(number + 1, term, (), -1, (), members, reason))


def seat_of(member: Member) -> RingMember:
    """Its place in a generation."""
    return RingMember(member.id, member.host, member.slot, member.address, member.port)


def is_stuck(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether a newcomer has used up its time to prepare."""
    age = ages.stage_s.get(member.id, 0.0)
    return member.stage is Stage.PREPARING and age >= limits.prepare_s
