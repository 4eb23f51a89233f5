"""When a worker counts as dead: whom the leader asks, and which answers prove it.

ZooKeeper only knows whose session ended, and a session may end under a healthy worker. So a
worker counts as dead on proof alone:

- *gone*: nobody listens on its port any more, or somebody else does;
- *frozen or cut off*: its session is over, its port is silent, and no step completes, or the ring
  is broken. Any one of the three may have another cause; a worker with which steps complete is in
  order.

Of a newcomer on its way into its first ring no third proof is asked: steps do not need it before
that, the others wait for it meanwhile, and it holds no state. Of one that leaves in a switch the
ring has to stand still for longer than a session lasts: it may have taken back its own node and
closed its port, and that it is silent may be a lost packet. A worker that answers is never dead;
one that lets the others wait for too long is evicted for that (:mod:`edl.core.job.membership`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from edl.core.job.ring_failure import broke
from edl.core.records import Generation, Member, RingMember, Snapshot, Stage

GONE = "its process is gone"  # so begins every proof that it has ended by itself


@dataclass(frozen=True)
class LivenessLimits:
    """When a silence means something.

    Attributes:
        switch_s: a switch in which nobody has failed takes less.
        frozen_s: no step for this long, and for ``frozen_steps`` usual ones: the ring stands still.
        answer_s: for a worker's port to answer.
        silence_s: for this long after it did not, a worker counts as silent without being asked.
        newcomer_s: of the leader's time, for each newcomer that is ready: so often all are asked.
        session_s: of ZooKeeper, as it has granted it: a worker that freezes leaves so much later.
    """

    switch_s: float = 0.5
    frozen_s: float = 1.0
    frozen_steps: int = 5
    answer_s: float = 0.5
    silence_s: float = 1.0
    newcomer_s: float = 0.01
    session_s: float = 6.0


USUAL = LivenessLimits()


class Liveness(StrEnum):
    """What a worker's port shows of its process."""

    ALIVE = "alive"  # it answered
    REFUSED = "refused"  # nobody listens: the process is gone, its machine is up
    SILENT = "silent"  # no answer in time: frozen, overloaded or cut off; proves nothing


@dataclass(frozen=True)
class ProbeResult:
    """What came back from a worker's port: ``name`` is the worker that it says it is, if any."""

    liveness: Liveness
    name: str | None = None


@dataclass(frozen=True)
class RingIdle:
    """How long the ring has completed no step, and what steps usually take, in seconds.

    ``usual_s`` is 0 before the first one. ``observed``: what the leader saw, for the reason. To
    have heard of no step for ``least_s`` says something: long, for who is not in the ring and has
    never heard of it, for it may be the one that is cut off. None: as ``limits`` say.
    """

    quiet_s: float
    usual_s: float
    observed: str = ""
    least_s: float | None = None
    limits: LivenessLimits = USUAL

    @property
    def stands(self) -> bool:
        """No step completes, for longer than steps take."""
        least_s = self.limits.frozen_s if self.least_s is None else self.least_s
        return self.quiet_s > max(least_s, self.limits.frozen_steps * self.usual_s)


def whom_to_ask(
    now: Snapshot,
    leader: int,
    announced_s: float,
    idle: RingIdle,
    heard_s: Mapping[int, float] = MappingProxyType({}),
) -> dict[int, tuple[str, int]]:
    """The workers whose word the leader waits for, with their address and port.

    Members of a ring that is broken or about to change, newcomers that are about to join, and
    whoever has left ZooKeeper. When the ring stands still, all its members, so that the session of
    a frozen one is the last proof to come, and nothing is left to wait for when it ends. Not the
    members of a switch that was announced ``announced_s`` ago, so lately that to ask them would
    only slow it down, unless there is a doubt. And not newcomers that were heard ``heard_s`` ago,
    so lately that to ask all of them so often would leave the leader no time.
    """
    members = {member.id: member for member in now.members}
    ready = [member for member in now.members if member.stage is Stage.READY]
    lately_s = idle.limits.newcomer_s * len(ready)
    due = (m for m in ready if heard_s.get(m.id, math.inf) >= lately_s)
    asked = {member.id: (member.address, member.port) for member in due}
    ring_members = seats_of(now.generation)
    if idle.stands or not _settled(now.generation, members):
        asked |= {
            ring_member.id: (ring_member.address, ring_member.port)
            for ring_member in ring_members.values()
        }
        if announced_s < idle.limits.switch_s and not _in_doubt(ring_members, members):
            asked = {w: at for w, at in asked.items() if w not in ring_members}
    return {w: at for w, at in asked.items() if w != leader and w not in now.evicted}


def proof(
    worker: int, place: str, answer: ProbeResult, now: Snapshot, idle: RingIdle
) -> str | None:
    """What proves that ``worker`` is dead, as a sentence; None: nothing does.

    ``place``: where it was asked.
    """
    if (reason := gone(worker, place, answer)) is not None:
        return reason
    if answer.liveness is Liveness.ALIVE or any(m.id == worker for m in now.members):
        return None
    if _enters(worker, now):
        return (
            f"it is frozen or cut off: {_placed(worker, now)} left ZooKeeper on its way into its "
            f"first ring, and {place} does not answer"
        )
    broken = _broken(now)
    if not idle.stands and not (broken and idle.quiet_s > idle.limits.frozen_s):
        return None
    if _leaves(worker, now) and not broken and idle.quiet_s <= idle.limits.session_s:
        return None
    return (
        f"it is frozen or cut off: {_placed(worker, now)} left ZooKeeper, {place} does not "
        f"answer and no step completes for {idle.quiet_s:.1f} s{idle.observed}"
    )


def gone(worker: int, place: str, answer: ProbeResult) -> str | None:
    """What proves that the process of ``worker`` has ended, whatever its ring does; or None."""
    if answer.liveness is Liveness.REFUSED:
        return f"{GONE}: {place} refuses connections"
    if answer.name not in (None, f"w{worker}"):
        return f"{GONE}: on {place} {answer.name} answers"
    return None


def seats_of(generation: Generation | None) -> dict[int, RingMember]:
    """All who are in the ring of ``generation`` or in the one before it."""
    return {s.id: s for s in (*generation.members, *generation.previous)} if generation else {}


def _enters(worker: int, now: Snapshot) -> bool:
    """Whether it is a newcomer of a planned generation that nobody has adopted yet."""
    current = now.generation
    if current is None or not current.previous or worker not in current.joined:
        return False
    members = set(current.worker_ids)
    return not any(m.id in members and m.generation >= current.number for m in now.members)


def _leaves(worker: int, now: Snapshot) -> bool:
    """Whether the planned generation is one without it."""
    current = now.generation
    return current is not None and bool(current.previous) and worker in current.left


def _broken(now: Snapshot) -> bool:
    """Whether somebody reports the present ring as broken: then no step of it is under way."""
    generation = now.generation
    return generation is not None and any(broke(member, generation) for member in now.members)


def _placed(worker: int, now: Snapshot) -> str:
    member = seats_of(now.generation).get(worker)
    rank = now.generation.rank_of(worker) if now.generation else None
    host = member.host if member else "?"
    return f"w{worker} ({'without a rank' if rank is None else f'rank {rank}'}, host {host})"


def _in_doubt(ring_members: Mapping[int, RingMember], members: Mapping[int, Member]) -> bool:
    """Whether somebody has left ZooKeeper, or reports a ring as broken that it is in."""
    return any(
        worker not in members
        or ((broken := members[worker].broken) and broken.generation >= members[worker].generation)
        for worker in ring_members
    )


def _settled(generation: Generation | None, members: Mapping[int, Member]) -> bool:
    """Whether all are in the ring of ``generation`` and none reports it broken."""
    return generation is not None and all(
        member.id in members
        and members[member.id].generation >= generation.number
        and not _reports(members[member.id], generation.number)
        for member in generation.members
    )


def _reports(member: Member, generation: int) -> bool:
    return member.broken is not None and member.broken.generation >= generation
