"""Request another number of workers for a running job (:func:`resize`), or other places.

:func:`place` requests places. Both wait for the workers if they are asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import SupportsIndex

from edl.client.waiting import (
    USUAL,
    ClientLimits,
    Messages,
    OnMessage,
    ignore,
    looks,
    resizable,
    running,
)
from edl.coordination.job_store import JobStore
from edl.coordination.paths import check_name
from edl.core.job.device_sets import (
    NO_DEVICES,
    DeviceSets,
    is_placed,
    placed_exactly,
    workers_of_ring,
)
from edl.core.job.placement import Placement, place_workers, whole
from edl.core.plural import by_host, workers
from edl.core.records import RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, UsageError


@dataclass(frozen=True)
class Resize:
    """The result of a request for another number of workers.

    Attributes:
        job: the name of the job.
        before: the number of desired workers by host before the request.
        after: the number of desired workers by host after the request.
    """

    job: str
    before: Placement
    after: Placement

    def __str__(self) -> str:
        where = by_host(self.after)
        old, new = sum(self.before.values()), sum(self.after.values())
        return f"job {self.job}: {old} -> {workers(new)} ({where})"


def resize(
    store: JobStore,
    size: Callable[[int], int],
    timeout_s: float | None = None,
    limits: ClientLimits = USUAL,
) -> Resize:
    """Set the desired number of workers of a job; return the desired workers before and after."""
    now = resizable(store, f"scale job {store.name}", limits)

    def change(desired: Placement) -> Placement:
        np = size(sum(desired.values()))
        now.job.sizes.check_scale(store.name, np)
        return place_workers(store.name, np, desired, now.available, now.assigned.by_slot)

    done = _write(store, change, "edl scale")
    if timeout_s is not None:
        wait_for_size(store, sum(done.after.values()), timeout_s, limits=limits)
    return done


def whole_placement(hosts: Mapping[str, SupportsIndex]) -> Placement:
    """Check the number of workers by host that a user's program gives; return it with ints."""
    if not isinstance(hosts, Mapping):
        raise UsageError(
            f"the hosts are {hosts!r}; give the workers to place on each host, for example: "
            '{"a": 2}'
        )
    return {check_name("host", host): whole(np, least=0) for host, np in hosts.items()}


def place(
    store: JobStore,
    hosts: Placement,
    devices: DeviceSets = NO_DEVICES,
    timeout_s: float | None = None,
    limits: ClientLimits = USUAL,
) -> Resize:
    """Set how many workers a job has on each host, and which devices it may use there."""
    now = running(store, f"place workers of job {store.name}", limits)
    if now.assigned.by_slot:
        raise UsageError(
            f"cannot place workers of job {store.name}: it was started by horovodrun, which places "
            f"its workers itself; use `edl scale {store.name}` or `edl migrate`"
        )

    def change(desired: Placement) -> Placement:
        return placed_exactly(now, hosts, devices, desired)

    done = _write(store, change, "placed by a program", devices)
    if timeout_s is not None:
        _wait_for_placement(store, done.after, timeout_s, limits)
    return done


def _write(
    store: JobStore,
    change: Callable[[Placement], Placement],
    why: str,
    devices: DeviceSets = NO_DEVICES,
) -> Resize:
    """Write the desired workers of a job, and return them as they were before and are after."""
    read = False
    unsure = f"it may have been written or not, see `edl status {store.name}` before you repeat it"

    def noted(desired: Placement) -> Placement:
        nonlocal read
        read = True
        return change(desired)

    try:
        changed = store.set_desired(noted, RequestedBy.PERSON, why, devices=devices)
    except CoordinationError as error:
        raise CoordinationError(f"{error}; {unsure}" if read else str(error)) from error
    return Resize(store.name, changed.before.hosts, changed.desired.hosts)


def _wait_for_placement(
    store: JobStore, hosts: Placement, timeout_s: float, limits: ClientLimits
) -> None:
    """Wait until the workers of a job train on the hosts and devices that are assigned to them."""
    messages = Messages()
    for now in looks(store, timeout_s, f"placing job {store.name}", messages, limits=limits):
        if is_placed(now, hosts):
            return
        here = by_host(workers_of_ring(now)) or "no worker trains"
        messages(f"workers by host: {here}; {now.status.reason}")


def wait_for_size(
    store: JobStore,
    np: int,
    timeout_s: float,
    on_message: OnMessage = ignore,
    limits: ClientLimits = USUAL,
) -> Snapshot:
    """Wait until `np` workers have entered one ring; return the job's records as they are then."""
    messages = Messages(on_message)
    what = f"scaling job {store.name} to {np}"
    for now in looks(store, timeout_s, what, messages, limits=limits):
        number = now.generation.number if now.generation else 0
        ring = now.generation.worker_ids if now.generation else ()
        if len(ring) == np and {m.id for m in now.members if m.generation >= number} >= {*ring}:
            return now
        messages(f"{len(ring)} of {np} workers train: {now.status.reason}")
    raise AssertionError("looks() ends with an error")
