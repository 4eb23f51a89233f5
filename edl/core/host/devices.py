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
    """Return the entries of a ``CUDA_VISIBLE_DEVICES`` that CUDA looks at.

    CUDA ignores the first entry that names no GPU, such as "-1" or an empty one, and all after it.

    Args:
        variable: the value of the variable; None if it is not set.

    Returns:
        The numbers or ids of GPUs; empty if the value hides all GPUs; None if ``variable`` is None.
    """
    if variable is None:
        return None
    found: list[str] = []
    for entry in (text.strip() for text in variable.split(",")):
        if not entry or entry.startswith("-"):
            break
        found.append(entry)
    return tuple(found)


def busy_devices(
    assigned: Assigned, host: str, processes: Iterable[Process], members: Iterable[Member]
) -> tuple[int, ...]:
    """Return the numbers of the devices that living processes of a job use on one host, sorted.

    A process that was given no device counts only if the job is limited to devices: it uses the
    device with the number of its slot.

    Args:
        assigned: the devices of the job, by host.
        host: the name of the host.
        processes: the living worker processes of the host's agent.
        members: the records of workers on that host that the agent did not start.
    """
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
    """Give each worker that is to be started a device, and leave out those that must wait for one.

    A worker gets the device that its slot had last, or else the free one with the lowest number. If
    its slot has a worker that is about to leave, it shares the device of that worker.

    Args:
        starts: the starts of workers, in order of their preference.
        allowed: the numbers of the devices that the job may use on this host.
        cuda: the entries of the agent's ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        processes: the agent's processes, living or ended.
        members: the records of workers on this host that the agent did not start.

    Returns:
        The starts that have a device, with its number and the variables.
    """
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
    """Return a clause that says why workers are not started for lack of a device.

    Args:
        lacking: the number of these workers.
        allowed: the devices that the job may use on this host.
        cuda: the entries of the agent's ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    has = f"the job has {counted(len(allowed), 'device')} here{in_brackets(sorted(allowed))}"
    if hidden := sorted(set(allowed) - set(_usable(allowed, cuda))):
        has += f", and {CUDA} of the agent has no entry {', '.join(map(str, hidden))}"
    return f"{workers(lacking)} cannot start before a device is free: {has}"


def visible_devices(
    slot: int, device: int, by_slot: Mapping[int, int], allowed: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the devices that a worker sees, so that its own has the index ``slot``.

    Args:
        slot: the number of the worker's slot.
        device: the number of the worker's device.
        by_slot: the devices of the workers that run, by slot.
        allowed: the devices that the job may use, sorted. One of them takes the place of a lower
            slot that has no worker, or one with the same device as another worker.

    Returns:
        The numbers of ``slot + 1`` different devices; None if there are not that many.
    """
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
    """Return the ``CUDA_VISIBLE_DEVICES`` of a worker, as a mapping from its name to its value.

    Args:
        devices: the numbers of the devices that the worker sees, in order.
        cuda: the entries of the agent's ``CUDA_VISIBLE_DEVICES``: device n is its n-th entry, from
            0. None if it is not set: device n is GPU n. Empty if it hides all GPUs: then the worker
            inherits it, and the result is empty.
    """
    if cuda is not None and not cuda:
        return {}
    return {CUDA: ",".join(str(d) if cuda is None else cuda[d] for d in devices)}


def _device_for(before: Process | None, usable: Sequence[int], busy: Collection[int]) -> int | None:
    """Return the number of the device for a new worker of a slot; None if it must wait for one.

    It is the device of the slot's last process, if that process still runs (the two then share it)
    or no living process uses the device; else the usable device with the lowest number that no
    living process uses.

    Args:
        before: the last process of the worker's slot; None if there was none.
        usable: the numbers of the devices that the worker may get, sorted.
        busy: the numbers of the devices that living processes use.
    """
    free = [device for device in usable if device not in busy]
    if before is not None and before.used_device in (usable if before.alive else free):
        return before.used_device
    return free[0] if free else None


def _usable(allowed: Iterable[int], cuda: Sequence[str] | None) -> list[int]:
    """Return those of the ``allowed`` devices that the agent can give to workers, sorted.

    ``cuda`` are the entries of its ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    return sorted(device for device in allowed if _exists(device, cuda))


def _exists(device: int, cuda: Sequence[str] | None) -> bool:
    """Return whether the agent's ``CUDA_VISIBLE_DEVICES`` has an entry for the number ``device``.

    Args:
        device: the number of the device.
        cuda: the entries. The answer is True for each device if the variable is not set (None), or
            hides all GPUs (empty).
    """
    return not cuda or device < len(cuda)
