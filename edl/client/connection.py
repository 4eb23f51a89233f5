"""Open the ZooKeeper session and the records of a job that is known by its name.

:func:`connected` and :func:`choose_job` do so. This includes the search for the ZooKeeper servers
and for the job's secret.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import PathLike, fspath
from typing import Generic, Self, TypeVar

from edl import config
from edl.cluster.records import own_name, parsed_word
from edl.errors import AccessDenied, UnknownJob, UsageError, ZooKeeperUnreachable, nearest, some
from edl.records import Job
from edl.status import unreadable_jobs_notes
from edl.zookeeper.access import Access, candidates
from edl.zookeeper.local_server import find_local, known_local, local_trouble
from edl.zookeeper.nodes import job_names, list_jobs, unlock
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore


def open_session(hosts: str, settings: config.Config, access: Access | None = None) -> Session:
    timeout_s = settings.job_settings.session_timeout_s
    return Session(hosts, timeout_s, settings.connect_timeout_s, access)


@contextmanager
def in_session_of_job(store: JobStore) -> Iterator[JobStore]:
    """Yield the records of the same job, in a session with the session time-out of the job."""
    asked, wanted_s = store.session, store.snapshot().job.spec.settings.session_timeout_s
    if asked.session_timeout_s == wanted_s:
        yield store
        return
    with Session(asked.hosts, wanted_s, asked.connect_timeout_s, asked.access) as session:
        yield JobStore(session, store.name)


@contextmanager
def connected(zookeeper: str | None) -> Iterator[Session]:
    """While entered, provide a ZooKeeper session, which has not proved any job's secret yet."""
    settings = config.load(zookeeper=zookeeper)
    hosts = settings.zookeeper or find_local()
    if hosts is None:
        if (ended := known_local()) and (trouble := local_trouble(ended)):
            raise ZooKeeperUnreachable(ended, 0.0, trouble)
        raise UsageError(
            "no ZooKeeper is known: give --zookeeper or EDL_ZOOKEEPER, or start a local one with "
            "`edl zookeeper start`; `edl run` does that by itself"
        )
    with open_session(hosts, settings) as session:
        yield session


def choose_job(
    session: Session, name: str | None, ended: bool = False, secret: str | None = None
) -> JobStore:
    """Return the records of the job `name`, or of the only running job if `name` is None."""
    names = job_names(session)
    given = secret or config.load().secret
    if name is not None and (word := parsed_word(given or "")):
        name = own_name(word[0], name)  # as its tenant may leave the own name out
    # One that does not exist raises an error at the first read.
    store = None if name is None else JobStore(session, name)
    meant = names if name is None else tuple({name} & set(names))
    if store is not None and not meant:
        if ended:
            _check_has_run(session, store.name)
        if parsed_word(given or ""):
            raise UnknownJob(store.name, (), "edl submit")
        if given:  # which of the others does it open? The error names them
            session.identify(*(Access(one, given) for one in nearest(store.name, names)))
        session.identify(*_known(store.name, given))  # it may be created just now
        return store
    known = [access for one in meant for access in _known(one, given)]
    mine = unlock(session, known)
    if name is not None and meant and name not in mine:
        mine = unlock(session, [Access(name, one) for one in _of_cluster(session, name)])
    if store is None:
        unreadable: dict[str, str] = {}
        jobs = list_jobs(session, mine, unreadable.__setitem__)
        store = JobStore(session, _only(jobs, unreadable, len(mine) < len(names), ended))
    elif meant and store.name not in mine:
        what = "is another than those known here" if known else "is not known here"
        raise AccessDenied(
            store.name,
            f"the secret of job {store.name} {what}; give EDL_SECRET, or `edl join --secret-file "
            "FILE`: on the host of `edl run` it is in "
            f"~/.local/state/edl/jobs/{store.name}/secret",
        )
    if store.name in mine:
        session.identify(mine[store.name])
    return store


def _known(job: str, secret: str | None) -> list[Access]:
    return [Access(job, one) for one in candidates(config.state_dir(), job, secret)]


def _of_cluster(session: Session, job: str) -> list[str]:
    from edl.cluster.client.access import knows_clusters, store_of_job  # takes 20 ms

    if not knows_clusters():
        return []
    store = store_of_job(session, job, None)
    secret = None if store is None else store.jobs.secret(job)
    return [] if secret is None else [secret]


def _check_has_run(session: Session, job: str) -> None:
    from edl.cluster.client.access import knows_clusters, store_of_job

    store = store_of_job(session, job, None) if knows_clusters() else None
    if store is not None and store.jobs.has(job):
        from edl.cluster.status import described

        now = described(store.jobs.get(job), store.leader.reasons())
        state = "ended without a run" if now.result else f"is {now.state} and has no run"
        why = f"job {job} {state}: {now.reason}; `edl show {job}` shows more"
        raise UnknownJob(job, reason=why)


def _only(jobs: Sequence[Job], unreadable: Mapping[str, str], others: bool, ended: bool) -> str:
    running = [job for job in jobs if not job.state.over]
    choice = running or (jobs if ended else ())
    if len(choice) == 1:
        return choice[0].name
    if running:
        why = f"{len(running)} jobs are running, name one: {some([job.name for job in running])}"
    elif choice:
        newest = sorted(choice, key=lambda job: job.created, reverse=True)
        names = some([job.name for job in newest])
        why = f"no job is running; name one that has ended: {names}"
    elif others:
        why = (
            "no job whose secret is known here is running; for another one give its name and its "
            "secret, see `edl join --help`"
        )
    else:
        why = "no job is running; start one with `edl run`"
    raise UsageError("; ".join([why, *unreadable_jobs_notes(unreadable)]))


Store = TypeVar("Store")  # the records that a client reads and writes, in an open session


class SessionClient(ABC, Generic[Store]):
    """A client that opens a ZooKeeper session for each call, or one for a whole ``with`` block.

    Subclasses say in :meth:`_connect` what is opened. A client must not be shared between threads.

    Args:
        name: the name of the job or the cluster; None to let the subclass choose one.
        zookeeper: the ZooKeeper servers, "host:port,host:port"; None for the configured ones.
        secret: the secret of the job or the cluster; None for the one in ``secret_file``.
        secret_file: a file, or a pipe, with the secret; None for the configured one.
    """

    def __init__(
        self,
        name: str | None = None,
        zookeeper: str | None = None,
        *,
        secret: str | None = None,
        secret_file: str | PathLike[str] | None = None,
    ) -> None:
        self._name = name
        self._zookeeper = zookeeper
        self._secret = secret
        self._secret_file = None if secret_file is None else fspath(secret_file)
        self._open = ExitStack()
        self._kept: Store | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._open.pop_all())  # what is kept already
            self._kept = stack.enter_context(self._connect())
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session that a ``with`` block, or `submit`, keeps open; without one do nothing.

        Later calls open a session of their own. The job or the cluster goes on.
        """
        self._kept = None
        self._open.close()

    def _keep(self, resources: ExitStack) -> None:
        self._open = resources

    @abstractmethod
    def _connect(self) -> AbstractContextManager[Store]:
        """Return a context manager that provides the records in a new ZooKeeper session."""

    @contextmanager
    def _kept_or(self, opened: AbstractContextManager[Store]) -> Iterator[Store]:
        if self._kept is not None:
            yield self._kept
            return
        with opened as store:
            yield store

    def _given_secret(self) -> str | None:
        if self._secret_file is None:
            return self._secret
        return config.load(secret=self._secret, secret_file=self._secret_file).secret
