"""Decide which workers the leader asks over HTTP, and whether their answers prove them dead.

:func:`workers_to_probe` says whom to ask, :func:`proof` judges an answer. Neither asks anybody.

ZooKeeper only knows whose session ended, and a session may end under a healthy worker. So a worker
counts as dead on proof alone:

- *gone*: no process listens on its port any more, or another worker does;
- *frozen or cut off*: its session is over, its port is silent, and no step completes, or the ring
  is broken. Any one of the three may have another cause; a worker with which steps complete is
  healthy.

For a newcomer on its way into its first ring the third proof is not needed: steps do not need the
newcomer before that, the other workers wait for it meanwhile, and it holds no state. For a worker
that leaves in a switch, the ring must have stood still for longer than a session lasts: the worker
may have removed its own node and closed its port, and its silence may be a lost packet. A worker
that answers is never dead; one that lets the others wait for too long is evicted for that
(:mod:`edl.job.membership`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from edl.job.borrowing import ReclaimTracker
from edl.job.snapshot import GONE, Snapshot
from edl.records import Generation, Member, Reclaim, RingMember, Stage


@dataclass(frozen=True)
class LivenessLimits:
    """The times after which silence, or a ring that completes no step, is a sign of a death."""

    switch_s: float = 0.5  # a switch in which no worker has failed takes less than this
    # The ring stands still when no step has completed for both of these.
    frozen_s: float = 1.0
    frozen_steps: int = 5  # in usual step times
    answer_s: float = 0.5  # how long a worker's port may take to answer
    silence_s: float = 1.0  # after a missing answer a worker counts as silent so long, unasked
    newcomer_s: float = 0.01  # each of n ready newcomers is asked again after n times this
    session_s: float = 6.0  # the granted time-out: a frozen worker leaves ZooKeeper so much later


USUAL = LivenessLimits()


class Liveness(StrEnum):
    """The result of an HTTP request to a worker's port, as a sign of whether its process lives."""

    ALIVE = "alive"  # it answered
    REFUSED = "refused"  # no process listens: the worker is gone, its machine is up
    SILENT = "silent"  # no answer in time: frozen, overloaded or cut off; proves nothing


@dataclass(frozen=True)
class ProbeResult:
    """The result of one HTTP request to a worker's port."""

    liveness: Liveness
    name: str | None = None  # who answered ("w3"), perhaps another one than was asked


@dataclass(frozen=True)
class RingIdle:
    """How long a ring has completed no step, as far as the leader knows."""

    quiet_s: float  # since the last complete step that the leader knows of
    usual_s: float  # the median time of a step; 0 before the first step
    observed: str = ""  # a clause about what the leader saw, for the end of a proof's sentence
    # In place of `limits.frozen_s`, for a leader that is not in the ring and has never heard of a
    # step: it may be the one that is cut off.
    least_s: float | None = None
    limits: LivenessLimits = USUAL

    @property
    def stands(self) -> bool:
        """Whether no step has completed for much longer than a step takes."""
        least_s = self.limits.frozen_s if self.least_s is None else self.least_s
        return self.quiet_s > max(least_s, self.limits.frozen_steps * self.usual_s)


def workers_to_probe(
    snapshot: Snapshot,
    leader: int,
    announced_s: float,
    idle: RingIdle,
    heard_s: Mapping[int, float] = MappingProxyType({}),  # since a worker's last answer, if any
) -> dict[int, tuple[str, int]]:
    """Return the address and port of each worker that the leader asks whether it lives."""
    members = {member.id: member for member in snapshot.members}
    ready = [member for member in snapshot.members if member.stage is Stage.READY]
    lately_s = idle.limits.newcomer_s * len(ready)
    due = (m for m in ready if heard_s.get(m.id, math.inf) >= lately_s)
    asked = {member.id: (member.address, member.port) for member in due}
    in_ring = ring_members(snapshot.generation)
    # While the ring stands still all members are asked: if one is frozen, its silence is then known
    # when its session ends, which completes the proof.
    if idle.stands or not _settled(snapshot.generation, members):
        asked |= {
            ring_member.id: (ring_member.address, ring_member.port)
            for ring_member in in_ring.values()
        }
        # To ask the members slows a switch down.
        if announced_s < idle.limits.switch_s and not _in_doubt(in_ring, members):
            asked = {w: at for w, at in asked.items() if w not in in_ring}
    return {w: at for w, at in asked.items() if w != leader and w not in snapshot.evicted}


def proof(
    worker: int, place: str, answer: ProbeResult, snapshot: Snapshot, idle: RingIdle
) -> str | None:
    """Return a sentence that says what proves that a worker is dead; None if nothing does."""
    if (reason := gone(worker, place, answer)) is not None:
        return reason
    if answer.liveness is Liveness.ALIVE or any(m.id == worker for m in snapshot.members):
        return None
    # Steps do not need a newcomer yet.
    if _enters(worker, snapshot):
        return (
            f"it is frozen or cut off: {_placed(worker, snapshot)} left ZooKeeper on its way into "
            f"its first ring, and {place} does not answer"
        )
    broken = snapshot.is_broken
    if not idle.stands and not (broken and idle.quiet_s > idle.limits.frozen_s):
        return None
    # It may have removed its own node and closed its port, and its silence be a lost packet.
    if _leaves(worker, snapshot) and not broken and idle.quiet_s <= idle.limits.session_s:
        return None
    return (
        f"it is frozen or cut off: {_placed(worker, snapshot)} left ZooKeeper, {place} does not "
        f"answer and no step completes for {idle.quiet_s:.1f} s{idle.observed}"
    )


def gone(worker: int, place: str, answer: ProbeResult) -> str | None:
    """Return what proves that a worker's process has ended; None: nothing does."""
    if answer.liveness is Liveness.REFUSED:
        return f"{GONE}: {place} refuses connections"
    if answer.name not in (None, f"w{worker}"):
        return f"{GONE}: on {place} {answer.name} answers"
    return None


def ring_members(generation: Generation | None) -> dict[int, RingMember]:
    """Return the members of a generation and of the ring before it, whose entries win, by id."""
    return {s.id: s for s in (*generation.members, *generation.previous)} if generation else {}


def _enters(worker: int, snapshot: Snapshot) -> bool:
    """Return whether a worker is a newcomer of a planned generation that nobody has entered."""
    current = snapshot.generation
    if current is None or not current.previous or worker not in current.joined:
        return False
    members = set(current.worker_ids)
    return not any(m.id in members and m.generation >= current.number for m in snapshot.members)


def _leaves(worker: int, snapshot: Snapshot) -> bool:
    current = snapshot.generation
    return current is not None and bool(current.previous) and worker in current.left


def _placed(worker: int, snapshot: Snapshot) -> str:
    """Return the name of a worker with its rank and host: "w3 (rank 2, host a)"."""
    member = ring_members(snapshot.generation).get(worker)
    rank = snapshot.generation.rank_of(worker) if snapshot.generation else None
    host = member.host if member else "?"
    return f"w{worker} ({'without a rank' if rank is None else f'rank {rank}'}, host {host})"


def _in_doubt(ring_members: Mapping[int, RingMember], members: Mapping[int, Member]) -> bool:
    """Return whether a ring member has left ZooKeeper, or reports that its ring broke."""
    return any(
        worker not in members
        or ((broken := members[worker].broken) and broken.generation >= members[worker].generation)
        for worker in ring_members
    )


def _settled(generation: Generation | None, members: Mapping[int, Member]) -> bool:
    """Return whether all members of `generation` are in its ring, and none reports it as broken."""
    return generation is not None and all(
        member.id in members
        and members[member.id].generation >= generation.number
        and not _reports(members[member.id], generation.number)
        for member in generation.members
    )


def _reports(member: Member, generation: int) -> bool:
    return member.broken is not None and member.broken.generation >= generation


# ------------------------------------------------------------
# Measure for how long the facts by which a leader decides about members have been true.
#
# The entry point is `AgeTracker`; a leader has one for each of its terms.


AWAY_S = 10.0  # if a snapshot comes later, the leader could not read: the rest does not count


@dataclass(frozen=True)
class Ages:
    """How long the leader has seen the facts by which it decides, by its own clock."""

    # All ages begin at 0 with a new leader. Time in which it cannot read ZooKeeper does not count,
    # for the workers may not be able to write then, either. So a limit may take longer, never less.

    leading_s: float = 0.0  # since its term began
    stage_s: Mapping[int, float] = field(default_factory=dict)  # in its stage, by id of a worker
    generation_s: float = 0.0  # of the newest generation; before the first one, as `leading_s`
    broken_s: float = 0.0  # since a member reported the newest ring as broken; 0.0: none does
    # Since all workers of the ring are evicted, except those that were to leave; 0.0: one is not.
    lost_s: float = 0.0
    # For each open demand to give slots back; it counts on without ZooKeeper, for the owner waits.
    reclaims_s: Mapping[Reclaim, float] = field(default_factory=dict)


class AgeTracker:
    """The ages in one leader's term, from the snapshots that it reads."""

    def __init__(self, now_s: float) -> None:
        self._since = now_s
        self._observed_s = now_s
        self._away_s = 0.0
        self._stages: dict[int, tuple[Stage, float]] = {}
        self._announced = (0, now_s)  # number of the newest generation, and when it was seen
        self._broken: float | None = None
        self._lost: float | None = None
        self._reclaims = ReclaimTracker()

    def observe(self, snapshot: Snapshot, now_s: float) -> Ages:
        """Return the ages of the facts in a new snapshot, which was read at `now_s`."""
        reclaims_s = self._reclaims.observe(snapshot.desired, now_s)
        self._away_s += max(0.0, now_s - self._observed_s - AWAY_S)
        self._observed_s = now_s
        now_s -= self._away_s
        before = self._stages
        self._stages = {
            m.id: before[m.id] if before.get(m.id, (None,))[0] is m.stage else (m.stage, now_s)
            for m in snapshot.members
        }
        generation = snapshot.generation
        number = generation.number if generation is not None else 0
        if number != self._announced[0]:
            self._announced = (number, now_s)
            self._broken = None
        if not snapshot.is_broken:
            self._broken = None
        elif self._broken is None:
            self._broken = now_s
        if generation is None or not _is_lost(snapshot, generation):
            self._lost = None
        elif self._lost is None:
            self._lost = now_s
        return Ages(
            now_s - self._since,
            {worker: now_s - at for worker, (_, at) in self._stages.items()},
            now_s - self._announced[1],
            0.0 if self._broken is None else now_s - self._broken,
            0.0 if self._lost is None else now_s - self._lost,
            reclaims_s,
        )


def _is_lost(snapshot: Snapshot, generation: Generation) -> bool:
    return all(
        member.id in snapshot.evicted
        for member in snapshot.ring
        if member.id not in generation.left
    )
