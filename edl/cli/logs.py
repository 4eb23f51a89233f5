"""`edl logs`: show everything that the workers of a job on this host have written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from edl import config
from edl.cli.common import FOLLOW_S, MaybeClusterOption, ZooKeeperOption
from edl.client.cluster_access import store_of_job
from edl.client.cluster_waiting import UNSEEN
from edl.client.connection import choose_job, connected
from edl.coordination.session import Session
from edl.core.cluster.job_life import LifeState
from edl.core.host.worker_hosts import addresses, worker_hosts
from edl.core.snapshot import Snapshot
from edl.errors import AccessDenied, CoordinationError, EdlError, UsageError, some
from edl.launch.log_reader import LogReader
from edl.launch.named_logs import named_logs
from edl.launch.workers import earlier_runs

_CHUNK_BYTES = 1 << 20
_WORKER = re.compile(r"w\d+")


def logs(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB] [WORKER]", help="For example: digits w3", show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the run before, of the same name.")
    ] = False,
    cluster: MaybeClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show what workers on this host have written, also those that ended; Horovod's lines included.

    Without WORKER the lines of all workers are shown, each after the worker's name. Without JOB the
    job is the one whose workers wrote last here. If the log is on another host, the command says on
    which, and ends with 1.
    """
    named = list(words or ())
    worker = named.pop() if named and _WORKER.fullmatch(named[-1]) else None
    if len(named) > 1:
        raise UsageError("edl logs takes a job and a worker, as `edl logs digits w3`")
    jobs = config.state_dir() / "jobs"
    job = named[0] if named else _newest(jobs)
    directory = jobs / job / "logs"
    if previous:
        runs = earlier_runs(directory)
        if follow:
            raise UsageError("the run before has ended; give one of --previous and --follow")
        if not runs:
            raise UsageError(f"no run of job {job} before the newest has left logs on this host")
        directory = runs[-1]
    here = [*named_logs(directory)]
    if not here or worker not in (None, *here):
        if not previous:  # ZooKeeper knows the newest run of that name only
            _look_elsewhere(zookeeper, cluster, job, worker, here)
        raise UsageError(_missing(job, worker, here))
    with closing(_LogFiles(directory, worker)) as files:
        if follow:
            with connected(zookeeper) as session:
                is_over = _end(session, job, cluster)
                while not is_over():
                    files.show(finish=False)
                    time.sleep(FOLLOW_S)
        files.show(finish=True)


def _end(session: Session, job: str, cluster: str | None) -> Callable[[], bool]:
    """Return a function that reads from ZooKeeper whether a job has ended, at each call.

    A job of a cluster may have several runs; it has ended when no further one follows.

    Args:
        session: the session to read with.
        job: the name of the job.
        cluster: the name of its cluster, as `--cluster` gives it; None: not given.
    """
    of_cluster = store_of_job(session, job, cluster)
    if of_cluster is not None:
        return lambda: of_cluster.job(job).life.state is LifeState.ENDED
    store = choose_job(session, job)
    return lambda: store.snapshot().job.state.over


class _LogFiles:
    """A reader of the worker logs in a directory, which remembers how far each was shown.

    Args:
        directory: the directory of the logs.
        worker: the name of the one worker whose log is shown; None to show all.
    """

    def __init__(self, directory: Path, worker: str | None) -> None:
        self._directory = directory
        self._worker = worker
        self._readers: dict[Path, LogReader] = {}
        self._rest: dict[Path, bytes] = {}

    def show(self, finish: bool) -> None:
        """Print the complete lines that workers have written since the last call.

        The lines of one worker come after those of another, in the order of their names. Logs that
        are new in the directory are included. If ``finish`` is True, an incomplete last line of
        each log is printed, too.
        """
        for name, path in named_logs(self._directory).items():
            if self._worker not in (None, name):
                continue
            if path not in self._readers:
                self._readers[path] = LogReader(path)
            text = self._rest.pop(path, b"")
            while chunk := self._readers[path].read(_CHUNK_BYTES):
                *lines, text = (text + chunk).split(b"\n")
                self._echo(name, lines)
            if finish and text:
                self._echo(name, [text])
            else:
                self._rest[path] = text

    def close(self) -> None:
        """Close all log files."""
        for reader in self._readers.values():
            reader.close()

    def _echo(self, name: str, lines: list[bytes]) -> None:
        """Print lines of one worker, each after the worker's name if all workers are shown.

        ``name`` is the name of the worker; ``lines`` are lines of its log, without the line breaks.
        """
        for line in lines:
            for shown in line.decode(errors="replace").splitlines() or [""]:
                typer.echo(shown if self._worker else f"[{name}] {shown}")


def _look_elsewhere(
    zookeeper: str | None,
    cluster: str | None,
    job: str,
    worker: str | None,
    here: Sequence[str],
) -> None:
    """Raise an error that names the host with the log of a worker, if ZooKeeper knows it.

    If it knows no such worker or job, or no ZooKeeper is configured, nothing happens.

    Args:
        zookeeper: the ZooKeeper servers, ``host:port,...``; None for the configured ones.
        cluster: the name of the job's cluster, as `--cluster` gives it; None: not given.
        job: the name of the job.
        worker: the name of the worker; None for the logs of all workers.
        here: the names of the workers whose logs are on this host, for the message.

    Raises:
        EdlError: the job is one of a cluster and has not started yet, the log is on another host,
            or the job's records could not be read.
    """
    try:
        with connected(zookeeper) as session:
            _check_started(session, job, cluster)
            store = choose_job(session, job)
            now = store.snapshot()
            hosts = worker_hosts(now, (event for _, event in store.events.read()))
    except (AccessDenied, CoordinationError) as error:
        missing = _missing(job, worker, here)
        raise EdlError(f"{missing}. Which host has the log is not known: {error}") from error
    except UsageError:  # no ZooKeeper or no such job is known here
        return
    if worker is not None:
        hosts = {name: host for name, host in hosts.items() if name == worker}
    if hosts:
        at = [_with_address(host, now) for host in sorted({*hosts.values()})]
        raise EdlError(_elsewhere(job, worker, at, now.assigned.by_slot))


def _check_started(session: Session, job: str, cluster: str | None) -> None:
    """Raise an EdlError if a job of a cluster was never started, so that it has no logs.

    Nothing happens if the job is one of no cluster.

    Args:
        session: the session to read with.
        job: the name of the job.
        cluster: the name of its cluster, as `--cluster` gives it; None: not given.
    """
    store = store_of_job(session, job, cluster)
    if store is not None and not (life := store.job(job).life).run:
        why = life.reason or UNSEEN
        raise EdlError(f"job {job} has not started yet, so it has no logs: {life.state}, {why}")


def _with_address(host: str, now: Snapshot) -> str:
    """Return the name of a host, with its address if ``now`` has it, like "node1 (10.0.0.7)".

    ``now`` has the job's records.
    """
    address = addresses(now).get(host)
    return f"{host} ({address})" if address else host


def _elsewhere(job: str, worker: str | None, hosts: Sequence[str], by_slot: bool) -> str:
    """Return the sentence that says which hosts have the logs, and what to type there.

    Args:
        job: the name of the job.
        worker: the name of the worker; None for the logs of all workers.
        hosts: the names of the hosts, at least one, with their addresses.
        by_slot: whether horovodrun started the job; then the hosts have no logs, and the sentence
            names the output of horovodrun.
    """
    who = f"{worker} of job {job}" if worker else f"the workers of job {job}"
    where = f"host{'s' if len(hosts) > 1 else ''} {some(hosts)}"
    if by_slot:
        return f"{who} ran on {where} under horovodrun: see the output of horovodrun"
    words = f"{job} {worker}" if worker else job
    return (
        f"this host has no log of {who}, which ran on {where}: run `edl logs {words}` there, as "
        "the user of its `edl run` or `edl join`"
    )


def _missing(job: str, worker: str | None, here: Sequence[str]) -> str:
    """Return the sentence that says that a log is not on this host.

    Args:
        job: the name of the job.
        worker: the name of the worker; None for the logs of all workers.
        here: the names of the workers whose logs are on this host.
    """
    if worker is not None and here:
        return f"{worker} of job {job} did not run on this host; here: {some(here)}"
    return (
        f"no worker of job {job} has written anything on this host; logs are on the host of the "
        "worker, for the user of `edl run` or `edl join` (under horovodrun its own output has all)"
    )


def _newest(jobs: Path) -> str:
    """Return the name of the job whose workers were the last to write on this host.

    ``jobs`` is the directory with one subdirectory for each job.

    Raises:
        UsageError: there are no logs of any job.
    """
    written = [(log.stat().st_mtime, log.parent.parent.name) for log in jobs.glob("*/logs/*.log")]
    if not written:
        raise UsageError("no job has run on this host for this user, or its logs are gone")
    return max(written)[1]
