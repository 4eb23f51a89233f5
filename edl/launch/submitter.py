"""Record which process on this host is the agent that `edl run` started for a job.

The record is a file in the job's log directory. A command that wants to end the job while ZooKeeper
is away finds the agent there, if it runs on the same host. The agent enters :func:`written_down`;
the command calls :func:`submitters`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from edl.launch.adoption import identity, recorded_pid

_RECORD = "run.process"


@contextlib.contextmanager
def written_down(logs: Path, pid: int) -> Iterator[None]:
    """Let a file in `logs` name the job's agent meanwhile."""
    record, own = logs / _RECORD, identity(pid)
    with contextlib.suppress(OSError):  # a full disk: then it is not found
        record.write_text(own)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a disk that fails; nobody takes it for a living one
            if record.read_text(errors="replace") == own:
                record.unlink()


def submitters(state: Path, job: str | None) -> dict[str, int]:
    """Return the pids of the agents of `edl run` on this host, by job."""
    found = {}
    for record in (state / "jobs").glob(f"{job or '*'}/logs/{_RECORD}"):
        if (pid := recorded_pid(record)) is not None:
            found[record.parent.parent.name] = pid
    return found
