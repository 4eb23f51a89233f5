"""From the name of a job to its store: which ZooKeeper, which job, which secret."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from edl import config
from edl.coordination.access import Access
from edl.coordination.job_store import JobStore
from edl.coordination.lifecycle import job_names, list_jobs, unlock
from edl.coordination.local_server import find_local
from edl.coordination.secrets import candidates
from edl.coordination.session import Session
from edl.core.records import Job
from edl.errors import AccessDenied, UsageError, first


def open_session(hosts: str, settings: config.Config, access: Access | None = None) -> Session:
    """Return a session with the time limits of ``settings``, not yet started."""
    timeout_s = settings.job_settings.session_timeout_s
    return Session(hosts, timeout_s, settings.connect_timeout_s, access)


@contextmanager
def in_session_of_job(store: JobStore) -> Iterator[JobStore]:
    """Yield the same job in a session that lasts as long as the job's setting says.

    The session of ``store`` was opened before the job could be read. It serves, if it asked
    ZooKeeper for that time-out; else another session is opened until the end of the block.

    Raises:
        UnknownJob: the job does not exist.
        AccessDenied: the session of ``store`` has not proved the job's secret.
        CoordinationError: ZooKeeper is away.
    """
    asked, wanted_s = store.session, store.snapshot().job.spec.settings.session_timeout_s
    if asked.session_timeout_s == wanted_s:
        yield store
        return
    with Session(asked.hosts, wanted_s, asked.connect_timeout_s, asked.access) as session:
        yield JobStore(session, store.name)


@contextmanager
def connected(zookeeper: str | None) -> Iterator[Session]:
    """A session with the ZooKeeper that the user means.

    Raises:
        UsageError: none is configured and no local one runs.
        ZooKeeperUnreachable: it does not answer.
    """
    settings = config.load(zookeeper=zookeeper)
    hosts = settings.zookeeper or find_local()
    if hosts is None:
        raise UsageError(
            "no ZooKeeper is known: give --zookeeper or EDL_ZOOKEEPER, or start a local one with "
            "`edl zookeeper start`; `edl run` does that by itself"
        )
    with open_session(hosts, settings) as session:
        yield session


def choose_job(
    session: Session, name: str | None, ended: bool = False, secret: str | None = None
) -> JobStore:
    """The job of that name, or the only one that runs; with ``ended`` also the only one.

    The session then belongs to that job: it proves to know its secret, which is ``secret``,
    EDL_SECRET, or kept by this user.

    Raises:
        AccessDenied: the secret is not known here.
        UsageError: none or several could be meant. An unknown name is found out by its reader.
    """
    names = job_names(session)
    store = None if name is None else JobStore(session, name)
    meant = names if name is None else tuple({name} & set(names))
    given = secret or config.load().secret
    if store is not None and not meant:
        session.identify(*_known(store.name, given))  # somebody may create it just now
        return store
    known = [access for one in meant for access in _known(one, given)]
    mine = unlock(session, known)
    if store is None:
        store = JobStore(session, _only(list_jobs(session, mine), set(names) - set(mine), ended))
    elif meant and store.name not in mine:
        raise AccessDenied(store.name, _locked(store.name, bool(known)))
    if store.name in mine:
        session.identify(mine[store.name])
    return store


def _known(job: str, secret: str | None) -> list[Access]:
    return [Access(job, one) for one in candidates(config.state_dir(), job, secret)]


def _only(jobs: Sequence[Job], others: Collection[str], ended: bool) -> str:
    running = [job.name for job in jobs if not job.state.over]
    if len(running) == 1:
        return running[0]
    if running:
        raise UsageError(f"{len(running)} jobs are running, name one: {first(running)}")
    if ended and len(jobs) == 1:
        return jobs[0].name
    if jobs and ended:
        newest = sorted(jobs, key=lambda job: job.created, reverse=True)
        names = first([job.name for job in newest])
        raise UsageError(f"no job is running; name one that has ended: {names}")
    if others:
        raise UsageError(
            f"no job whose secret is known here is running; for another ({first(sorted(others))}) "
            "give its "
            "secret, see `edl join --help`"
        )
    raise UsageError("no job is running; start one with `edl run`")


def _locked(job: str, tried: bool) -> str:
    what = "is another than those known here" if tried else "is not known here"
    return (
        f"the secret of job {job} {what}; give EDL_SECRET, or `edl join --secret-file FILE`: on "
        f"the host of `edl run` it is in ~/.local/state/edl/jobs/{job}/secret"
    )
