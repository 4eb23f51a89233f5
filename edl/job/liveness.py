"""Decide which workers the leader asks over HTTP, and whether their answers prove them dead.

ZooKeeper only knows whose session ended, and a session may end under a healthy worker. So a worker
counts as dead on proof alone:

- *gone*: no process listens on its port any more, or another worker does;
- *frozen or cut off*: its session is over, its port is silent, and no step completes, or the ring
  is broken. Any one of the three may have another cause; a worker with which steps complete is
  healthy.

A worker that answers is never dead; one that lets the others wait for too long is evicted for that
(:mod:`edl.job.membership`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edl.job.borrowing import ReclaimTracker
from edl.job.snapshot import GONE, Snapshot, since
from edl.records import Generation, Liveness, ProbeResult, Reclaim, RingMember, Stage


@dataclass(frozen=True)
class LivenessLimits:
    switch_s: float = 0.5  # a switch in which no worker has failed takes less than this
    # The ring stands still when no step has completed for both of these.
    frozen_s: float = 1.0
    frozen_steps: int = 5  # in usual step times
    answer_s: float = 0.5  # how long a worker's port may take to answer
    silence_s: float = 1.0  # after a missing answer a worker counts as silent so long, unasked
    newcomer_s: float = 0.01  # each of n ready newcomers is asked again after n times this
    session_s: float = 6.0  # the granted time-out: a frozen worker leaves ZooKeeper so much later


USUAL = LivenessLimits()


@dataclass(frozen=True)
class RingIdle:
    quiet_s: float  # since the last complete step that the leader knows of
    usual_s: float  # the median time of a step; 0 before the first step
    observed: str = ""  # a clause about what the leader saw, for the end of a proof's sentence
    # In place of `limits.frozen_s`, for a leader that is not in the ring and has never heard of a
    # step: it may be the one that is cut off.
    least_s: float | None = None
    limits: LivenessLimits = USUAL

    @property
    def stands(self) -> bool:
        least_s = self.limits.frozen_s if self.least_s is None else self.least_s
        return self.quiet_s > max(least_s, self.limits.frozen_steps * self.usual_s)


def workers_to_probe(
    snapshot: Snapshot,
    leader: int,
    announced_s: float,
    idle: RingIdle,
    heard_s: Mapping[int, float] = MappingProxyType({}),  # since a worker's last answer, if any
) -> dict[int, tuple[str, int]]:
    new, members = snapshot.generation, {member.id: member for member in snapshot.members}
    ready = [member for member in snapshot.members if member.stage is Stage.READY]
    lately_s = idle.limits.newcomer_s * len(ready)
    due = (m for m in ready if heard_s.get(m.id, math.inf) >= lately_s)
    asked = {member.id: (member.address, member.port) for member in due}
    in_ring = ring_members(new)
    # All have entered the newest generation, and none reports it as broken.
    settled = new is not None and all(
        (m := members.get(worker)) is not None
        and m.generation >= new.number
        and not (m.broken and m.broken.generation >= new.number)
        for worker in new.worker_ids
    )
    # While the ring stands still all members are asked: if one is frozen, its silence is then known
    # when its session ends, which completes the proof.
    if idle.stands or not settled:
        in_doubt = any(
            (m := members.get(worker)) is None or (m.broken and m.broken.generation >= m.generation)
            for worker in in_ring
        )
        # To ask the members slows a switch down.
        if announced_s < idle.limits.switch_s and not in_doubt:
            asked = {worker: at for worker, at in asked.items() if worker not in in_ring}
        else:
            asked |= {worker: (m.address, m.port) for worker, m in in_ring.items()}
    return {w: at for w, at in asked.items() if w != leader and w not in snapshot.evicted}


def proof(
    worker: int, place: str, answer: ProbeResult, snapshot: Snapshot, idle: RingIdle
) -> str | None:
    if (reason := gone(worker, place, answer)) is not None:
        return reason
    # One that answers is alive, and one with a session may be.
    if answer.liveness is Liveness.ALIVE or any(m.id == worker for m in snapshot.members):
        return None
    new, member = snapshot.generation, ring_members(snapshot.generation).get(worker)
    rank = new.rank_of(worker) if new is not None else None
    ranked = "without a rank" if rank is None else f"rank {rank}"
    left = f"w{worker} ({ranked}, host {member.host if member else '?'}) left ZooKeeper"
    planned = new is not None and bool(new.previous)
    # Steps do not need a newcomer of a planned generation that nobody has entered: the others wait
    # for it meanwhile, and it holds no state.
    if new is not None and planned and worker in new.joined and not snapshot.switched:
        return (
            f"it is frozen or cut off: {left} on its way into its first ring, and {place} does not "
            "answer"
        )
    broken = snapshot.is_broken
    if not idle.stands and not (broken and idle.quiet_s > idle.limits.frozen_s):
        return None
    # It may have removed its own node and closed its port, and its silence be a lost packet.
    leaves = new is not None and planned and worker in new.left
    if leaves and not broken and idle.quiet_s <= idle.limits.session_s:
        return None
    return (
        f"it is frozen or cut off: {left}, {place} does not answer and no step completes for "
        f"{idle.quiet_s:.1f} s{idle.observed}"
    )


def gone(worker: int, place: str, answer: ProbeResult) -> str | None:
    if answer.liveness is Liveness.REFUSED:
        return f"{GONE}: {place} refuses connections"
    if answer.name not in (None, f"w{worker}"):
        return f"{GONE}: on {place} {answer.name} answers"
    return None


def ring_members(generation: Generation | None) -> dict[int, RingMember]:
    return {m.id: m for m in (*generation.members, *generation.previous)} if generation else {}


# ------------------------------------------------------------
# Measure for how long the facts have been true by which a leader decides.


AWAY_S = 10.0  # if a snapshot comes later, the leader could not read: the rest does not count


@dataclass(frozen=True)
class Ages:
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
        reclaims_s = self._reclaims.observe(snapshot.desired, now_s)
        self._away_s += max(0.0, now_s - self._observed_s - AWAY_S)
        self._observed_s = now_s
        now_s -= self._away_s
        before = self._stages
        self._stages = {
            m.id: before[m.id] if before.get(m.id, (None,))[0] is m.stage else (m.stage, now_s)
            for m in snapshot.members
        }
        new = snapshot.generation
        number = new.number if new is not None else 0
        if number != self._announced[0]:
            self._announced = (number, now_s)
            self._broken = None
        lost = new is not None and all(
            m.id in snapshot.evicted for m in snapshot.ring if m.id not in new.left
        )
        # Since a fact became true; None: it is not.
        self._broken = since(self._broken, snapshot.is_broken, now_s)
        self._lost = since(self._lost, lost, now_s)
        return Ages(
            now_s - self._since,
            {worker: now_s - at for worker, (_, at) in self._stages.items()},
            now_s - self._announced[1],
            0.0 if self._broken is None else now_s - self._broken,
            0.0 if self._lost is None else now_s - self._lost,
            reclaims_s,
        )
