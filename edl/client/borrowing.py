"""Let a job use slots that nobody else needs for now (:func:`borrow`), or take them back.

:func:`reclaim` takes them back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from edl.client.scaling import Resize
from edl.client.waiting import USUAL, ClientLimits, Messages, OnMessage, looks, resizable
from edl.coordination.job_store import JobStore
from edl.core.job import borrowing
from edl.core.job.borrowing import LeaseTerms
from edl.core.plural import by_host, counted, workers
from edl.core.records import RequestedBy
from edl.errors import Superseded, UsageError

GRACE_S = 10.0  # after the deadline, for what was done to be read


@dataclass(frozen=True)
class Reclaimed:
    """The slots that a job has given back after a request of `edl reclaim`.

    Attributes:
        job: the name of the job.
        hosts: the number of workers that left for the request, by host; more than the slots that
            were asked for if the job's sizes allow no number in between.
        after_s: the time from the request until the caller saw the slots free, in seconds.
        np: the number of workers that is desired since the request, on all hosts.
    """

    job: str
    hosts: Mapping[str, int]
    after_s: float
    np: int

    def __str__(self) -> str:
        return (
            f"job {self.job} has given back {counted(sum(self.hosts.values()), 'slot')} "
            f"({by_host(self.hosts)}) in {self.after_s:.1f} s and goes on with {workers(self.np)}"
        )


def borrow(store: JobStore, slots: int, host: str | None, limits: ClientLimits = USUAL) -> Resize:
    """Let a job borrow up to `slots` idle slots; return the desired workers before and after."""
    now = resizable(store, f"borrow slots for job {store.name}", limits)
    choice = partial(borrowing.borrow, now, slots, host)
    changed = store.set_desired(choice, RequestedBy.PERSON, "edl borrow", LeaseTerms(borrows=True))
    return Resize(store.name, changed.before.hosts, changed.desired.hosts)


def reclaim(
    store: JobStore,
    slots: int | None,
    host: str | None,
    deadline_s: float,
    on_message: OnMessage,
    limits: ClientLimits = USUAL,
) -> Reclaimed:
    """Take borrowed slots back from a job, and wait until they are free."""
    if not deadline_s > 0:
        raise UsageError(f"the deadline is {deadline_s:g} s; give more than 0")
    now = resizable(store, f"take slots back from job {store.name}", limits)
    began_s = time.monotonic()
    changed = store.set_desired(
        partial(borrowing.reclaim, now, slots, host),
        RequestedBy.PERSON,
        f"edl reclaim within {deadline_s:g} s",
        LeaseTerms(within_s=deadline_s),
    )
    before, after = changed.before.hosts, changed.desired.hosts
    asked = [one for one in changed.desired.reclaims if one not in changed.before.reclaims]
    goes_on = f"it goes on (see `edl status {store.name}`)"
    what = f"taking {counted(sum(one.slots for one in asked), 'slot')} back"
    on_message(f"{what}: {by_host({one.host: one.slots for one in asked})}")
    messages, limit_s = Messages(on_message), deadline_s + GRACE_S
    try:
        for seen in looks(store, limit_s, what, messages, goes_on, limits):
            if any(seen.desired.hosts.get(one.host, 0) > after.get(one.host, 0) for one in asked):
                raise Superseded(store.name, f"{what} was cancelled: other workers were asked for")
            if not {*asked} & {*seen.desired.reclaims}:
                after_s = time.monotonic() - began_s
                hosts = {h: before[h] - after.get(h, 0) for h in sorted(before)}
                gone = {host: n for host, n in hosts.items() if n > 0}
                return Reclaimed(store.name, gone, after_s, sum(after.values()))
            messages(f"{what}: {seen.status.reason}")
    except KeyboardInterrupt as end:
        end.add_note(goes_on)
        raise
    raise AssertionError("looks() ends with an error")
