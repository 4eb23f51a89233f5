"""Define every error that edl raises on purpose, in one tree.

::

    EdlError
    ├── UsageError              the caller asked for something impossible; nothing was changed
    │   ├── ConfigError         a setting has no usable value
    │   ├── ManifestError       a job manifest cannot be read, or asks for something impossible
    │   ├── UnknownCluster      there is no such cluster in ZooKeeper
    │   ├── UnsupportedFormat   the records of a cluster are of an edl that writes other ones
    │   ├── UnknownJob          there is no such job in ZooKeeper
    │   │   └── AccessDenied    this process does not know the secret of the job
    │   ├── JobExists           a running job has this name already
    │   ├── RunEnded            the run of a job that an agent was to join is over
    │   └── AgentExists         another agent has the name of this host
    ├── CoordinationError       ZooKeeper did not do what was asked
    │   ├── ZooKeeperUnreachable  no ZooKeeper server answered in time
    │   ├── LeadershipLost      a write of a leader whose term is over was refused
    │   ├── PartlyRemoved       a job has so many nodes that only a part of them was removed
    │   ├── NotRemovable        a job has nodes that only ZooKeeper's administrator can remove
    │   └── HostTaken           another process offers this host to the cluster now
    ├── RequestError            a running job did not do what was asked
    │   ├── TimedOut            the request was not fulfilled by its deadline
    │   ├── JobEnded            the job ended before it fulfilled the request
    │   ├── HostLost            the host that workers were to move to has no agent any more
    │   └── Superseded          a later change has replaced the request
    ├── RingError               the Horovod communicator of a generation failed
    │   ├── RingBroken          a collective failed: a member of the ring is gone
    │   ├── RendezvousFailed    a ring could not be built
    │   └── MismatchedEnd           some workers have left a loop, or ended, and others train on
    ├── DataError               a source, a ledger or a batch is not usable
    ├── CheckpointError         a checkpoint cannot be written, read or used here
    ├── JobError                the job as a whole has ended, or ends for this worker
    │   ├── JobFailed           the job ended without its result
    │   │   └── StateDiffers    the workers of the job hold different states
    │   ├── NewcomerDiffers     a newcomer differs from the others, which train on without it
    │   │   ├── StepsBack       it joins again at the start of an epoch
    │   │   └── JobTrained     the others have trained the job to its end
    │   ├── JobStopped          the job was asked to stop, and has no result
    │   └── WorkerEvicted       the leader has evicted this worker
    ├── BuildError              Horovod could not be built or patched
    └── IllegalTransition       a step was to move to a state that its present state does not allow

Catch :class:`EdlError` to catch them all. Messages say what happened, with the numbers, and what to
do next; the CLI prints them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

FEW = 5  # names in one message
NO_PROGRAM_EXIT = 127  # a shell's exit status for a program that is not there, or may not be run
ALREADY_HERE_EXIT = 95  # of an agent on a host that has another one of its job
REFUSED_EXIT = 78  # sysexits.h: of a script that no other start of the same command would help
AGAIN_EXIT = 75  # sysexits.h: of a newcomer whose next start joins at the start of an epoch


class EdlError(Exception):
    """The base of all errors that edl raises on purpose; its text says what to do next."""


class UsageError(EdlError):
    """The caller asked for something impossible: a mistake in a call, a command or a setting.

    Nothing was changed.
    """


class ConfigError(UsageError):
    """A setting has no usable value.

    Args:
        setting: the name of the setting, such as ``secret``.
        message: what is wrong with it, and what to do next.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


class ManifestError(UsageError):
    """A job manifest cannot be read, or asks for something impossible.

    Args:
        source: the name of the file; empty for a manifest that a program has made.
        line: the line of the file that is wrong, from 1; 0: no one line is.
        message: what is wrong with it, and what to do next.
        key: the key that is wrong, such as "batch.min"; empty: no one key is.
    """

    def __init__(self, source: str, line: int, message: str, key: str = "") -> None:
        place = f"{source}:{line}" if line else source
        super().__init__(f"{place}: {message}" if place else message)
        self.source = source
        self.line = line
        self.key = key


def some(names: Sequence[str]) -> str:
    """Return a text with the first 5 of ``names`` and the number of the others: "a, b and 7 more".

    Up to 5 names are listed without a number; without names the text is empty.
    """
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """Return the 5 of ``names`` that are most like ``name``, the likest first.

    With 5 names or fewer, all are returned, however unlike they are.
    """
    return get_close_matches(name, names, n=FEW, cutoff=0.0)


def _known(name: str, known: Sequence[str], what: str, none: str) -> str:
    near = nearest(name, known) if len(known) > FEW else known
    which = f"the nearest of {len(known)}" if len(known) > FEW else f"known {what}"
    return f"; {which}: {', '.join(near)}" if known else f"; {none}"


class UnknownCluster(UsageError):
    """ZooKeeper has no cluster of the name that a command or program has given.

    Args:
        cluster: the name that was given.
        known: the names of the clusters that there are, for the message.
    """

    def __init__(self, cluster: str, known: Sequence[str] = ()) -> None:
        hint = _known(cluster, known, "clusters", "start one with `edl cluster start`")
        super().__init__(f"there is no cluster named {cluster!r}{hint}")
        self.cluster = cluster
        self.known = tuple(known)


class UnsupportedFormat(UsageError):
    """The records of a cluster have a format that this version of edl does not read and write."""


class UnknownJob(UsageError):
    """There is no job of this name in ZooKeeper, or a new job has taken the name of the job meant.

    ``job`` is the name asked for. ``known`` are the names of the jobs that there are and that this
    process can open; if it contains ``job``, the message says that a new job has taken the name.
    ``start`` is the command that starts a job, for the message. ``reason`` is the message of a job
    that has no run yet.
    """

    def __init__(
        self, job: str, known: tuple[str, ...] = (), start: str = "edl run", reason: str = ""
    ) -> None:
        hint = _known(job, known, "jobs", f"start one with `{start}`")
        gone = f"job {job!r} is over, and a new one of that name has taken its place"
        unknown = gone if job in known else f"there is no job named {job!r}{hint}"
        super().__init__(reason or unknown)
        self.job = job
        self.known = known


class AccessDenied(UnknownJob):
    """This process does not know the secret of a job that it was to read or write.

    Args:
        job: the name of the job.
        message: what was refused, and what to do next.
    """

    def __init__(self, job: str, message: str) -> None:
        UsageError.__init__(self, message)
        self.job = job


class JobExists(UsageError):
    """A new job cannot have the name ``job``, because a running job has it.

    Args:
        job: the name of the job, running and new.
        processes: the names of the running job's agents and workers, for the message only.
        session_timeout_s: for how many seconds ``processes`` may count as alive after their end,
            for the message only; None if they have answered, so they live.
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
            f"a job named {job!r} is already running ({some(processes)}); choose "
            f"another --job, or end it with `edl stop {job}`{killed}"
        )
        self.job = job


class RunEnded(UsageError):
    """The run (one start of a job) that an agent was to join is over, so no agent can join it.

    The message says why.
    """


class AgentExists(UsageError):
    """Another agent is registered with the job under the name of this host.

    Args:
        host: the name of the host.
        job: the name of the job.
        pid: the process id of the other agent.
        address: the address of the other agent.
    """

    def __init__(self, host: str, job: str, pid: int, address: str) -> None:
        super().__init__(
            f"host {host!r} of job {job} belongs to another agent, process {pid} at {address}; "
            "choose another --host, or, if that agent has just died, wait until its session ends"
        )
        self.host = host
        self.job = job


class CoordinationError(EdlError):
    """ZooKeeper did not do what was asked: it cannot be reached, or it refused a write."""


class ZooKeeperUnreachable(CoordinationError):
    """No ZooKeeper server answered in time.

    Args:
        hosts: the servers, "host:port,...".
        timeout_s: how long they were waited for, in seconds; 0: they were not asked.
        trouble: what is known to be wrong, and what to do, as a sentence; empty: nothing is known.
    """

    def __init__(self, hosts: str, timeout_s: float, trouble: str = "") -> None:
        super().__init__(
            f"no ZooKeeper answers at {hosts}. {trouble.removesuffix('.')}"
            if trouble
            else f"no ZooKeeper answered at {hosts} within {timeout_s:g} s; check --zookeeper / "
            "EDL_ZOOKEEPER, or start a local one with `edl zookeeper start`"
        )
        self.hosts = hosts
        self.timeout_s = timeout_s


class LeadershipLost(CoordinationError):
    """A leader's write was refused, because the term with the number ``term`` is over (fencing).

    Nothing was written. Another worker may lead now.
    """

    def __init__(self, term: int) -> None:
        super().__init__(f"the leader of term {term} has ended; its write was refused")
        self.term = term


class PartlyRemoved(CoordinationError):
    """The job ``job``, whose code is not trusted, has so many nodes that a part was removed.

    The same call again goes on.
    """

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job} has so many nodes that they are removed part by part")
        self.job = job


class NotRemovable(CoordinationError):
    """A job has nodes in ZooKeeper that edl cannot remove; the same call again does not help.

    Args:
        job: the name of the job.
        root: the path of its uppermost node.
        why: what a node below has or is, as the end of a sentence about it.
    """

    def __init__(self, job: str, root: str, why: str) -> None:
        super().__init__(
            f"job {job} cannot be removed from ZooKeeper: a node below {root} {why}. Remove {root} "
            "as ZooKeeper's administrator, with `deleteall` of its zkCli.sh"
        )
        self.job = job


class HostTaken(CoordinationError):
    """Another process has registered this host in the cluster, so this one may write no more.

    Args:
        host: the name of the host.
        message: which process that is, and what to do next.
    """

    def __init__(self, host: str, message: str) -> None:
        super().__init__(message)
        self.host = host


class RequestError(EdlError):
    """A running job did not do what was asked, such as to change its number of workers.

    Args:
        job: the name of the job.
        message: what was not done, and the present state of the job, or what has changed.
    """

    def __init__(self, job: str, message: str) -> None:
        super().__init__(message)
        self.job = job


class TimedOut(RequestError):
    """A request to a running job was not fulfilled by its deadline."""


class JobEnded(RequestError):
    """The job ended before it fulfilled a request."""


class HostLost(RequestError):
    """The host that workers were to move to has no agent any more.

    Workers that were not moved yet stay where they are.
    """


class Superseded(RequestError):
    """A later change has replaced this request before it was fulfilled, and stays in force.

    Such a change is a request for other workers, a host or worker that has joined or left, or
    another profile of the job (`edl profile`).
    """


class RingError(EdlError):
    """The Horovod communicator of one generation failed, or its workers disagree about a step.

    It is also raised if a worker cannot open the port at which the other workers reach it.
    """


class RingBroken(RingError):
    """A collective failed, because a member of the ring is gone or has broken the ring on purpose.

    edl catches it and repairs the ring with the survivors.

    Args:
        generation: the number of the ring's generation.
        detail: why it failed, as a clause for the message.
        gone: the ids of newcomers that left it as all have agreed; nobody waits for their end.
    """

    def __init__(self, generation: int, detail: str, gone: tuple[int, ...] = ()) -> None:
        super().__init__(f"the ring of generation {generation} is broken: {detail}")
        self.generation = generation
        self.detail = detail
        self.gone = gone


class RendezvousFailed(RingError):
    """The ring of a generation could not be built.

    Args:
        generation: the number of the generation.
        detail: the cause.
    """

    def __init__(self, generation: int, detail: str) -> None:
        super().__init__(f"the ring of generation {generation} could not be built: {detail}")
        self.generation = generation
        self.detail = detail


class MismatchedEnd(RingError):
    """Some workers have left an epoch, or ended their scripts, and others train on.

    The workers see it in their step records before they apply a gradient; the job then fails.
    """


class DataError(EdlError):
    """Data cannot be used: files are missing or damaged, or a source, ledger or batch is wrong."""


class CheckpointError(EdlError):
    """A checkpoint cannot be written, read, or used by this script."""


class JobError(EdlError):
    """The job as a whole has ended, or has ended for this worker, which trains no more."""


class JobFailed(JobError):
    """The job has failed: it ends, or has ended, before its training is complete."""


class StateDiffers(JobFailed):
    """The workers of the job hold different states, of which at most one can be right: it ends."""


class NewcomerDiffers(JobError):
    """A newcomer ends alone: its state, data or script differ from those of the others.

    Attributes:
        exit_code: the exit code of the newcomer's process.
    """

    exit_code = REFUSED_EXIT


class StepsBack(NewcomerDiffers):
    """A newcomer ends alone, and its replacement joins at the start of an epoch."""

    exit_code = AGAIN_EXIT


class JobTrained(NewcomerDiffers):
    """A newcomer ends with steps left, for the others have trained the job to its end."""

    exit_code = 0


class JobStopped(JobError):
    """The job has ended because it was asked to stop, so ``edl.run`` has no results."""


class WorkerEvicted(JobError):
    """The leader has evicted this worker from the job, or the worker's job is gone.

    Args:
        worker: the id of the worker.
        reason: why it was evicted.
    """

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(f"worker w{worker} was evicted by the leader: {reason}")
        self.worker = worker
        self.reason = reason


class BuildError(EdlError):
    """The Horovod that edl needs could not be built or patched; the message says why."""


class IllegalTransition(EdlError):
    """A training step was to enter a state that its present state does not allow.

    It shows a defect of edl, and training ends. The message has the history of the step.
    """
