"""Decide how many workers each host gets; the entry point is :func:`place_workers`.

Hosts keep the workers that they have. Further ones go to free slots of the hosts in the order of
their names, and workers are taken from the last hosts by name. The functions change no argument and
write nothing; the result depends on the arguments only, and never on an order of arrival.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import SupportsIndex

from edl.core.plural import counted, verb, workers
from edl.core.records import Host, Job
from edl.core.snapshot import Snapshot
from edl.errors import UsageError

Placement = Mapping[str, int]  # workers by host


def whole(number: SupportsIndex, least: int | None = None) -> int:
    """Return a number of workers from a user's program as an int; NumPy's integers are accepted."""
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
    """Return the placement (workers by host) of `np` workers that differs least from `desired`."""
    slots = {host.name: host.slots for host in hosts}
    new = {name: max(0, wanted) for name, wanted in sorted(desired.items())}
    lacking = np - sum(new.values())
    for name in sorted(slots):
        added = min(max(0, lacking), max(0, slots[name] - new.get(name, 0)))
        if added or name in new:
            new[name] = new.get(name, 0) + added
        lacking -= added
    if lacking > 0:
        raise UsageError(_too_few(job, np, desired, slots, by_slot))
    # Hosts that are not available lose their workers first.
    for name in sorted(new, key=lambda name: (name not in slots, name), reverse=True):
        taken = min(max(0, -lacking), new[name])
        new[name] -= taken
        lacking += taken
    return new


def move(
    now: Snapshot, np: int | None, source: str, target: str, desired: Placement
) -> dict[str, int]:
    """Return the desired workers by host after `np` workers (None: all) were moved to another."""
    job, by_slot = now.job.name, now.assigned.by_slot
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
    slots = next((host.slots for host in now.available if host.name == target), None)
    if slots is None:
        raise UsageError(f"{refusal}: nobody offers {target}; {to_add(job, by_slot, target)}")
    if there + np > slots:
        raise UsageError(
            f"{refusal}: {target} has {counted(slots, 'slot')} and {there} of them "
            f"{verb(there)} taken; choose a lower --np, or another host"
        )
    new = {**desired, source: here - np, target: there + np}
    if by_slot and not any(new.get(host, 0) for host, n in now.assigned.hosts.items() if n):
        raise UsageError(
            f"cannot move all workers of job {job} from the hosts that it is on: the driver of "
            "horovodrun wants to keep one of them; leave a worker there with a lower --np"
        )
    return new


def to_add(job: str, by_slot: bool, host: str = "") -> str:
    """Return advice on how to let a job use one more host, as a clause of an error message."""
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


def without_host(now: Snapshot, host: str, desired: Placement) -> dict[str, int]:
    """Return the desired workers by host after `host` has left the job."""
    job, before = now.job, now.desired.hosts
    here = Counter(member.host for member in (now.generation.members if now.generation else ()))
    new = dict(desired)
    for name in here:  # a worker that was asked to leave since then moves nowhere
        here[name] -= max(0, before.get(name, 0) - desired.get(name, 0))
    # Hosts that are gone lose their workers, too.
    for name in (*sorted(set(desired) - now.present_in(desired) - {host}), host):
        new = {**return_absent(new, name, here), name: 0}
    left = sum(new.values())
    others = [one for one in now.agents if one.name != host]
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
    now: Snapshot, host: str, given_up: Collection[int], elsewhere: bool = True
) -> dict[str, int] | None:
    """Return the desired workers by host after a slot of `host` was disabled; None: too few."""
    # `given_up` are all disabled slots of `host`. If a worker would fail `elsewhere`, too, none is
    # added in a free slot.
    job, desired = now.job, now.desired.hosts
    fewer = {**desired, host: max(0, desired.get(host, 0) - 1)}
    usable = [
        replace(one, slots=one.slots - len(given_up if one.name == host else one.disabled))
        for one in now.agents
    ]
    wanted = now.desired.np if elsewhere else sum(fewer.values())
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


def _too_few(job: str, np: int, desired: Placement, slots: Mapping[str, int], by_slot: bool) -> str:
    """Return the error message for a job that wants more workers than its hosts have slots."""
    parts = [f"{name}: {count}" for name, count in sorted(slots.items())]
    gone = sorted(set(desired) - set(slots))
    missing = "no longer discovered" if by_slot else "without an agent"
    parts += [f"{name}: {desired[name]} {missing}" for name in gone]
    capacity = sum(max(count, desired.get(name, 0)) for name, count in slots.items())
    capacity += sum(desired[name] for name in gone)
    return (
        f"cannot scale job {job} to {workers(np)}: its hosts have {counted(capacity, 'slot')} "
        f"({', '.join(parts) or 'no host'}); {to_add(job, by_slot)}"
    )
