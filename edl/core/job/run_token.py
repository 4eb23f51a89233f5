"""Check the token of a run, and decide whether an agent may still join the run.

:func:`check_run_token` does the first, :func:`why_run_is_over` the second.

A run is one start of a job. A job that is stopped and started again under its name is another run.
Each run has a token; no two runs have the same one.
"""

from __future__ import annotations

import re

from edl.core.records import Job, JobState
from edl.errors import UsageError

_TOKEN = re.compile(r"[0-9a-f]{16,64}")
_ENDED = {
    JobState.FINISHED: "it has finished",
    JobState.STOPPED: "it was stopped",
    JobState.FAILED: "it has failed",
}


def check_run_token(run: str) -> str:
    if _TOKEN.fullmatch(run) is None:
        raise UsageError(
            f"{run!r} cannot be the token of a run: give 16 to 64 lower-case hexadecimal digits, "
            "such as Python's uuid.uuid4().hex"
        )
    return run


def why_run_is_over(job: Job, run: str, current: str) -> str:
    """Return the sentence that says why no agent can join a run any more; empty if it can."""
    over = f"run {run} of job {job.name} is over"
    if run != current:
        return f"{over}: run {current} has taken its place"
    # A job that stops can be joined: its workers on this host may need an agent to end them.
    if not job.state.over:
        return ""
    return f"{over}: {_ENDED[job.state]} ({job.reason or 'no reason given'})"
