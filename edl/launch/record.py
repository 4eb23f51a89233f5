"""What a launcher writes down: the end of the job, and the deaths of workers that it has seen."""

from __future__ import annotations

import time
from collections.abc import Mapping

from edl.coordination.job_store import JobStore
from edl.core.host.process import Process
from edl.core.host.supervision import Outcome
from edl.core.records import Event, Snapshot


def conclude(store: JobStore, outcome: Outcome, snapshot: Snapshot) -> None:
    """End the job as ``outcome`` says, unless its state is no longer that of ``snapshot``."""
    state, before = outcome.state, snapshot.job.state
    if store.set_job_state(state, outcome.reason, outcome.exit_code, only_from=(before,)):
        _add(store, f"job_{state}", outcome.reason, snapshot, {})


def worker_ended(store: JobStore, process: Process, host: str, snapshot: Snapshot) -> None:
    """Log how a worker's process on ``host`` has ended: it failed, or it was to end."""
    details = {
        "worker": None if process.worker is None else process.name,
        "host": host,
        "slot": process.slot,
        "exit_code": process.exit_code,
        "last_line": process.last_line,
    }
    kind = "worker_failed" if process.failed else "worker_exited"
    _add(store, kind, process.ending_story(host), snapshot, details)


def slot_given_up(
    store: JobStore, host: str, slot: int, reason: str, plan: Mapping[str, int], snapshot: Snapshot
) -> None:
    """Log that no worker is started in a slot of ``host`` any more."""
    _add(store, "slot_given_up", reason, snapshot, {"host": host, "slot": slot, "plan": dict(plan)})


def who_ended(event: Event) -> int | None:
    """The worker of whose end an event tells; None: it tells of none."""
    if event.kind not in ("worker_failed", "worker_exited"):
        return None
    name = event.details.get("worker")
    return int(name[1:]) if isinstance(name, str) else None


def worker_frozen(
    store: JobStore, process: Process, host: str, stacks: str, snapshot: Snapshot
) -> None:
    """Log that a worker on ``host`` does not answer, and the file that says where it hangs."""
    reason = f"{process.name} on {host} does not answer; where its threads are: {stacks}"
    details = {"worker": process.name, "host": host, "slot": process.slot, "stacks": stacks}
    _add(store, "worker_frozen", reason, snapshot, details)


def _add(
    store: JobStore, kind: str, reason: str, snapshot: Snapshot, details: Mapping[str, object]
) -> None:
    generation = snapshot.generation.number if snapshot.generation else 0
    step = int(snapshot.status.get("step", 0))
    store.add_event(Event(time.time(), kind, generation, step, reason, dict(details)))
