"""Check and describe which devices of each host a job may use, and place workers as they are asked.

:func:`device_sets` checks what a user's program gives, :func:`check_devices` compares it with the
workers, and :func:`placed_exactly` computes the placement.

The *number of a device* is that of one of the host's slots, from 0; where the host has GPUs, it is
the number of a GPU. A job that is limited to devices has a set of them for each of its hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from edl.core.job.placement import Placement, to_add, whole
from edl.core.plural import counted, in_brackets, workers
from edl.core.snapshot import Snapshot
from edl.errors import UsageError

DeviceSets = Mapping[str, tuple[int, ...]]  # the numbers of the devices, by host

NO_DEVICES: DeviceSets = {}


def device_sets(devices: Mapping[str, Sequence[SupportsIndex]] | None) -> DeviceSets:
    """Return the devices that a user's program gives for each host, checked and sorted."""
    if devices is None:
        return NO_DEVICES
    if not isinstance(devices, Mapping):
        raise UsageError(
            f"the devices are {devices!r}; give the numbers of each host's devices, for example: "
            '{"a": (0, 1)}'
        )
    return {host: _numbers(host, given) for host, given in devices.items()}


def check_devices(what: str, hosts: Placement, devices: DeviceSets) -> None:
    """Raise an error if more workers are placed on a host than it has devices for the job."""
    for host, np in sorted(hosts.items()) if devices else ():
        allowed = devices.get(host, ())
        if np > len(allowed):
            raise UsageError(
                f"cannot {what}: {workers(np)} on host {host}, where the job has "
                f"{counted(len(allowed), 'device')}{in_brackets(allowed)}; give it one device for "
                "each worker"
            )


def placed_exactly(
    now: Snapshot, hosts: Placement, devices: DeviceSets, desired: Placement
) -> dict[str, int]:
    """Return the placement with exactly `hosts`: all other hosts of the job have no worker."""
    job = now.job
    job.sizes.check_scale(job.name, sum(hosts.values()))
    refusal = f"place workers of job {job.name}"
    check_devices(refusal, hosts, {**now.assigned.devices, **devices})
    slots = {host.name: host.slots for host in now.hosts}
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


def is_placed(now: Snapshot, hosts: Placement) -> bool:
    """Return whether a ring trains with the workers of `hosts`, each on a device it may use."""
    if now.generation is None or workers_of_ring(now) != {h: n for h, n in hosts.items() if n}:
        return False
    ring = now.generation.worker_ids
    there = [member for member in now.members if member.id in ring]
    entered = [member for member in there if member.generation >= now.generation.number]
    granted = [m for m in there if now.assigned.grants(m.host, m.used_device)]
    return len(entered) == len(granted) == len(ring)


def workers_of_ring(now: Snapshot) -> dict[str, int]:
    """Return how many workers of the newest generation each host has, by name of the host."""
    members = now.generation.members if now.generation is not None else ()
    return dict(sorted(Counter(member.host for member in members).items()))


def describe_devices(devices: DeviceSets) -> str:
    """Return a clause that names the devices of each host, such as "devices of a: 0, 1"."""
    return "; ".join(
        f"devices of {host}: {', '.join(map(str, numbers)) or 'none'}"
        for host, numbers in sorted(devices.items())
    )


def _numbers(host: str, given: object) -> tuple[int, ...]:
    """Return the numbers `given` of the devices of `host`, checked and sorted."""
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
