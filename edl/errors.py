"""Every error that edl raises on purpose, in one tree.

::

    EdlError
    ├── UsageError              the caller asked for something impossible; nothing was changed
    │   ├── ConfigError         a setting has no usable value
    │   ├── UnknownJob          no such job in ZooKeeper
    │   │   └── AccessDenied    none that the secret of this process opens
    │   └── JobExists           the name belongs to a job that is running
    ├── CoordinationError       ZooKeeper did not do what was asked
    │   ├── ZooKeeperUnreachable
    │   └── LeadershipLost      a write of a leader whose term is over was refused
    ├── RequestError            what was asked of a running job was not done
    │   ├── TimedOut            not by its deadline
    │   ├── JobEnded            the job ended before
    │   ├── HostLost            the host that workers were to move to has no agent any more
    │   └── Superseded          somebody else has changed what was asked for
    ├── RingError               the Horovod communicator
    │   ├── RingBroken          a collective failed: somebody in the ring is gone
    │   ├── RendezvousFailed    a ring could not be built
    │   └── UnevenEnd           some workers have left a loop, or ended, and others train on
    ├── DataError               a source, a ledger or a batch is not usable
    ├── CheckpointError         a checkpoint cannot be written, read or used here
    ├── JobError                the job as a whole
    │   ├── JobFailed           it ended without its result
    │   │   └── StateDiffers    its workers hold different states
    │   ├── NewcomerDiffers     this worker has joined, and differs from the others, which train on
    │   ├── JobStopped          somebody asked it to stop
    │   └── WorkerEvicted       the leader has given this worker up
    ├── BuildError              Horovod could not be built or patched
    └── IllegalTransition       a step was to go a way that no step goes

Messages say what happened, with the numbers, and what to do next; the CLI prints them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

FEW = 5  # names in one message
REFUSED_EXIT = 78  # sysexits.h: of a script that no other start of the same command would help


class EdlError(Exception):
    """Base of all errors that edl raises on purpose."""


class UsageError(EdlError):
    """The caller asked for something impossible; nothing was changed."""


class ConfigError(UsageError):
    """A setting has no usable value."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


def first(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


class UnknownJob(UsageError):
    """There is no job of that name in ZooKeeper, or none any more: it is another one's now."""

    def __init__(self, job: str, known: tuple[str, ...] = ()) -> None:
        near = get_close_matches(job, known, n=FEW, cutoff=0.0) if len(known) > FEW else known
        which = f"the nearest of {len(known)}" if len(known) > FEW else "known jobs"
        hint = f"; {which}: {', '.join(near)}" if known else "; start one with `edl run`"
        gone = f"job {job!r} is over, and a new one of that name has taken its place"
        super().__init__(gone if job in known else f"there is no job named {job!r}{hint}")
        self.job = job
        self.known = known


class AccessDenied(UnknownJob):
    """The job is closed to this process: it does not know the job's secret."""

    def __init__(self, job: str, message: str) -> None:
        UsageError.__init__(self, message)
        self.job = job


class JobExists(UsageError):
    """The name belongs to a job that is running.

    ``session_timeout_s``: how long ``processes`` may count as alive after their end; None: they
    have answered.
    """

    def __init__(
        self, job: str, processes: Sequence[str], session_timeout_s: float | None = None
    ) -> None:
        killed = (
            ""
            if session_timeout_s is None
            else (
                f". Processes that were killed count as alive until their ZooKeeper sessions end, "
                f"about {session_timeout_s:g} s: if these were, try again then"
            )
        )
        super().__init__(
            f"a job named {job!r} is already running ({first(processes)}); choose "
            f"another --job, or end it with `edl stop {job}`{killed}"
        )
        self.job = job


class CoordinationError(EdlError):
    """ZooKeeper did not do what was asked."""


class ZooKeeperUnreachable(CoordinationError):
    """No ZooKeeper server answered in time."""

    def __init__(self, hosts: str, timeout_s: float) -> None:
        super().__init__(
            f"no ZooKeeper answered at {hosts} within {timeout_s:g} s; check --zookeeper / "
            "EDL_ZOOKEEPER, or start a local one with `edl zookeeper start`"
        )
        self.hosts = hosts
        self.timeout_s = timeout_s


class LeadershipLost(CoordinationError):
    """A write of a leader whose election node is gone was refused (fencing)."""

    def __init__(self, term: int) -> None:
        super().__init__(f"the leader of term {term} has ended; its write was refused")
        self.term = term


class RequestError(EdlError):
    """What was asked of a running job was not done. The message says what stands."""

    def __init__(self, job: str, message: str) -> None:
        super().__init__(message)
        self.job = job


class TimedOut(RequestError):
    """It was not done by its deadline."""


class JobEnded(RequestError):
    """The job ended before it was done."""


class HostLost(RequestError):
    """The host that workers were to move to has no agent any more; who had not moved stays."""


class Superseded(RequestError):
    """Somebody else has changed what was asked for."""


class RingError(EdlError):
    """The Horovod communicator of one generation."""


class RingBroken(RingError):
    """A collective failed: some member of the ring is gone or has broken it on purpose."""

    def __init__(self, generation: int, detail: str) -> None:
        super().__init__(f"the ring of generation {generation} is broken: {detail}")
        self.generation = generation
        self.detail = detail


class RendezvousFailed(RingError):
    """The ring of a generation could not be built."""

    def __init__(self, generation: int, detail: str) -> None:
        super().__init__(f"the ring of generation {generation} could not be built: {detail}")
        self.generation = generation
        self.detail = detail


class UnevenEnd(RingError):
    """Some workers have left an epoch, or ended their scripts, and others train on."""


class DataError(EdlError):
    """A source, a ledger or a batch is not usable."""


class CheckpointError(EdlError):
    """A checkpoint cannot be written, read, or used by this script."""


class JobError(EdlError):
    """The job as a whole."""


class JobFailed(JobError):
    """The job ended without its result."""


class StateDiffers(JobFailed):
    """Its workers hold different states: at most one of them can be right."""


class NewcomerDiffers(JobError):
    """This worker has joined the job, and its state differs from the others', which train on."""


class JobStopped(JobError):
    """Somebody asked the job to stop."""


class WorkerEvicted(JobError):
    """The leader has given this worker up."""

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(f"worker w{worker} was evicted by the leader: {reason}")
        self.worker = worker
        self.reason = reason


class BuildError(EdlError):
    """Horovod could not be built or patched."""


class IllegalTransition(EdlError):
    """A step was to go a way that no step goes; the message has all that happened to it."""
