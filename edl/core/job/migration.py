"""Tell how far a migration of workers between two hosts is, and how it went.

The entry points are :func:`standing` during a migration and :func:`outcome` after it.

All is read from the job's records in ZooKeeper. The migration itself follows from the desired
workers: the target's agent starts newcomers, the leader keeps the workers that leave the source
until the newcomers are ready, and lets all change places in one switch
(:mod:`edl.core.job.membership`). So the migration goes on if the process that asked for it ends. No
function here decides about members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edl.core.events import Event, GenerationDetails, SwitchDetails
from edl.core.job.placement import Placement
from edl.core.plural import workers
from edl.core.records import Generation, Stage
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class Move:
    """A request to migrate workers between two hosts, and what held when it was made."""

    job: str
    source: str
    target: str
    np: int  # how many workers move
    desired: Placement  # as the request wrote it to ZooKeeper
    since: int  # the newest generation then; 0: none

    def __str__(self) -> str:
        return f"{workers(self.np)} of {self.job} from {self.source} to {self.target}"


@dataclass(frozen=True)
class MigrationStatus:
    """How far a migration of workers between two hosts has come."""

    done: bool  # both hosts have what is desired now, and all members are in the newest generation
    there: int  # how many have moved
    changed: bool  # the desired numbers of the two hosts are not those of the request any more
    arrived: Mapping[str, int]  # members and newcomers, by host
    text: str  # for people


@dataclass(frozen=True)
class Migration:
    """A migration of workers between two hosts that is over. As a text it is a sentence for people.

    Attributes:
        move: the request to migrate workers.
        generations: the numbers of the generations in which workers moved, in ascending order.
        stall_s: for how many seconds in all the switches of the migration held up the workers that
            stayed; None: not known, or there was no switch.
        known: whether ``generations`` is complete; if False, the records of some generation were
            lost.
    """

    move: Move
    generations: tuple[int, ...]
    stall_s: float | None
    known: bool = True

    def __str__(self) -> str:
        if not self.generations and not self.known:
            return f"moved {self.move}; in which switch, the event log does not say"
        if not self.generations:
            return f"moved {self.move} without a switch: nobody had begun to move away"
        numbers = ", ".join(str(number) for number in self.generations)
        count = len(self.generations)
        how = "one switch (generation" if count == 1 else f"{count} switches (generations"
        still = "" if self.stall_s is None else f"; the others stood still for {self.stall_s:.1f} s"
        return f"moved {self.move} in {how} {numbers}){still}"


def standing(move: Move, now: Snapshot) -> MigrationStatus:
    """Return how far a migration has come; it goes on whatever the result is."""
    generation, desired = now.generation, now.desired.hosts
    members = generation.members if generation is not None else ()
    number = generation.number if generation is not None else 0
    ring = Counter(member.host for member in members)
    adopted = {m.id for m in now.members if m.generation >= number}
    seated = {member.id for member in members}
    coming = [m for m in now.members if m.generation == 0 and m.id not in {*seated, *now.evicted}]
    arrived = ring + Counter(m.host for m in coming)
    target, source = desired.get(move.target, 0), desired.get(move.source, 0)
    lacking = target - ring[move.target]
    asked = move.desired.get(move.target, 0)
    new = max(0, min(move.np, move.np - asked + ring[move.target]))
    on_way = [m for m in coming if m.host == move.target]
    absent = max(0, lacking - len(on_way))
    ready = ("ready" if m.stage is Stage.READY else "preparing" for m in on_way)
    parts = [f"{m.name} is {stage}" for m, stage in zip(on_way, ready, strict=True)]
    parts += [f"{absent} to be started"] if absent and not now.job.state.over else []
    return MigrationStatus(
        done=lacking <= 0 and ring[move.source] <= source and seated <= adopted,
        there=new,
        changed=(source, target) != (move.desired.get(move.source, 0), asked),
        arrived=arrived,
        text=f"{new} of {move.np} moved" + (f"; {', '.join(parts)}" if parts else ""),
    )


def outcome(
    move: Move,
    events: Sequence[Event],
    hosts: Mapping[str, str],
    last: int,
    seen: Iterable[Generation] = (),  # a leader may have died before it logged its generation
) -> Migration:
    """Return how a migration went that was done in generation `last`."""
    logged = {e.generation: e.details for e in events if isinstance(e.details, GenerationDetails)}
    written = {n: (one.joined, one.left, one.repair) for n, one in logged.items()}
    for one in seen:
        joined, left = (tuple(f"w{worker}" for worker in ids) for ids in (one.joined, one.left))
        written[one.number] = (joined, left, one.repairs)
    between = range(move.since + 1, last + 1)

    def moved(joined: Sequence[str], left: Sequence[str], repair: bool) -> bool:
        if repair:  # the workers that left have died
            return False
        came = any(hosts.get(w) == move.target for w in joined)
        return came or any(hosts.get(w) == move.source for w in left)

    numbers = tuple(n for n in between if n in written and moved(*written[n]))
    switches = {e.generation: e.details for e in events if isinstance(e.details, SwitchDetails)}
    known = [stall_s(switches[number]) for number in numbers if number in switches]
    whole = numbers and len(known) == len(numbers)
    return Migration(move, numbers, sum(known) if whole else None, written.keys() >= {*between})


def stall_s(switch: SwitchDetails) -> float:
    """Return for how many seconds a switch held up the old member that waited longest."""
    return max((p.stall_s for p in switch.workers.values() if p.role == "old"), default=0.0)
