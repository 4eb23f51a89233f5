"""Let a script's workers exchange messages before the training: :func:`exchange_before_training`.

Workers die, and others start in their place, also before the training of a job begins.
"""

from __future__ import annotations

from contextlib import suppress

from edl.coordination.job_store import JobStore
from edl.core.job.script_exchange import participants
from edl.errors import CoordinationError, JobFailed, UnknownJob
from edl.worker.shared_state import SharedState

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # between looks


def exchange_before_training(
    store: JobStore, shared: SharedState, limit_s: float, number: int, payload: bytes
) -> list[bytes] | None:
    """Return the messages of a collective in rank order; None: the job trains, and had none."""
    clock = shared.clock
    deadline, pause_s = clock.now_s() + limit_s, FIRST_PAUSE_S
    while True:
        shared.check()
        late = clock.now_s() > deadline
        try:
            is_made, answer = _look(store, shared.worker, number, payload)
        except (CoordinationError, UnknownJob) as error:
            if late or not _may_come_back(store, error):
                raise
        else:
            if is_made:
                return answer
            if late:
                raise JobFailed(
                    f"a collective of the script before its training was not called by all workers "
                    f"within {limit_s:g} s"
                )
        clock.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 1.5 * pause_s)


def _look(
    store: JobStore, worker: int, number: int, payload: bytes
) -> tuple[bool, list[bytes] | None]:
    """Send a message if the worker takes part; return whether there is nothing to wait for."""
    now = store.snapshot()
    members = participants(now)
    if worker in members:
        answer = store.script_exchange.send(number, worker, payload, members)
    else:
        answer = store.script_exchange.read(number)
    if answer is not None or (worker not in members and now.status.step > 0):
        return True, answer
    if now.job.state.over:
        raise JobFailed(f"the job ended before its training: it {now.job.state.phrase}")
    return False, None


def _may_come_back(store: JobStore, error: CoordinationError | UnknownJob) -> bool:
    if isinstance(error, UnknownJob):
        with suppress(CoordinationError):  # unknown while ZooKeeper is away
            return store.was_lost(error)
    return True
