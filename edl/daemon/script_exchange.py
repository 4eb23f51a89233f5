"""Let a script's workers exchange messages before the training: :func:`exchange_before_training`.

Workers die, and others start in their place, also before the training of a job begins.
"""

from __future__ import annotations

import time

from edl.coordination.job_store import JobStore
from edl.errors import JobFailed

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # between looks


def exchange_before_training(
    store: JobStore, worker: int, limit_s: float, number: int, payload: bytes
) -> list[bytes] | None:
    """Send a message, and wait for those of all workers of the job's first ring that are alive.

    A worker that is not in the ring waits for the messages of those that are.

    Args:
        store: The nodes of the job.
        worker: The id of this worker.
        limit_s: How long to wait, in seconds.
        number: The number of the exchange in the job, from 0.
        payload: The message of this worker.

    Returns:
        The messages in rank order; None if the job trains, and has not made this exchange.

    Raises:
        JobFailed: some messages have not come in time, or the job has ended.
        UsageError: the messages of the job are too large.
        CoordinationError: ZooKeeper is away.
    """
    deadline, pause_s = time.monotonic() + limit_s, FIRST_PAUSE_S
    while True:
        now = store.snapshot()
        alive = {member.id for member in now.members}
        ring = now.generation.worker_ids if now.generation is not None else ()
        members = [member for member in ring if member in alive]
        if worker in members:
            answer = store.script_exchange.send(number, worker, payload, members)
        else:
            answer = store.script_exchange.read(number)
        if answer is not None:
            return answer
        if worker not in members and now.status.step > 0:
            return None
        if now.job.state.over:
            raise JobFailed(f"the job ended before its training: it {now.job.state.phrase}")
        if time.monotonic() > deadline:
            raise JobFailed(
                f"a collective of the script before its training was not called by all workers "
                f"within {limit_s:g} s"
            )
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 1.5 * pause_s)
