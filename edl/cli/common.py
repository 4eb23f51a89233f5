"""What several verbs share: the connection, the choice of the job, the options' texts."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from edl import config
from edl.coordination.access import Access
from edl.coordination.local_server import find_local
from edl.coordination.session import Session
from edl.coordination.store import JobStore, job_names, list_jobs, unlock
from edl.core.facts import Job
from edl.errors import AccessDenied, UsageError
from edl.install import horovod_edits
from edl.launch.secret import candidates

ZooKeeperOption = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,…",
        help="ZooKeeper servers. Default: EDL_ZOOKEEPER, else the local one of this user.",
        show_default=False,
    ),
]
JobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Name of the job; may be left out when one is running.",
        show_default=False,
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option("--host", help="Name of this host in the job.", show_default=False),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Where other hosts reach this one.", show_default=False),
]
InterfaceOption = Annotated[
    str | None,
    typer.Option(
        "--network-interface",
        metavar="NAME",
        help="Through which others reach this host. Default: the one that leads to ZooKeeper.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]

_NAMED = 5  # ended jobs in a message
FOLLOW_S = 0.5  # how often --watch, --follow and waiting verbs look again


def console() -> Console:
    """Standard output; colour on a terminal only."""
    return Console(highlight=False)


def open_session(hosts: str, settings: config.Config, access: Access | None = None) -> Session:
    """A session with the settings' time limits, not yet started."""
    return Session(hosts, settings.session_timeout_s, settings.connect_timeout_s, access)


def check_own_name() -> None:
    """Refuse to start workers that would crash without a word.

    Raises:
        UsageError: this host's name does not resolve, and Horovod needs it to.
    """
    if horovod_edits.ADDRESS in horovod_edits.applied():
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        raise UsageError(
            f"this host's own name, {name}, does not resolve, and the Horovod that is installed "
            "here crashes then; run `edl build-horovod`, which mends that, or add the name to "
            "/etc/hosts"
        ) from None


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
    known = [access for one in meant for access in _known(one, secret or config.load().secret)]
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
        raise UsageError(f"{len(running)} jobs are running, name one: {', '.join(running)}")
    if ended and len(jobs) == 1:
        return jobs[0].name
    if jobs and ended:
        newest = sorted(jobs, key=lambda job: job.created, reverse=True)[:_NAMED]
        names = ", ".join(job.name for job in newest)
        raise UsageError(f"no job is running; name one that has ended: {names}")
    if others:
        names = ", ".join(sorted(others)[:_NAMED])
        raise UsageError(
            f"no job whose secret is known here is running; for another ({names}) give its "
            "secret, see `edl join --help`"
        )
    raise UsageError("no job is running; start one with `edl run`")


def _locked(job: str, tried: bool) -> str:
    what = "is another than those known here" if tried else "is not known here"
    return (
        f"the secret of job {job} {what}; give EDL_SECRET, or `edl join --secret-file FILE`: on "
        f"the host of `edl run` it is in ~/.local/state/edl/jobs/{job}/secret"
    )


def worker_number(text: str) -> int:
    """3 for "w3" and for "3".

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"w?(\d+)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a worker; write w3, or 3 (see `edl status`)")
    return int(match[1])
