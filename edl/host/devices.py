"""Decide which device of its host a worker gets, and which devices it sees.

``EDL_DEVICE`` is its number. ``CUDA_VISIBLE_DEVICES`` has the worker's device at index
``local_rank``, the number of its slot, for scripts choose their GPU by that; before it are those of
lower slots. A device changes from one job to another in two steps: the first job's record of this
host says that it is neither allowed nor used there any more, and then the other job gets it. So an
agent must not start a worker on a device that its record does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from edl.errors import UsageError
from edl.events import EndedDetails, Event
from edl.host.process import Process
from edl.host.supervision import Start
from edl.job.placement import place_workers
from edl.job.snapshot import Snapshot, as_hosts
from edl.records import Assigned, Member
from edl.text import counted, in_brackets, workers

DEVICE = "EDL_DEVICE"
CUDA = "CUDA_VISIBLE_DEVICES"


def entries(variable: str | None) -> tuple[str, ...] | None:
    """Return the entries of a `CUDA_VISIBLE_DEVICES` that CUDA looks at."""
    if variable is None:
        return None
    found: list[str] = []
    for entry in (text.strip() for text in variable.split(",")):
        # CUDA ignores the first entry that names no GPU, and all after it.
        if not entry or entry.startswith("-"):
            break
        found.append(entry)
    return tuple(found)


def busy_devices(
    assigned: Assigned, host: str, processes: Iterable[Process], members: Iterable[Member]
) -> tuple[int, ...]:
    # In a limited job, one without a device uses that with the number of its slot.
    limited = assigned.devices_on(host) is not None
    found: list[Process | Member] = [*processes, *members]
    return tuple(sorted({w.used_device for w in found if limited or w.device is not None}))


def with_devices(
    starts: Sequence[Start],
    allowed: Collection[int],
    cuda: Sequence[str] | None,
    processes: Iterable[Process],
    members: Iterable[Member],
) -> tuple[Start, ...]:
    """Give each worker to be started a device; leave out those that must wait for one."""
    processes, usable = tuple(processes), _usable(allowed, cuda)
    last = {p.slot: p for p in sorted(processes, key=lambda p: p.started)}
    living = [p for p in last.values() if p.alive]
    in_slots = {m.slot: m.used_device for m in members} | {p.slot: p.used_device for p in living}
    by_slot = {s: d for s, d in in_slots.items() if _exists(d, cuda)}
    busy = {m.used_device for m in members} | {p.used_device for p in processes if p.alive}
    given: list[Start] = []
    for start in starts:
        # A slot keeps its device: shared while its last process runs, else if it is free.
        before, free = last.get(start.slot), [device for device in usable if device not in busy]
        device = free[0] if free else None
        if before is not None and before.used_device in (usable if before.alive else free):
            device = before.used_device
        visible = None if device is None else visible_devices(start.slot, device, by_slot, usable)
        if device is None or visible is None:
            continue
        variables = {DEVICE: str(device), **cuda_variable(visible, cuda)}
        given.append(replace(start, device=device, variables=variables))
        by_slot[start.slot] = device
        busy.add(device)
    return tuple(given)


def why_wait(lacking: int, allowed: Collection[int], cuda: Sequence[str] | None) -> str:
    has = f"the job has {counted(len(allowed), 'device')} here{in_brackets(sorted(allowed))}"
    if hidden := sorted(set(allowed) - set(_usable(allowed, cuda))):
        has += f", and {CUDA} of the agent has no entry {', '.join(map(str, hidden))}"
    return f"{workers(lacking)} cannot start before a device is free: {has}"


def visible_devices(
    slot: int, device: int, by_slot: Mapping[int, int], allowed: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the devices that a worker sees, so that its own has the index `slot`."""
    # An allowed device takes the place of a lower slot without a worker, or with the device of
    # another.
    lower = {s: d for s, d in sorted(by_slot.items()) if s < slot and d != device}
    own: dict[int, int] = {}  # each device once, at the lowest slot
    for s, d in lower.items():
        if d not in own.values():
            own[s] = d
    fillers = [d for d in allowed if d != device and d not in own.values()]
    if len(own) + len(fillers) < slot:
        return None
    left = iter(fillers)
    return (*(own[s] if s in own else next(left) for s in range(slot)), device)


def cuda_variable(devices: Iterable[int], cuda: Sequence[str] | None) -> dict[str, str]:
    # It hides all GPUs, and the worker inherits it.
    if cuda is not None and not cuda:
        return {}
    return {CUDA: ",".join(str(d) if cuda is None else cuda[d] for d in devices)}


def _usable(allowed: Iterable[int], cuda: Sequence[str] | None) -> list[int]:
    return sorted(device for device in allowed if _exists(device, cuda))


def _exists(device: int, cuda: Sequence[str] | None) -> bool:
    return not cuda or device < len(cuda)


# ------------------------------------------------------------
# Where the workers of a job have run: their logs are there.


def worker_hosts(now: Snapshot, events: Iterable[Event]) -> dict[str, str]:
    """Return the host of each worker of a job, also of workers that have ended."""
    hosts = {
        event.details.worker: event.details.host
        for event in events
        if isinstance(event.details, EndedDetails) and event.details.worker is not None
    }
    hosts |= {f"w{one.id}": one.host for one in now.ring}
    return hosts | {member.name: member.host for member in now.members}


def addresses(now: Snapshot) -> dict[str, str]:
    of_workers = {member.host: member.address for member in now.members}
    return of_workers | {host.name: host.address for host in now.hosts}


# ------------------------------------------------------------
# The lines of a host discovery script, which horovodrun calls to learn its hosts: "name:slots".


LOCAL_NAMES = ("localhost", "127.0.0.1")


def parse_hosts(words: Iterable[str]) -> dict[str, int]:
    """Return host -> slots for `words` such as "node1:4"; slots of a repeated host are added up."""
    hosts: dict[str, int] = {}
    for word in words:
        name, colon, slots = word.rpartition(":")
        is_number = slots.isascii() and slots.isdigit()
        if not colon or not name or ":" in name or not is_number:
            raise UsageError(f"{word!r} is no host with its slots; write HOST:SLOTS, like node1:4")
        hosts[name] = hosts.get(name, 0) + int(slots)
    return hosts


def first_desired(discovered: Mapping[str, int], np: int) -> dict[str, int]:
    if np >= sum(discovered.values()):
        return dict(discovered)
    return {h: n for h, n in place_workers("", np, {}, as_hosts(discovered)).items() if n}


def lines(desired: Mapping[str, int], local: Mapping[str, bool]) -> list[str]:
    used = {host: slots for host, slots in desired.items() if slots}
    if len(used) == 1 and all(local[host] for host in used):
        # Horovod looks for an interface that two hosts have in common, and waits for a second host
        # even if the only one is this machine.
        second = next(name for name in LOCAL_NAMES if name not in used)
        used[second] = 0
    return [f"{host}:{slots}" for host, slots in used.items()]


# ------------------------------------------------------------
# The devices that `edl host` offers.


def offered_devices(
    slots: int | None, devices: str | None, cuda: Sequence[str] | None
) -> tuple[int, ...]:
    if devices is not None:
        numbers = _numbers(devices)
        if cuda and max(numbers) >= len(cuda):
            raise UsageError(
                f"--devices has {max(numbers)}, and {CUDA} has {len(cuda)} entries, "
                f"numbered from 0; leave {CUDA} away, or give lower numbers"
            )
    elif cuda:
        numbers = tuple(range(len(cuda)))
    elif slots is None:
        raise UsageError("give --slots, the number of workers that fit on this host")
    else:
        numbers = tuple(range(slots))
    if slots is None:
        return numbers
    if slots < 1:
        raise UsageError(f"--slots is {slots}; a host needs at least 1")
    if slots > len(numbers) or (devices is not None and slots != len(numbers)):
        source = "--devices" if devices is not None else CUDA
        raise UsageError(
            f"--slots is {slots} and {source} names {counted(len(numbers), 'device')}; each slot "
            "needs one of its own"
        )
    return numbers[:slots]


def _numbers(devices: str) -> tuple[int, ...]:
    words = [word.strip() for word in devices.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--devices is {devices!r}; give numbers, like 0,1,2,3")
    numbers = tuple(sorted({int(word) for word in words}))
    if len(numbers) != len(words):
        raise UsageError(f"--devices is {devices!r}, and names a device twice")
    return numbers
