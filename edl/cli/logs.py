"""`edl logs`: show everything that the workers of a job have written.

Of a job of a cluster it shows the logs of all hosts, which their `edl host` sends; of a job of `edl
run` those on this host.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from edl import config
from edl.cli.common import FOLLOW_S, FollowOption, MaybeClusterOption, ZooKeeperOption
from edl.cli.events import followed
from edl.client.connection import choose_job, connected
from edl.client.waiting import ClientLimits
from edl.cluster.client.access import knows_clusters, store_of_job
from edl.cluster.client.logs import ClusterJobLogs
from edl.cluster.client.waiting import poll_cluster
from edl.cluster.lifecycle import LifeState
from edl.cluster.status import UNSEEN
from edl.cluster.store import ClusterStore
from edl.errors import AccessDenied, CoordinationError, EdlError, UnknownJob, UsageError, some
from edl.host.devices import addresses, worker_hosts
from edl.host.logs import LogReader, named_logs
from edl.host.output import LineBuffer
from edl.host.workers import earlier_runs

POLL_S = 3.0  # between two polls which hosts have which logs
BAR_S = 10.0  # between two states of one progress bar, with --follow
_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 1 << 24  # a longer line is shown in pieces
_WORKER = re.compile(r"w\d+")


def logs(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB] [WORKER]", help="For example: digits w3")
    ] = None,
    follow: FollowOption = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the run before, of the same name.")
    ] = False,
    job_name: Annotated[str | None, typer.Option("--job", metavar="JOB", hidden=True)] = None,
    cluster: MaybeClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show what the workers of a job have written, also those that ended.

    Of a job of a cluster it shows the logs of all hosts; of another job, and with --previous, those
    of this host: if the log is on another one, the command says on which, and ends with 1. Without
    WORKER the lines of all workers are shown, each after the worker's name. Without JOB the job is
    the one whose workers wrote last here.
    """
    jobs = config.state_dir() / "jobs"
    named, worker = _read(words or (), job_name)
    job = named or _newest(jobs)
    directory = jobs / job / "logs"
    if previous:
        runs = earlier_runs(directory)
        if follow:
            raise UsageError("the run before has ended; give one of --previous and --follow")
        if not runs:
            raise UsageError(f"no run of job {job} before the newest has left logs on this host")
        directory = runs[-1]
    here = [*named_logs(directory)]
    is_here = bool(here) and worker in (None, *here)
    if not previous and _show_of_cluster(zookeeper, cluster, job, worker, follow, is_here):
        return
    if not is_here:
        if not previous:  # ZooKeeper knows the newest run of that name only
            has_run = bool(here or earlier_runs(directory))
            _look_elsewhere(zookeeper, cluster, job, worker, here, has_run)
        raise UsageError(_missing(job, worker, here))
    with closing(_LogFiles(directory, worker)) as files:
        if follow:
            with connected(zookeeper) as session:
                of_cluster = store_of_job(session, job, cluster)
                store = choose_job(session, job) if of_cluster is None else None

                def read() -> bool:
                    files.show(finish=False)  # also while ZooKeeper is away
                    if of_cluster is not None:
                        return of_cluster.jobs.get(job).life.state is LifeState.ENDED
                    assert store is not None
                    return store.snapshot().job.state.over

                for is_over in followed(read, session):
                    if is_over:
                        break
        files.show(finish=True)


def _read(words: Sequence[str], job: str | None) -> tuple[str | None, str | None]:
    named = list(words)
    worker = named.pop() if named and _WORKER.fullmatch(named[-1]) else None
    named += [] if job is None else [job]
    if len(named) > 1:
        raise UsageError("edl logs takes a job and a worker, as `edl logs digits w3`")
    return named[0] if named else None, worker


def _show_of_cluster(
    zookeeper: str | None,
    cluster: str | None,
    job: str,
    worker: str | None,
    follow: bool,
    is_here: bool,
) -> bool:
    """Show the logs of a job of a cluster; return False if those on this host are to be shown."""
    if not (cluster or (cluster is None and knows_clusters())):
        return False
    with ExitStack() as stack:
        try:
            session = stack.enter_context(connected(zookeeper))
            store = store_of_job(session, job, cluster)
            if store is None:
                return False
            _check_started(store, job)
            logs = ClusterJobLogs(store, job, worker)
            polled_s = -math.inf

            def read() -> bool:
                nonlocal polled_s
                ended = store.jobs.get(job).life.state is LifeState.ENDED  # before the logs
                if time.monotonic() - polled_s >= POLL_S or ended:
                    logs.poll()
                    polled_s = time.monotonic()
                return ended

            is_over = read()
        except (CoordinationError, AccessDenied, UsageError) as error:
            if cluster or type(error) is UnknownJob:  # of a tenant, which has no others
                raise
            return False
        lines = _Lines(worker is not None)
        _show_new(logs, lines, is_last=is_over or not follow)
        if follow and not is_over:
            _follow(read, job, logs, lines)
    if not logs.found and is_here:
        return False
    _finish(job, worker, logs)
    return True


def _follow(read: Callable[[], bool], job: str, logs: ClusterJobLogs, lines: _Lines) -> None:
    time.sleep(FOLLOW_S)
    try:
        for is_over in poll_cluster(read, None, ClientLimits(poll_s=FOLLOW_S)):
            _show_new(logs, lines, is_last=is_over)
            if is_over:
                return
    except AccessDenied:
        raise
    except UnknownJob:
        _show_new(logs, lines, is_last=True)
        raise EdlError(f"job {job} was deleted while its logs were followed") from None


def _show_new(logs: ClusterJobLogs, lines: _Lines, is_last: bool) -> None:
    for log, parts in logs.read():
        for content in parts:
            lines.show(log.name, log, content)
        if is_last:
            lines.finish(log)
        else:
            lines.show_bar(log)


def _finish(job: str, worker: str | None, logs: ClusterJobLogs) -> None:
    """Show the end of a worker's log that no host has; raise an error if something is missing."""
    if not logs.found and worker in logs.tails:
        for line in logs.tails[worker].splitlines():
            typer.echo(line)
    if logs.silent:
        who = f"{worker} of job {job}" if worker else f"some workers of job {job}"
        why = "; ".join(logs.silent[host] for host in sorted(logs.silent))
        tail = worker is not None and worker in logs.tails and not logs.found
        shown = "; this was the end of it, from the event of its end" if tail else ""
        raise EdlError(f"the log of {who} cannot be read: {why}{shown}")
    if not logs.found:
        who = f"{worker} of job {job}" if worker else f"job {job}"
        others = f"; there are those of {some(logs.names)}" if logs.names else ""
        raise EdlError(f"no host of the cluster has a log of {who}{others}")


class _Lines:
    """A printer of lines of logs, of which the parts come one after another."""

    def __init__(self, is_one: bool) -> None:
        self._is_one = is_one
        self._buffers: dict[Hashable, tuple[str, LineBuffer]] = {}

    def show(self, name: str, log: Hashable, content: bytes) -> None:
        _, buffer = self._buffers.setdefault(log, (name, LineBuffer(_LINE_BYTES)))
        self._echo(name, buffer.add(content))

    def show_bar(self, log: Hashable) -> None:
        if log in self._buffers:
            name, buffer = self._buffers[log]
            self._echo(name, buffer.due_bar(BAR_S))

    def finish(self, log: Hashable) -> None:
        if log in self._buffers:
            name, buffer = self._buffers[log]
            self._echo(name, buffer.finish())

    def _echo(self, name: str, lines: list[str]) -> None:
        for line in lines:
            typer.echo(line if self._is_one else f"[{name}] {line}")


class _LogFiles:
    """A reader of the worker logs in a directory, which remembers how far each was shown."""

    def __init__(self, directory: Path, worker: str | None) -> None:
        self._directory = directory
        self._worker = worker
        self._readers: dict[Path, LogReader] = {}
        self._lines = _Lines(worker is not None)

    def show(self, finish: bool) -> None:
        for name, path in named_logs(self._directory).items():
            if self._worker not in (None, name):
                continue
            if path not in self._readers:
                self._readers[path] = LogReader(path)
            while chunk := self._readers[path].read(_CHUNK_BYTES):
                self._lines.show(name, path, chunk)
            if finish:
                self._lines.finish(path)
            else:
                self._lines.show_bar(path)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def _look_elsewhere(
    zookeeper: str | None,
    cluster: str | None,
    job: str,
    worker: str | None,
    here: Sequence[str],
    has_run: bool,
) -> None:
    """Raise an error that names the host with the log of a worker, if ZooKeeper knows it."""
    try:
        with connected(zookeeper) as session:
            if (of_cluster := store_of_job(session, job, cluster)) is not None:
                _check_started(of_cluster, job)
            store = choose_job(session, job)
            now = store.snapshot()
            known = store.events.read_known()
            hosts = worker_hosts(now, (event for _, event in known))
    except (AccessDenied, CoordinationError) as error:
        missing = _missing(job, worker, here)
        raise EdlError(f"{missing}. Which host has the log is not known: {error}") from error
    except UnknownJob:
        if has_run:  # its records were removed
            return
        raise
    except UsageError:  # no ZooKeeper is known here
        return
    if worker is not None:
        hosts = {name: host for name, host in hosts.items() if name == worker}
    if not hosts:
        return
    known_at = addresses(now)
    at = [f"{h} ({known_at[h]})" if known_at.get(h) else h for h in sorted({*hosts.values()})]
    who = f"{worker} of job {job}" if worker else f"the workers of job {job}"
    where = f"host{'s' if len(at) > 1 else ''} {some(at)}"
    if now.assigned.by_slot:
        raise EdlError(f"{who} ran on {where} under horovodrun: see the output of horovodrun")
    typed = f"{job} {worker}" if worker else job
    raise EdlError(
        f"this host has no log of {who}, which ran on {where}: run `edl logs {typed}` there, as "
        "the user of its `edl run` or `edl join`"
    )


def _check_started(store: ClusterStore, job: str) -> None:
    if not (life := store.jobs.get(job).life).run:
        why = life.reason or UNSEEN
        raise EdlError(f"job {job} has not started yet, so it has no logs: {life.state}, {why}")


def _missing(job: str, worker: str | None, here: Sequence[str]) -> str:
    if worker is not None and here:
        return f"{worker} of job {job} did not run on this host; here: {some(here)}"
    return (
        f"no worker of job {job} has written anything on this host; logs are on the host of the "
        "worker, for the user of `edl run` or `edl join` (under horovodrun its own output has all)"
    )


def _newest(jobs: Path) -> str:
    """Return the name of the job whose workers were the last to write on this host."""
    written = []
    for log in jobs.glob("*/logs/*.log"):
        with suppress(OSError):  # it was removed just now
            written.append((log.stat().st_mtime, log.parent.parent.name))
    if not written:
        raise UsageError("no job has run on this host for this user, or its logs are gone")
    return max(written)[1]
