"""Request another number of workers for a running job, and wait until they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edl.client.waiting import USUAL, ClientLimits, Messages, OnMessage, ignore, looks, resizable
from edl.coordination.job_store import JobStore
from edl.core.job.placement import Placement, place_workers
from edl.core.plural import by_host, workers
from edl.core.records import RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError


@dataclass(frozen=True)
class Resize:
    """The result of a request for another number of workers.

    Attributes:
        job: the name of the job.
        before: the desired workers by host before the request.
        after: the desired workers by host after the request.
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
    """Set the desired number of workers of a job, and return the desired workers before and after.

    For the errors see :meth:`edl.client.job.Job.scale`.

    Args:
        store: the records of the job.
        size: returns the number to set, given the number that is desired at present.
        timeout_s: the time in seconds to wait until that many train; None to return as soon as the
            number is written.
        limits: the time limits of the request.
    """
    now, read = resizable(store, f"scale job {store.name}", limits), False
    unsure = f"it may have been written or not, see `edl status {store.name}` before you repeat it"

    def change(desired: Placement) -> Placement:
        nonlocal read
        read = True
        np = size(sum(desired.values()))
        now.job.sizes.check_scale(store.name, np)
        return place_workers(store.name, np, desired, now.available, now.assigned.by_slot)

    try:
        changed = store.set_desired(change, RequestedBy.PERSON, "edl scale")
    except CoordinationError as error:
        raise CoordinationError(f"{error}; {unsure}" if read else str(error)) from error
    done = Resize(store.name, changed.before.hosts, changed.desired.hosts)
    if timeout_s is not None:
        wait_for_size(store, sum(done.after.values()), timeout_s, limits=limits)
    return done


def wait_for_size(
    store: JobStore,
    np: int,
    timeout_s: float,
    on_message: OnMessage = ignore,
    limits: ClientLimits = USUAL,
) -> Snapshot:
    """Wait until ``np`` workers train in one ring, and return the job's records as they are then.

    Args:
        store: the records of the job.
        np: the number of workers.
        timeout_s: the time to wait, in seconds.
        on_message: called with sentences about the progress.
        limits: the time limits of the request.

    Raises:
        TimedOut: they do not train within ``timeout_s`` seconds.
        JobEnded: the job ended before that many workers trained.
    """
    messages = Messages(on_message)
    what = f"scaling job {store.name} to {np}"
    for now in looks(store, timeout_s, what, messages, limits=limits):
        number = now.generation.number if now.generation else 0
        ring = now.generation.worker_ids if now.generation else ()
        if len(ring) == np and {m.id for m in now.members if m.generation >= number} >= {*ring}:
            return now
        messages(f"{len(ring)} of {np} workers train: {now.status.reason}")
    raise AssertionError("looks() ends with an error")
