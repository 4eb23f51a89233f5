"""Write what a launcher or a client has observed: the end of the job, and what workers did.

:func:`conclude` records the end of the job, with an event; the other functions write one event
each, except :func:`worker_that_ended`, which reads one. Each writes before it returns, and writes
again if it is called again. While ZooKeeper is away it raises a CoordinationError; if ZooKeeper
does not have the job, an UnknownJob. An event gets the time of the call, the generation of
``snapshot`` (0 if there is none), and the newest step that the job's records or its events name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from edl.coordination.job_store import JobStore
from edl.core.events import (
    Details,
    EndedDetails,
    Event,
    JobFailedDetails,
    JobFinishedDetails,
    JobStoppedDetails,
    NoTemplateDetails,
    SlotDisabledDetails,
    WorkerExitedDetails,
    WorkerFailedDetails,
    WorkerFrozenDetails,
)
from edl.core.host.process import Process
from edl.core.host.supervision import JobOutcome
from edl.core.records import JobState
from edl.core.snapshot import Snapshot


def conclude(store: JobStore, outcome: JobOutcome, snapshot: Snapshot) -> None:
    """Write the end of the job into its record, and an event of that end, in one transaction."""
    # Nothing is written if the state has changed since the snapshot.
    state, before = outcome.state, snapshot.job.state
    event = _event(store, _ENDS[state](), outcome.reason, snapshot)
    store.set_job_state(state, outcome.reason, outcome.exit_code, only_from=(before,), event=event)


_ENDS: Mapping[JobState, type[Details]] = {
    JobState.FINISHED: JobFinishedDetails,
    JobState.FAILED: JobFailedDetails,
    JobState.STOPPED: JobStoppedDetails,
}


def worker_ended(
    store: JobStore, process: Process, host: str, snapshot: Snapshot, output_tail: str = ""
) -> None:
    """Record as an event how a worker's process has ended."""
    failed = process.failed or process.deserted
    details = (WorkerFailedDetails if failed else WorkerExitedDetails)(
        worker=None if process.worker is None else process.name,
        host=host,
        slot=process.slot,
        exit_code=process.exit_code,
        termination_message=process.termination_message,
        output_tail=output_tail,
    )
    _add(store, details, process.ending_text(host), snapshot)


def slot_disabled(store: JobStore, host: str, slot: int, reason: str, snapshot: Snapshot) -> None:
    """Record as an event that a host starts no more workers in one of its slots."""
    _add(store, SlotDisabledDetails(host, slot), reason, snapshot)


def no_template(store: JobStore, host: str, why: str, snapshot: Snapshot) -> None:
    """Record as an event that a host has no template, a process that forks workers."""
    reason = f"host {host} starts each worker anew, which takes longer than from a template: {why}"
    _add(store, NoTemplateDetails(host), reason, snapshot)


def worker_that_ended(event: Event) -> int | None:
    """Return the id of the worker whose end `event` reports: 3 for w3."""
    if not isinstance(event.details, EndedDetails) or event.details.worker is None:
        return None
    return int(event.details.worker[1:])


def worker_frozen(
    store: JobStore, process: Process, host: str, stacks: str, snapshot: Snapshot
) -> None:
    """Record as an event that a worker does not answer or is suspended; nothing is done to it."""
    # `stacks` is a file on that host; empty: the worker is suspended.
    reason = f"{process.name} on {host} does not answer; where its threads are: {stacks}"
    if not stacks:
        reason = f"{process.name} on {host} is killed: {process.why}"
    _add(store, WorkerFrozenDetails(process.name, host, process.slot, stacks), reason, snapshot)


def _add(store: JobStore, details: Details, reason: str, snapshot: Snapshot) -> None:
    store.events.add(_event(store, details, reason, snapshot))


def _event(store: JobStore, details: Details, reason: str, snapshot: Snapshot) -> Event:
    generation = snapshot.generation.number if snapshot.generation else 0
    # The status is up to a second old, and a worker may have told of a later step meanwhile.
    step = max(snapshot.status.step, store.events.newest_step())
    return Event(time.time(), generation, step, reason, details)
