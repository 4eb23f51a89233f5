"""Define the ends of an agent, the exit code of each, and the line that `--json` prints at its end.

The ends are those of :class:`AgentEnd`, their codes are in :data:`EXIT_CODES`, and
:class:`AgentResult` is the line.

The code of `edl agent` tells an engine or a supervisor what became of the agent, without a question
to ZooKeeper. The codes from 90 to 97 are those that shells (126 to 165), `sysexits.h` (64 to 78)
and systemd (200 to 243) leave free. A script may still end with one of them, so that its failed job
has the same code: the line of `--json` tells the two apart.

`edl run` and `edl join` end with the code of the job (:func:`edl.core.host.job_end.result`), or
`edl run` with that of a host that was drained (:func:`run_exit_code`). They, and all other
commands, have the codes for a job that does not exist and for a host that has an agent already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from edl.core.job.ending import HALTED_EXIT, UNSAVED_EXIT
from edl.core.record import Record
from edl.core.records import Job, JobState
from edl.errors import (
    ALREADY_HERE_EXIT,
    AccessDenied,
    AgentExists,
    EdlError,
    RunEnded,
    UnknownJob,
    UsageError,
)

INTERRUPTED = 130  # of a command that Ctrl-C ended before it had done anything


class AgentEnd(StrEnum):
    """The way in which an agent, the process of `edl run`, `edl join` or `edl agent`, has ended."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    HALTED = "halted"
    UNSAVED = "unsaved"
    LEFT = "left"
    PREEMPTED = "preempted"
    OVER = "over"
    NO_SUCH_JOB = "no_such_job"
    ALREADY_HERE = "already_here"
    REFUSED = "refused"
    ERROR = "error"


MEANINGS: Mapping[AgentEnd, str] = {
    AgentEnd.FINISHED: "the job has trained to its end",
    AgentEnd.FAILED: "the job has failed",
    AgentEnd.STOPPED: "the job was stopped",
    AgentEnd.HALTED: "the job was preempted (`edl preempt`), and is saved: `edl run --resume`",
    AgentEnd.UNSAVED: "the job was preempted, and its last steps were not saved in time",
    AgentEnd.LEFT: "the host was drained, or its workers placed on other hosts; the job goes on",
    AgentEnd.PREEMPTED: "the agent got a signal, and its host left; the job goes on",
    AgentEnd.OVER: "the run is over, or another one has taken its place: there is nothing to join",
    AgentEnd.NO_SUCH_JOB: "there is no job of this name",
    AgentEnd.ALREADY_HERE: "another agent of this host is alive; it has the workers",
    AgentEnd.REFUSED: "the command asked for something impossible; nothing was begun",
    AgentEnd.ERROR: "something else went wrong, such as a ZooKeeper that does not answer",
}
EXIT_CODES: Mapping[AgentEnd, int] = {
    AgentEnd.ERROR: 1,
    AgentEnd.REFUSED: 2,
    AgentEnd.STOPPED: 90,
    AgentEnd.LEFT: 91,
    AgentEnd.PREEMPTED: 92,
    AgentEnd.OVER: 93,
    AgentEnd.NO_SUCH_JOB: 94,
    AgentEnd.ALREADY_HERE: ALREADY_HERE_EXIT,
    AgentEnd.HALTED: HALTED_EXIT,
    AgentEnd.UNSAVED: UNSAVED_EXIT,
}
"""The exit code of `edl agent` for each end that has a code of its own."""

_FINAL = (
    AgentEnd.FINISHED,
    AgentEnd.FAILED,
    AgentEnd.STOPPED,
    AgentEnd.HALTED,
    AgentEnd.UNSAVED,
    AgentEnd.OVER,
    AgentEnd.REFUSED,
)


@dataclass(frozen=True)
class AgentResult(Record):
    """The result of `edl run`, `edl join` or `edl agent`, as `--json` prints it last."""

    job: Annotated[str | None, "name of the job; null: it was not known yet"] = None
    run: Annotated[
        str | None, "token of the start of the job that the agent belonged to; null: not known"
    ] = None
    host: Annotated[str | None, "name of this host in the job; null: it was not known yet"] = None
    end: Annotated[AgentEnd, "one of the ends above"] = AgentEnd.ERROR
    exit_code: Annotated[int, "exit code of this command"] = 1
    reason: Annotated[str, "why, in a sentence"] = ""
    step: Annotated[int, "complete steps of the job, as this agent read them last"] = 0


def end_of_job(job: Job) -> AgentEnd:
    """Return the end of an agent whose job is over, as its state says."""
    if job.state is JobState.STOPPED and job.end_within_s:
        return AgentEnd.UNSAVED if job.exit_code == UNSAVED_EXIT else AgentEnd.HALTED
    return AgentEnd(job.state.value)


def end_of_error(error: EdlError) -> AgentEnd:
    """Return the end of an agent, or of another command, that the error `error` has ended."""
    # It is an UnknownJob, but the job exists; only its secret is not known here.
    if isinstance(error, AccessDenied):
        return AgentEnd.REFUSED
    kinds: tuple[tuple[type[EdlError], AgentEnd], ...] = (
        (UnknownJob, AgentEnd.NO_SUCH_JOB),
        (AgentExists, AgentEnd.ALREADY_HERE),
        (RunEnded, AgentEnd.OVER),
        (UsageError, AgentEnd.REFUSED),
    )
    return next((end for kind, end in kinds if isinstance(error, kind)), AgentEnd.ERROR)


def is_final(end: AgentEnd) -> bool:
    """Return whether another agent of the same run on the same host would end at once, too."""
    return end in _FINAL


def agent_exit_code(end: AgentEnd, of_job: int) -> int:
    return EXIT_CODES.get(end, of_job)


def run_exit_code(end: AgentEnd, of_job: int) -> int:
    """Return the exit code of `edl run` without `--or-join`."""
    # 91: `edl run ... && evaluate` evaluates only a job that was trained to its end.
    return EXIT_CODES[end] if end is AgentEnd.LEFT else of_job
