"""More or fewer workers, and who says how many each host has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edl.client.waiting import Messages, OnMessage, looks, running, silent
from edl.coordination.job_store import JobStore
from edl.core.host.host_discovery import as_hosts
from edl.core.job.placement import Plan, place
from edl.core.plural import workers
from edl.core.records import Host, Job, Snapshot
from edl.errors import CoordinationError, UsageError


@dataclass(frozen=True)
class Resize:
    """How many workers were wanted on each host before, and are after."""

    job: str
    before: Plan
    after: Plan

    def __str__(self) -> str:
        where = ", ".join(f"{host}: {count}" for host, count in self.after.items())
        old, new = sum(self.before.values()), sum(self.after.values())
        return f"job {self.job}: {old} -> {workers(new)} ({where})"


class Wanted:
    """How many workers a job shall have on each host: its plan; under horovodrun, the wish.

    Raises:
        UsageError: the job is one of horovodrun and its hosts are not those of `edl-discover`.
    """

    def __init__(self, store: JobStore, job: Job, what: str) -> None:
        self._store = store
        self.driver = bool(job.driver)
        if job.driver and not job.offer:
            raise UsageError(
                f"cannot {what}: it is for the host discovery script of horovodrun to say how "
                "many workers there are; use `--host-discovery-script edl-discover`, without --file"
            )

    def of(self, now: Snapshot) -> Plan:
        """What is wanted now."""
        return now.job.wish if self.driver else now.plan

    def hosts(self, now: Snapshot) -> tuple[Host, ...]:
        """The hosts that have slots to offer."""
        return as_hosts(now.job.offer) if self.driver else now.hosts

    def change(self, change: Callable[[dict[str, int]], dict[str, int]]) -> dict[str, int]:
        """Compare and set; what then stands."""
        return (self._store.change_wish if self.driver else self._store.change_plan)(change)

    def choose(self, change: Callable[[dict[str, int]], dict[str, int]]) -> dict[str, int]:
        """As :meth:`change`, for what somebody has asked for: a profile lets that stand."""

        def asked(plan: dict[str, int]) -> dict[str, int]:
            new = change(plan)
            self._store.ask_over_profile()
            return new

        return self.change(asked)


def resize(store: JobStore, size: Callable[[int], int], timeout_s: float | None = None) -> Resize:
    """Let the job have ``size(workers wanted now)`` workers.

    Args:
        timeout_s: wait for so long until they train; None: return as soon as it is written down.

    Raises:
        UsageError: the job does not run, or its limits or hosts do not allow that many.
        TimedOut, JobEnded: they do not train; they are still wanted.
    """
    what = f"scale job {store.name}"
    now = running(store, what)
    wanted = Wanted(store, now.job, what)
    before: dict[str, int] = {}
    unsure = f"it may have been written or not, see `edl status {store.name}` before you repeat it"

    def change(plan: dict[str, int]) -> dict[str, int]:
        before.clear()
        before.update(plan)
        np = size(sum(plan.values()))
        now.job.sizes.check_scale(store.name, np)
        return place(store.name, np, plan, wanted.hosts(now))

    try:
        done = Resize(store.name, before, wanted.choose(change))
    except CoordinationError as error:
        raise CoordinationError(f"{error}; {unsure}" if before else str(error)) from error
    if timeout_s is not None:
        wait_for_size(store, sum(done.after.values()), timeout_s)
    return done


def wait_for_size(store: JobStore, np: int, timeout_s: float, tell: OnMessage = silent) -> Snapshot:
    """Wait until ``np`` workers train in one ring; the job as it then stands.

    Raises:
        TimedOut, JobEnded: they do not.
    """
    messages = Messages(tell)
    for now in looks(store, timeout_s, f"scaling job {store.name} to {np}", messages):
        number = now.generation.number if now.generation else 0
        ring = now.generation.members if now.generation else ()
        if len(ring) == np and {m.id for m in now.members if m.generation >= number} >= {*ring}:
            return now
        messages(f"{len(ring)} of {np} workers train: {now.status.reason}")
    raise AssertionError("looks() ends with an error")
