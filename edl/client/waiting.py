"""Wait for a running job to do what a client has requested, with a deadline (:func:`poll_job`).

This is shared by all requests of :mod:`edl.client`, such as scaling, draining and migrating.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edl.cluster.lifecycle import ClusterEvent
from edl.errors import CoordinationError, JobEnded, TimedOut, UsageError
from edl.events import Event
from edl.job.snapshot import Snapshot
from edl.records import JobState
from edl.zookeeper.store import JobStore

OnMessage = Callable[[str], None]  # called with sentences about how far it is


@dataclass(frozen=True)
class ClientLimits:
    """The time limits of a request to a running job, in seconds."""

    poll_s: float = 0.2  # between two looks
    discovery_s: float = 5.0  # horovodrun calls its discovery script once a second
    restore_s: float = 30.0  # for ZooKeeper to take the size back that a profiled job had
    agent_gone_s: float = 10.0  # after its session: an agent may need it to open another one
    log_s: float = 10.0  # for a switch to be in the event log: it is there after two steps
    settle_s: float = 1.0  # a job without a host and a worker for so long has no process to end it


USUAL = ClientLimits()


def ignore(_message: str) -> None:
    """Do nothing with a message: give this as `on_message` if messages are not wanted."""


class Messages:
    """A callable that passes messages on to `on_message`, and keeps the newest one in `last`."""

    def __init__(self, on_message: OnMessage = ignore) -> None:
        self._on_message = on_message
        self.last = ""  # the newest message; empty until there is one

    def __call__(self, message: str) -> None:
        self.last = message
        self._on_message(message)


def running(store: JobStore, what: str, limits: ClientLimits = USUAL) -> Snapshot:
    # It may just have begun under horovodrun, whose `edl-discover` says how many are desired.
    deadline = time.monotonic() + limits.discovery_s
    while True:
        now = store.snapshot()
        if now.job.state is not JobState.RUNNING:
            raise UsageError(f"cannot {what}: it {now.job.state.phrase}")
        if now.desired.hosts or time.monotonic() >= deadline:
            return now
        time.sleep(limits.poll_s)


def resizable(store: JobStore, what: str, limits: ClientLimits = USUAL) -> Snapshot:
    now = running(store, what, limits)
    if not now.desired.hosts:
        raise UsageError(
            f"cannot {what}: it is for the host discovery script of horovodrun to say how "
            "many workers there are; use `--host-discovery-script edl-discover`, without --file"
        )
    return now


def poll_job(
    store: JobStore,
    timeout_s: float,
    what: str,
    messages: Messages,
    late: str = "",
    limits: ClientLimits = USUAL,
) -> Iterator[Snapshot]:
    """Yield snapshots of the job's records until the caller stops or the time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        away = ""
        try:
            now = store.snapshot()
        except CoordinationError as error:
            away = str(error)
        else:
            yield now
            if now.job.state.over:
                state = f"{now.job.state.phrase}: {now.job.reason}"
                raise JobEnded(store.name, f"{what} is not done: job {store.name} {state}")
        if time.monotonic() >= deadline:
            parts = filter(None, (away or messages.last, late))
            message = f"{what} is not done after {timeout_s:g} s"
            raise TimedOut(store.name, "; ".join((message, *parts)))
        time.sleep(limits.poll_s)


# ------------------------------------------------------------
# Convert an event of a job or cluster for other programs, as `edl events --json` prints it.
#
# `flat` takes an event of a job, `flat_of_cluster` one of a cluster.


def flat(event: Event) -> dict[str, Any]:
    """Return an event of a job as one flat dictionary that can be written as JSON."""
    return {
        "time": datetime.fromtimestamp(event.time, UTC).isoformat(),
        "kind": str(event.kind),
        "generation": event.generation,
        "step": event.step,
        "reason": event.reason,
        **event.details.to_json(),
    }


def flat_of_cluster(number: int, event: ClusterEvent) -> dict[str, Any]:
    """Return an event of a cluster as a dictionary that can be written as JSON."""
    values = event.to_json()
    return {
        "number": number,
        "time": datetime.fromtimestamp(values.pop("time_s"), UTC).isoformat(),
        **values,
    }
