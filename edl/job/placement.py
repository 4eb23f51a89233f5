"""Decide how many workers each host gets.

Hosts keep the workers that they have. Further ones go to free slots of the hosts in the order of
their names, and workers are taken from the last hosts by name. Nothing depends on an order of
arrival.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import SupportsIndex

from edl.errors import UsageError
from edl.events import Event, GenerationDetails, SwitchDetails
from edl.job.snapshot import Snapshot
from edl.records import Generation, Host, Job, JobState, Request, Stage
from edl.text import counted, in_brackets, verb, workers

Placement = Mapping[str, int]  # workers by host


def whole(number: SupportsIndex, least: int | None = None) -> int:
    # Not a float: a desired number of 2.0 would end all agents that read it.
    try:
        count = operator.index(number)
    except TypeError:
        raise UsageError(f"{number!r} is no whole number; give an int") from None
    if least is not None and count < least:
        raise UsageError(f"{count} workers cannot be added or taken away; give {least} or more")
    return count


def place_workers(
    job: str, np: int, desired: Placement, hosts: Sequence[Host], by_slot: bool = False
) -> dict[str, int]:
    slots = {host.name: host.slots for host in hosts}
    new = {name: max(0, wanted) for name, wanted in sorted(desired.items())}
    lacking = np - sum(new.values())
    for name in sorted(slots):
        added = min(max(0, lacking), max(0, slots[name] - new.get(name, 0)))
        if added or name in new:
            new[name] = new.get(name, 0) + added
        lacking -= added
    if lacking > 0:
        parts = [f"{name}: {count}" for name, count in sorted(slots.items())]
        gone = sorted(set(desired) - set(slots))
        missing = "no longer discovered" if by_slot else "without an agent"
        parts += [f"{name}: {desired[name]} {missing}" for name in gone]
        capacity = sum(max(count, desired.get(name, 0)) for name, count in slots.items())
        capacity += sum(desired[name] for name in gone)
        raise UsageError(
            f"cannot scale job {job} to {workers(np)}: its hosts have {counted(capacity, 'slot')} "
            f"({', '.join(parts) or 'no host'}); {to_add(job, by_slot)}"
        )
    # Hosts that are not available lose their workers first.
    for name in sorted(new, key=lambda name: (name not in slots, name), reverse=True):
        taken = min(max(0, -lacking), new[name])
        new[name] -= taken
        lacking += taken
    return new


def move(
    snapshot: Snapshot, np: int | None, source: str, target: str, desired: Placement
) -> dict[str, int]:
    job, by_slot = snapshot.job.name, snapshot.assigned.by_slot
    there, here = desired.get(target, 0), desired.get(source, 0)
    np = here if np is None else np
    refusal = f"cannot move {workers(np)} of job {job} from host {source} to host {target}"
    if source == target:
        raise UsageError(f"cannot move workers of job {job} from host {source} to itself")
    if here == 0:
        used = ", ".join(f"{host}: {wanted}" for host, wanted in sorted(desired.items()) if wanted)
        raise UsageError(
            f"cannot move workers of job {job} from host {source}: it has none; the job's workers "
            f"are on {used or 'no host'}"
        )
    if not 1 <= np <= here:
        raise UsageError(f"{refusal}: --np must lie between 1 and {here}, which {source} has")
    slots = next((host.slots for host in snapshot.available if host.name == target), None)
    if slots is None:
        raise UsageError(f"{refusal}: nobody offers {target}; {to_add(job, by_slot, target)}")
    if there + np > slots:
        raise UsageError(
            f"{refusal}: {target} has {counted(slots, 'slot')} and {there} of them "
            f"{verb(there)} taken; choose a lower --np, or another host"
        )
    new = {**desired, source: here - np, target: there + np}
    if by_slot and not any(new.get(host, 0) for host, n in snapshot.assigned.hosts.items() if n):
        raise UsageError(
            f"cannot move all workers of job {job} from the hosts that it is on: the driver of "
            "horovodrun wants to keep one of them; leave a worker there with a lower --np"
        )
    return new


def to_add(job: str, by_slot: bool, host: str = "") -> str:
    if by_slot:
        return f"let edl-discover offer {host or 'another host'} to horovodrun"
    named = f" --host {host}" if host else ""
    return f"add {host or 'a host'} with `edl join --job {job}{named}`"


def return_absent(desired: Placement, host: str, here: Mapping[str, int]) -> dict[str, int]:
    """Return `desired` without the moves of workers to `host` that have not happened yet."""
    # A host with more workers in the ring than are wanted keeps them until their replacements are
    # ready: it wants again those that are not on `host` yet.
    new = dict(desired)
    for name in sorted({*here} - {host}):
        lacking = max(0, new.get(host, 0) - here.get(host, 0))
        kept = min(lacking, max(0, here[name] - new.get(name, 0)))
        if kept:
            new |= {host: new[host] - kept, name: new.get(name, 0) + kept}
    return new


def without_host(snapshot: Snapshot, host: str, desired: Placement) -> dict[str, int]:
    job, before = snapshot.job, snapshot.desired.hosts
    here = Counter(member.host for member in snapshot.newest_members)
    new = dict(desired)
    for name in here:  # a worker that was asked to leave since then moves nowhere
        here[name] -= max(0, before.get(name, 0) - desired.get(name, 0))
    # Hosts that are gone lose their workers, too.
    for name in (*sorted(set(desired) - snapshot.present_in(desired) - {host}), host):
        new = {**return_absent(new, name, here), name: 0}
    left = sum(new.values())
    others = [one for one in snapshot.agents if one.name != host]
    enough = job.sizes.enough(left)
    settled = _settled(job, sum(desired.values()), new, others) if enough else None
    if settled is None:
        raise UsageError(
            f"host {host} cannot leave job {job.name}: {workers(left)} would be left and "
            f"{job.sizes.refusal(left)}; scale out on other hosts first, or run "
            f"`edl stop {job.name}`"
        )
    return settled


def without_slot(
    snapshot: Snapshot, host: str, given_up: Collection[int], elsewhere: bool = True
) -> dict[str, int] | None:
    # `given_up` are all disabled slots of `host`. If a worker would fail `elsewhere`, too, none is
    # added in a free slot.
    job, desired = snapshot.job, snapshot.desired.hosts
    fewer = {**desired, host: max(0, desired.get(host, 0) - 1)}
    usable = [
        replace(one, slots=one.slots - len(given_up if one.name == host else one.disabled))
        for one in snapshot.agents
    ]
    wanted = snapshot.desired.np if elsewhere else sum(fewer.values())
    return _settled(job, wanted, fewer, usable)


def _settled(
    job: Job, wanted: int, desired: dict[str, int], hosts: Sequence[Host]
) -> dict[str, int] | None:
    """Return `desired`, or a near placement whose number the job may have; None: there is none."""
    left = sum(desired.values())
    if job.sizes.allows(left):
        return desired
    for size in (wanted, job.sizes.below(left)):
        with suppress(UsageError):
            if size is not None and job.sizes.allows(size):
                return place_workers(job.name, size, desired, hosts)
    return None


# ------------------------------------------------------------
# Which devices of each host a job may use. The number of a device is that of one of the host's
# slots, from 0; where the host has GPUs, it is the number of a GPU.


DeviceSets = Mapping[str, tuple[int, ...]]  # the numbers of the devices, by host
NO_DEVICES: DeviceSets = {}


def device_sets(devices: Mapping[str, Sequence[SupportsIndex]] | None) -> DeviceSets:
    if devices is None:
        return NO_DEVICES
    if not isinstance(devices, Mapping):
        raise UsageError(
            f"the devices are {devices!r}; give the numbers of each host's devices, for example: "
            '{"a": (0, 1)}'
        )
    return {host: _numbers(host, given) for host, given in devices.items()}


def check_devices(action: str, hosts: Placement, devices: DeviceSets) -> None:
    for host, np in sorted(hosts.items()) if devices else ():
        allowed = devices.get(host, ())
        if np > len(allowed):
            raise UsageError(
                f"cannot {action}: {workers(np)} on host {host}, where the job has "
                f"{counted(len(allowed), 'device')}{in_brackets(allowed)}; give it one device for "
                "each worker"
            )


def placed_exactly(
    snapshot: Snapshot, hosts: Placement, devices: DeviceSets, desired: Placement
) -> dict[str, int]:
    job = snapshot.job
    job.sizes.check_scale(job.name, sum(hosts.values()))
    refusal = f"place workers of job {job.name}"
    check_devices(refusal, hosts, {**snapshot.assigned.devices, **devices})
    slots = {host.name: host.slots for host in snapshot.hosts}
    for host, np in sorted(hosts.items()):
        if np <= desired.get(host, 0):
            continue
        if host not in slots:
            raise UsageError(
                f"cannot {refusal}: host {host} is to get {workers(np)} and has no agent; "
                f"{to_add(job.name, False, host)}"
            )
        if np > slots[host]:
            raise UsageError(
                f"cannot {refusal}: host {host} is to get {workers(np)} and its agent offers "
                f"{counted(slots[host], 'slot')}; place fewer workers there"
            )
    return {**dict.fromkeys(desired, 0), **hosts}


def is_placed(snapshot: Snapshot, hosts: Placement) -> bool:
    if snapshot.generation is None or workers_of_ring(snapshot) != {
        h: n for h, n in hosts.items() if n
    }:
        return False
    ring = snapshot.generation.worker_ids
    there = [member for member in snapshot.members if member.id in ring]
    entered = [member for member in there if member.generation >= snapshot.generation.number]
    granted = [m for m in there if snapshot.assigned.grants(m.host, m.used_device)]
    return len(entered) == len(granted) == len(ring)


def workers_of_ring(snapshot: Snapshot) -> dict[str, int]:
    return dict(sorted(Counter(member.host for member in snapshot.newest_members).items()))


def describe_devices(devices: DeviceSets) -> str:
    return "; ".join(
        f"devices of {host}: {', '.join(map(str, numbers)) or 'none'}"
        for host, numbers in sorted(devices.items())
    )


def _numbers(host: str, given: object) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(
            f"the devices of host {host} are {given!r}; give their numbers, for example: (0, 1)"
        )
    numbers = tuple(sorted(whole(number) for number in given))
    if numbers and numbers[0] < 0:
        raise UsageError(f"device {numbers[0]} of host {host} does not exist; the first one is 0")
    if len(set(numbers)) < len(numbers):
        twice = ", ".join(map(str, numbers))
        raise UsageError(f"the devices of host {host} are {twice}; give each of them once")
    return numbers


# ------------------------------------------------------------
# How far a migration between two hosts is, read from the job's records alone. It follows from the
# desired workers: the target's agent starts newcomers, the leader keeps the workers that leave the
# source until these are ready, and lets all change places in one switch (`membership`). So it goes
# on if the process that asked for it ends.


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


def migration_status(move: Move, snapshot: Snapshot) -> MigrationStatus:
    generation, desired = snapshot.generation, snapshot.desired.hosts
    members = snapshot.newest_members
    number = generation.number if generation is not None else 0
    ring = Counter(member.host for member in members)
    adopted = {m.id for m in snapshot.members if m.generation >= number}
    seated = {member.id for member in members}
    coming = [
        m
        for m in snapshot.members
        if m.generation == 0 and m.id not in {*seated, *snapshot.evicted}
    ]
    arrived = ring + Counter(m.host for m in coming)
    target, source = desired.get(move.target, 0), desired.get(move.source, 0)
    lacking = target - ring[move.target]
    asked = move.desired.get(move.target, 0)
    new = max(0, min(move.np, move.np - asked + ring[move.target]))
    on_way = [m for m in coming if m.host == move.target]
    absent = max(0, lacking - len(on_way))
    ready = ("ready" if m.stage is Stage.READY else "preparing" for m in on_way)
    parts = [f"{m.name} is {stage}" for m, stage in zip(on_way, ready, strict=True)]
    parts += [f"{absent} to be started"] if absent and not snapshot.job.state.over else []
    return MigrationStatus(
        done=lacking <= 0 and ring[move.source] <= source and seated <= adopted,
        there=new,
        changed=(source, target) != (move.desired.get(move.source, 0), asked),
        arrived=arrived,
        text=f"{new} of {move.np} moved" + (f"; {', '.join(parts)}" if parts else ""),
    )


def migration_outcome(
    move: Move,
    events: Sequence[Event],
    hosts: Mapping[str, str],
    last: int,
    seen: Iterable[Generation] = (),  # a leader may have died before it logged its generation
) -> Migration:
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
    return max((p.stall_s for p in switch.workers.values() if p.role == "old"), default=0.0)


# ------------------------------------------------------------
# The host on which one worker is replaced: another one if it has room, else the same. In both cases
# there is one switch: the leader keeps the worker until its replacement is ready (`resize`).


def place_replacement(
    snapshot: Snapshot, worker: int, avoided: Collection[str]
) -> tuple[str, Placement] | None:
    """Return the host for the replacement of `worker`, and the workers to desire for it, if any."""
    members = snapshot.newest_members
    member = next((member for member in members if member.id == worker), None)
    if member is None or snapshot.assigned.by_slot:
        return None
    desired = dict(snapshot.desired.hosts)
    # A worker leaves this host anyway.
    if desired.get(member.host, 0) < sum(other.host == member.host for other in members):
        return None
    free = {
        host.name: host.slots - len(host.disabled) - desired.get(host.name, 0)
        for host in snapshot.agents
        if not host.leaving
    }
    # Hosts that are slow themselves are avoided; the worker's own one may be among them.
    open_ = [name for name in free if free[name] > 0 and name not in avoided]
    if not open_:
        return None
    target = min(open_, key=lambda name: (name == member.host, -free[name], name))
    if target != member.host:
        desired |= {
            member.host: desired.get(member.host, 0) - 1,
            target: desired.get(target, 0) + 1,
        }
    return target, desired


def undo_replacement(snapshot: Snapshot, request: Request) -> Placement:
    desired = dict(snapshot.desired.hosts)
    member = next((m for m in snapshot.newest_members if m.id == request.worker), None)
    if member is None or request.host == member.host or not desired.get(request.host, 0):
        return desired
    source, target = desired.get(member.host, 0) + 1, desired[request.host] - 1
    return {**desired, member.host: source, request.host: target}


# ------------------------------------------------------------
# Whether the hosts of a job that has not begun can have enough workers for its first ring. A job
# may be created before any agent runs. With fewer than `min_np` the leader would wait for ever for
# a host that does not come, so the agents end such a job (`job_end`).


def has_too_few_places(snapshot: Snapshot) -> bool:
    if snapshot.generation is not None or snapshot.job.state is not JobState.RUNNING:
        return False
    if snapshot.assigned.by_slot:  # horovodrun's driver finds hosts
        return False
    return snapshot.job.sizes.below(sum(_places(snapshot).values())) is None


def why_too_few(snapshot: Snapshot, within_s: float) -> str:
    here, places = sum(_workers(snapshot).values()), _places(snapshot)
    sizes = snapshot.job.sizes
    least = sizes.above(sizes.min_np) or sizes.min_np
    slots = {host.name: host.slots for host in snapshot.hosts}
    lacking = {
        host: n for host, n in sorted(snapshot.assigned.hosts.items()) if n > places.get(host, 0)
    }
    absent = [host for host in lacking if host not in slots]
    parts = [f"no agent of host {', '.join(absent)}"] if absent else []
    parts += [
        f"host {host} has {counted(slots[host], 'slot')} for {workers(n)}"
        for host, n in lacking.items()
        if host in slots
    ]
    who = f"{here} of at least {workers(least)}"
    return f"{who} came within {within_s:g} s: {'; '.join(parts) or 'no host has more workers'}"


def _workers(snapshot: Snapshot) -> Mapping[str, int]:
    return Counter(m.host for m in snapshot.members if m.id not in snapshot.evicted)


def _places(snapshot: Snapshot) -> dict[str, int]:
    """Return how many workers each host can have at most: those there, or what its agent starts."""
    here, slots = _workers(snapshot), {host.name: host.slots for host in snapshot.hosts}
    return {
        host: max(here.get(host, 0), min(snapshot.assigned.hosts.get(host, 0), slots.get(host, 0)))
        for host in sorted({*here, *snapshot.assigned.hosts})
    }


# ------------------------------------------------------------
# The desired workers when a host joins (`edl join`). In a cluster, hosts are replaced by hosts with
# other names, so workers desired on a host that is gone are not counted: with at most 4 workers
# allowed, a new host can get the 2 of a host that is gone.


def request_workers(
    snapshot: Snapshot,
    desired: Placement,
    host: str,
    np: int,
    got: int | None = None,  # how many were desired on `host` after it asked last; None: it did not
    late: bool = False,  # all hosts of a new job have had the time to register
) -> dict[str, int]:
    has = desired.get(host, 0)
    if withdrawn(has, got):
        return dict(desired)
    np = snapshot.assigned.most_on(host, np)
    starting = snapshot.generation is None and not late
    there = snapshot.present_in(desired) | {host} | (set(desired) if starting else set())
    new = {name: count if name in there else 0 for name, count in sorted(desired.items())}
    # A host that asks again gets only workers that were desired on hosts that are gone: a worker
    # that a person has removed is not added again.
    if got is not None:
        np = min(np, has + sum(desired.values()) - sum(new.values()))
    sizes, others = snapshot.job.sizes, sum(new.values()) - has
    new[host] = sizes.room(others, np, has)
    # Other hosts that still wait get workers together with it, as far as the job may have the sum:
    # with 2 workers and `--sizes 2,4`, two hosts that ask for 1 each get 1 each.
    if new[host] < np:
        asked = {one.name: one.requested_np for one in snapshot.hosts} | {host: np}
        wait = {name: max(0, n - new.get(name, 0)) for name, n in asked.items()}
        more = sizes.room(sum(new.values()), sum(wait.values()))
        for name in (host, *sorted(wait)):
            added = min(more, wait.pop(name, 0))
            new[name] = new.get(name, 0) + added
            more -= added
    return new


def withdrawn(has: int, got: int | None) -> bool:
    """Return whether workers were taken from a host since it asked for them: it must not again."""
    return got is not None and has < got


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Return whether no workers are desired on any present host other than `host`."""
    others = snapshot.present - {host}
    return not any(count for name, count in snapshot.desired.hosts.items() if name in others)
