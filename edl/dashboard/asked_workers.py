"""Ask some workers of a job directly how far they are, while ZooKeeper does not answer."""

from __future__ import annotations

from edl.core.dashboard.outage import WorkerReports
from edl.core.snapshot import Snapshot
from edl.http.client import ask_all

MOST_ASKED = 8  # workers, the first ranks
ASK_S = 1.0  # for a worker to answer


def ask_workers(snapshot: Snapshot, run: str) -> WorkerReports:
    """Ask the first workers of the newest ring for their health, all at the same time.

    Args:
        snapshot: the records of the job, as they were read last.
        run: the token of the start of the job.
    """
    generation = snapshot.generation
    members = generation.members[:MOST_ASKED] if generation is not None else ()
    answers = ask_all({one.id: (one.address, one.port) for one in members}, ASK_S)
    return WorkerReports.of(run, (one.report for one in answers.values()))
