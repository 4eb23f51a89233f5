"""The agent of `edl run`, written down where its workers' logs are.

Who wants to end the job while ZooKeeper is away finds it there, on its own host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from edl.launch.adoption import identity

_RECORD = "run.process"


@contextlib.contextmanager
def written_down(logs: Path, pid: int) -> Iterator[None]:
    """While this lasts, process ``pid`` runs the job whose ``logs`` these are."""
    record = logs / _RECORD
    with contextlib.suppress(OSError):  # a full disk: then it is not found
        record.write_text(identity(pid))
    try:
        yield
    finally:
        record.unlink(missing_ok=True)


def submitters(state: Path, job: str | None) -> dict[str, int]:
    """The agents of `edl run` that live on this host: job -> process; of ``job`` only, if given."""
    found = {}
    for record in (state / "jobs").glob(f"{job or '*'}/logs/{_RECORD}"):
        with contextlib.suppress(OSError, ValueError):
            written = record.read_text()
            pid = int(written.partition(" ")[0])
            if written == identity(pid):
                found[record.parent.parent.name] = pid
    return found
