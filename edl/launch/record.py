"""What a launcher writes down: the end of the job, and the deaths of workers that it has seen."""

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
from edl.core.host.supervision import Outcome
from edl.core.records import JobState, Snapshot


def conclude(store: JobStore, outcome: Outcome, snapshot: Snapshot) -> None:
    """End the job as ``outcome`` says, unless its state is no longer that of ``snapshot``."""
    state, before = outcome.state, snapshot.job.state
    if store.set_job_state(state, outcome.reason, outcome.exit_code, only_from=(before,)):
        _add(store, _ENDS[state](), outcome.reason, snapshot)


_ENDS: Mapping[JobState, type[Details]] = {
    JobState.FINISHED: JobFinishedDetails,
    JobState.FAILED: JobFailedDetails,
    JobState.STOPPED: JobStoppedDetails,
}


def worker_ended(store: JobStore, process: Process, host: str, snapshot: Snapshot) -> None:
    """Log how a worker's process on ``host`` has ended: it failed, or it was to end."""
    failed = process.failed or process.deserted
    details = (WorkerFailedDetails if failed else WorkerExitedDetails)(
        worker=None if process.worker is None else process.name,
        host=host,
        slot=process.slot,
        exit_code=process.exit_code,
        termination_message=process.termination_message,
    )
    _add(store, details, process.ending_text(host), snapshot)


def slot_disabled(store: JobStore, host: str, slot: int, reason: str, snapshot: Snapshot) -> None:
    """Log that no worker is started in a slot of ``host`` any more."""
    _add(store, SlotDisabledDetails(host, slot), reason, snapshot)


def no_template(store: JobStore, host: str, why: str, snapshot: Snapshot) -> None:
    """Log that ``host`` starts its workers without a template."""
    reason = f"host {host} starts each worker anew, which takes longer than from a template: {why}"
    _add(store, NoTemplateDetails(host), reason, snapshot)


def who_ended(event: Event) -> int | None:
    """The worker of whose end an event tells; None: it tells of none."""
    if not isinstance(event.details, EndedDetails) or event.details.worker is None:
        return None
    return int(event.details.worker[1:])


def worker_frozen(
    store: JobStore, process: Process, host: str, stacks: str, snapshot: Snapshot
) -> None:
    """Log that a worker on ``host`` does not answer, and the file that says where it hangs."""
    reason = f"{process.name} on {host} does not answer; where its threads are: {stacks}"
    _add(store, WorkerFrozenDetails(process.name, host, process.slot, stacks), reason, snapshot)


def _add(store: JobStore, details: Details, reason: str, snapshot: Snapshot) -> None:
    generation = snapshot.generation.number if snapshot.generation else 0
    # The status is up to a second old, and a worker may have told of a later step meanwhile.
    step = max(snapshot.status.step, store.events.newest_step())
    store.events.add(Event(time.time(), generation, step, reason, details))
