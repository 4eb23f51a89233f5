"""Decide which device of its host a worker gets, and which devices it sees.

A job may be limited to some devices of hosts (:attr:`edl.core.records.Assigned.devices`). Then
each worker that the agent starts there gets a device that no living process of the job uses. The
worker learns it by two environment variables:

- ``EDL_DEVICE`` is the number of the device.
- ``CUDA_VISIBLE_DEVICES`` is a list in which the worker's device has the index ``local_rank``, that
  is, the number of the worker's slot: scripts choose their GPU by it. Before it are the devices of
  the workers in lower slots.

:func:`with_devices` chooses the devices and sets these variables.

A device changes from one job to another in two steps: the first job's record of this host says that
the device is neither allowed nor used there any more, and then the other job gets it. So an agent
must not start a worker on a device that its record does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from edl.core.host.process import Process
from edl.core.host.supervision import Start
from edl.core.plural import counted, in_brackets, workers
from edl.core.records import Assigned, Member

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
    """Return the numbers of the devices that living processes of a job use on one host, sorted."""
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
        device = _device_for(last.get(start.slot), usable, busy)
        visible = None if device is None else visible_devices(start.slot, device, by_slot, usable)
        if device is None or visible is None:
            continue
        variables = {DEVICE: str(device), **cuda_variable(visible, cuda)}
        given.append(replace(start, device=device, variables=variables))
        by_slot[start.slot] = device
        busy.add(device)
    return tuple(given)


def why_wait(lacking: int, allowed: Collection[int], cuda: Sequence[str] | None) -> str:
    """Return a clause that says why workers are not started for lack of a device."""
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
    """Return the `CUDA_VISIBLE_DEVICES` of a worker, as a mapping from its name to its value."""
    # It hides all GPUs, and the worker inherits it.
    if cuda is not None and not cuda:
        return {}
    return {CUDA: ",".join(str(d) if cuda is None else cuda[d] for d in devices)}


def _device_for(before: Process | None, usable: Sequence[int], busy: Collection[int]) -> int | None:
    """Return the number of the device for a new worker of a slot; None if it must wait for one."""
    # A slot keeps its device: shared while its last process runs, else if it is free.
    free = [device for device in usable if device not in busy]
    if before is not None and before.used_device in (usable if before.alive else free):
        return before.used_device
    return free[0] if free else None


def _usable(allowed: Iterable[int], cuda: Sequence[str] | None) -> list[int]:
    return sorted(device for device in allowed if _exists(device, cuda))


def _exists(device: int, cuda: Sequence[str] | None) -> bool:
    return not cuda or device < len(cuda)
