"""How many workers each host gets: keep what is there, fill hosts by name, take from the last.

Pure: the answer depends on nothing but the arguments, and never on an order of arrival.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import SupportsIndex

from edl.core.plural import counted, verb, workers
from edl.core.records import Host, Job, Snapshot
from edl.errors import UsageError

Placement = Mapping[str, int]  # workers by host


def whole(number: SupportsIndex, least: int | None = None) -> int:
    """A number of workers that a program gives, as an int: NumPy's integers are whole, 2.0 is not.

    Raises:
        UsageError: it is not whole (if it were desired, every agent would end), or below least.
    """
    try:
        count = operator.index(number)
    except TypeError:
        raise UsageError(f"{number!r} is no whole number; give an int") from None
    if least is not None and count < least:
        raise UsageError(f"{count} workers cannot be added or taken away; give {least} or more")
    return count


def place(
    job: str, np: int, desired: Placement, hosts: Sequence[Host], by_slot: bool = False
) -> dict[str, int]:
    """The placement of ``np`` workers that differs least from ``desired``.

    A host that is not available keeps the workers it has, but gets no new one; when the number
    falls, such hosts lose theirs first, then the last by name.

    Args:
        job: name of the job, for the message, as is ``by_slot``.
        np: workers wanted, at least 0.
        desired: host -> workers now wanted there.
        hosts: those that are available.

    Raises:
        UsageError: the hosts have fewer than ``np`` slots together.
    """
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
    for name in sorted(new, key=lambda name: (name not in slots, name), reverse=True):
        taken = min(max(0, -lacking), new[name])
        new[name] -= taken
        lacking += taken
    return new


def move(
    now: Snapshot, np: int | None, source: str, target: str, desired: Placement
) -> dict[str, int]:
    """The placement with ``np`` workers of ``source`` (None: all) on ``target`` in its stead.

    Args:
        desired: host -> workers now wanted there; newer than that of ``now``, perhaps.

    Raises:
        UsageError: the hosts are one, ``source`` has not that many workers or none, ``target`` is
            not available or has not that many free slots; or the launcher assigns slots and would
            lose all of its hosts, of which it wants to keep one.
    """
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
    """How to let a job use a host (empty: any other), by the kind of its launcher."""
    if by_slot:
        return f"let edl-discover offer {host or 'another host'} to horovodrun"
    named = f" --host {host}" if host else ""
    return f"add {host or 'a host'} with `edl join --job {job}{named}`"


def give_back(desired: Placement, host: str, here: Mapping[str, int]) -> dict[str, int]:
    """The placement in which who was to move to ``host`` and is not there stays on its own host.

    Args:
        desired: host -> workers wanted there.
        here: host -> workers that are there. Hosts that have more than are wanted keep them until
            their replacements are ready.
    """
    new = dict(desired)
    for name in sorted({*here} - {host}):
        lacking = max(0, new.get(host, 0) - here.get(host, 0))
        kept = min(lacking, max(0, here[name] - new.get(name, 0)))
        if kept:
            new |= {host: new[host] - kept, name: new.get(name, 0) + kept}
    return new


def drain_host(now: Snapshot, host: str, desired: Placement) -> dict[str, int]:
    """The placement without workers on ``host``, and without those on hosts that are gone.

    Else the others would wait for workers of the dead to take over from those who leave. Who was to
    move to one of these hosts, and is not there, stays. Where the job may not have as many as are
    left, others are wanted on free slots; without such the job has the next smaller size.

    Args:
        desired: newer than that of ``now``, perhaps.

    Raises:
        UsageError: fewer than min_np would be left, or than the smallest size.
    """
    job, before = now.job, now.desired.hosts
    here = Counter(member.host for member in (now.generation.members if now.generation else ()))
    new = dict(desired)
    for name in here:  # who leaves since then moves nowhere
        here[name] -= max(0, before.get(name, 0) - desired.get(name, 0))
    for name in (*sorted(set(desired) - now.present_in(desired) - {host}), host):
        new = {**give_back(new, name, here), name: 0}
    left = sum(new.values())
    others = [one for one in now.hosts if one.name != host]
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
    """The placement when a slot of ``host`` is disabled; None: too few would be left.

    It has a worker less there. Where the job may not have that many, one is wanted in a free slot,
    here or on another host; without one, the job has the next smaller size.

    Args:
        given_up: all such slots of ``host``, the new one included.
        elsewhere: another slot may do what this one could not.
    """
    job, desired = now.job, now.desired.hosts
    fewer = {**desired, host: max(0, desired.get(host, 0) - 1)}
    usable = [
        replace(one, slots=one.slots - len(given_up if one.name == host else one.disabled))
        for one in now.hosts
    ]
    wanted = now.desired.np if elsewhere else sum(fewer.values())
    return _settled(job, wanted, fewer, usable)


def _settled(
    job: Job, wanted: int, desired: dict[str, int], hosts: Sequence[Host]
) -> dict[str, int] | None:
    """``desired`` if the job may have that many; else as many as were ``wanted``, on free slots.

    Without such slots the next smaller size; None: there is none.
    """
    left = sum(desired.values())
    if job.sizes.allows(left):
        return desired
    for size in (wanted, job.sizes.below(left)):
        with suppress(UsageError):
            if size is not None and job.sizes.allows(size):
                return place(job.name, size, desired, hosts)
    return None


def _too_few(job: str, np: int, desired: Placement, slots: Mapping[str, int], by_slot: bool) -> str:
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
