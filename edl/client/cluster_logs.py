"""Read the logs of a cluster's job from all hosts that have some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from edl.client.connection import choose_job
from edl.client.host_logs import BEGINNING, HostLogs, LogPlace
from edl.coordination.access import Access
from edl.coordination.cluster_store import ClusterStore
from edl.core.cluster.log_choice import HostedLog, chosen_logs
from edl.core.events import EndedDetails, Event
from edl.core.host.worker_hosts import worker_hosts
from edl.errors import AccessDenied, CoordinationError, UnknownJob, UsageError

AT_ONCE = 16  # hosts that are asked which logs they have


class ClusterJobLogs:
    """A reader of the logs of a job's workers on all hosts, which remembers how far each was read.

    Args:
        store: the records of the cluster.
        job: the name of the job, which the cluster must have.
        worker: the name of the one worker whose log is read; None: of all.

    Attributes:
        names: the names of all logs of workers that there are, by the last :meth:`look`.
        silent: host -> why it was not read, of the last :meth:`look`.
        tails: worker -> the end of its output, of workers of the last run that have ended.
    """

    def __init__(self, store: ClusterStore, job: str, worker: str | None) -> None:
        access = store.nodes.session.access
        assert access is not None
        self._store = store
        self._access: Access = access
        self._job = store.full_name(job)
        self._signs = store.log_access(job)
        self._worker = worker
        self._hosts: Mapping[str, HostLogs] = {}
        self._logs: list[HostedLog] = []
        self._places: dict[HostedLog, LogPlace] = {}
        self.names: tuple[str, ...] = ()
        self.silent: dict[str, str] = {}
        self.tails: dict[str, str] = {}

    @property
    def found(self) -> bool:
        """Whether the last :meth:`look` has found a log."""
        return bool(self._logs)

    def look(self) -> None:
        """Find out which hosts have which logs; workers and hosts may have come.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        offers = {host.name: host.offer for host in self._store.hosts()}
        self._hosts = {
            name: HostLogs(name, offer, self._signs)
            for name, offer in offers.items()
            if offer is not None
        }
        self.silent = {
            name: f"host {name} offers nothing now" for name, offer in offers.items() if not offer
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            names = dict(pool.map(self._names, self._hosts.values()))
        where, self.tails = self._workers()
        logs = chosen_logs(names, where)
        self.names = tuple(dict.fromkeys(log.name for log in logs))
        self._logs = [log for log in logs if self._worker in (None, log.name)]
        self.silent = {
            host: why
            for host, why in self.silent.items()
            if host in where.values() and self._worker in (None, *_on(where, host))
        }

    def read(self) -> Iterator[tuple[HostedLog, Iterator[bytes]]]:
        """Yield each log, with the parts of it that were written since the last call.

        A host that does not answer any more gets into ``silent``.
        """
        for log in self._logs:
            yield log, self._parts(log)

    def _parts(self, log: HostedLog) -> Iterator[bytes]:
        """Yield the parts of one log that were written since the last call."""
        while log.host not in self.silent:
            place = self._places.get(log, BEGINNING)
            try:
                content, self._places[log] = self._hosts[log.host].part(self._job, log.name, place)
            except UsageError:  # it was removed, as too old
                return
            except CoordinationError as error:
                self.silent[log.host] = str(error)
                return
            if not content:
                return
            yield content

    def _names(self, host: HostLogs) -> tuple[str, tuple[str, ...]]:
        """Return a host's name and those of its logs; note it as silent if it does not answer."""
        try:
            return host.host, tuple(host.names(self._job))
        except CoordinationError as error:
            self.silent[host.host] = str(error)
            return host.host, ()

    def _workers(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the host of each worker of the last run, and the ends of their outputs."""
        session = self._store.nodes.session
        try:
            store = choose_job(session, self._job, secret=self._store.secret(self._job))
            events = [event for _, event in store.events.read()]
            where = worker_hosts(store.snapshot(), events)
        except (UnknownJob, AccessDenied):  # it was never started, or its records were removed
            return {}, {}
        finally:
            session.identify(self._access)
        return where, _tails(events)


def _tails(events: list[Event]) -> dict[str, str]:
    """Return the end of the output of each worker that has ended, by the events of a run."""
    found = {}
    for event in events:
        details = event.details
        if isinstance(details, EndedDetails) and details.worker is not None:
            found[details.worker] = details.output_tail
    return {worker: tail for worker, tail in found.items() if tail}


def _on(where: Mapping[str, str], host: str) -> list[str]:
    """Return the workers that are on ``host``, by ``where``: worker -> host."""
    return [worker for worker, at in where.items() if at == host]
