"""Mark, find and signal the processes of a cluster's jobs on this host.

`edl host` gives each agent the environment variable ``EDL_CLUSTER_RUN``, which the agent's workers
inherit, and so do the processes that they start: ``MARK/JOB/RUN``. The mark is made of the
cluster's secret and the names of the cluster and the host, so that neither another cluster nor
another host that shares this machine has the same one. It reveals nothing. What a process shows of
its environment in ``/proc`` is all that is needed to find it again: `edl host` keeps no list.

A process that a user's script starts with an emptied environment is not found, unless it belongs to
the process group of a worker. Nor is a process that overwrites the memory of its environment,
from which SPT_NOENV keeps setproctitle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from edl.core.cluster.host_jobs import ProcessSignal, RunProcess
from edl.core.cluster.records import HostAssignment
from edl.keys import derived
from edl.scheduler.host.job_users import NO_USERS, JobUsers

logger = logging.getLogger(__name__)

RUN_VARIABLE = "EDL_CLUSTER_RUN"
_MARK_LENGTH = 32
_STARTED = 19  # in /proc/PID/stat, after the name: in ticks since the machine came up
_PROC = Path("/proc")


def host_mark(secret: str, cluster: str, host: str) -> str:
    """Return the mark of all processes that `edl host` keeps for one host of one cluster."""
    return derived(secret, "processes", f"{cluster}/{host}")[:_MARK_LENGTH]


def run_mark(mark: str, job: str, run: str) -> str:
    """Return the value of `EDL_CLUSTER_RUN` of the processes of a run."""
    return f"{mark}/{job}/{run}"


def agent_words(job: str, run: str) -> tuple[str, ...]:
    """Return the words that follow each other in the command line of every agent of a run."""
    return ("agent", "--job", job, "--run", run)


def find_processes(mark: str, users: JobUsers = NO_USERS) -> tuple[RunProcess, ...]:
    """Return the living processes with `mark`, ordered by pid."""
    found = []
    wanted = f"{RUN_VARIABLE}={mark}/".encode()
    for name in os.listdir(_PROC):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to another user
                environment = (_PROC / name / "environ").read_bytes()
                if wanted in environment and (one := _process(int(name), environment, mark)):
                    # others could give their processes the same environment
                    user = users.find(one.job)
                    if user is None or (_PROC / name).stat().st_uid == user.uid:
                        found.append(one)
    return tuple(sorted(found, key=lambda one: one.pid))


def find_surely(
    find: Callable[[], Sequence[RunProcess]], assigned: HostAssignment
) -> tuple[RunProcess, ...]:
    """Return the living processes of a host; look twice before a run that ends has none."""
    found = find()
    living = {one.of_run for one in found}
    if any(e.ends and (job, e.run) not in living for job, e in assigned.jobs.items()):
        # One that a dying process has just started may be missed once, and one that only the first
        # look has found may have started another one.
        both = {one.identity: one for one in (*found, *find())}
        found = sorted(both.values(), key=lambda one: one.identity)
    return tuple(found)


def start_of(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the machine came up."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")  # a name may be cut anywhere
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[_STARTED])


def signal_process(order: ProcessSignal) -> None:
    """Send SIGTERM or SIGKILL to a process, unless it has ended."""
    process = order.process
    if start_of(process.pid) != process.started:
        return  # its pid may belong to another process by now
    number = signal.SIGKILL if order.kill else signal.SIGTERM
    what = "agent" if process.is_agent else "process"
    logger.info(
        "%s for %s %d of job %s: %s", number.name, what, process.pid, process.job, order.reason
    )
    with contextlib.suppress(ProcessLookupError):
        # a whole group, but SIGTERM for an agent is for it alone
        alone = process.is_agent and not order.kill
        if not alone and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)


def _process(pid: int, environment: bytes, mark: str) -> RunProcess | None:
    """Return the process `pid` as one of a job's run; None if it belongs to no run of this host."""
    values = dict(
        pair.split(b"=", 1) for pair in environment.split(b"\0") if pair.startswith(b"EDL_")
    )
    parts = os.fsdecode(values.get(RUN_VARIABLE.encode(), b"")).split("/")
    started = start_of(pid)
    if started is None or len(parts) != 3 or parts[0] != mark:
        return None
    _, job, run = parts
    attempt_id = os.fsdecode(values.get(b"EDL_ATTEMPT_ID", b""))
    is_agent = not attempt_id and _has_words(pid, agent_words(job, run))
    return RunProcess(pid, started, job, run, attempt_id, is_agent)


def _has_words(pid: int, words: Sequence[str]) -> bool:
    line = (_PROC / str(pid) / "cmdline").read_bytes()
    return b"\0" + b"\0".join(word.encode() for word in words) + b"\0" in b"\0" + line
