"""Decide what `edl-discover` prints: how many workers horovodrun shall start on each host.

Horovod's driver calls `edl-discover` once a second. The answer is the number of workers that is
desired for the job in ZooKeeper; before there is a job, it is horovodrun's option -np. If ZooKeeper
does not answer, the last answer is repeated: it is kept in a file, one for each driver. Most calls
need not come here: :mod:`~edl.launch.horovodrun.last_answer`. The main entry is
:func:`desired_hosts`.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from edl import config
from edl.config import Config
from edl.coordination.secrets import keep
from edl.core.host.host_discovery import first_desired
from edl.core.sizes import Sizes
from edl.errors import UsageError
from edl.launch.horovodrun.launcher import Launcher, find_launcher

CONNECT_S = 2.0  # the driver waits for us
KEPT = 20  # files of earlier drivers


@dataclass(frozen=True)
class DiscoveryState:
    """The contents of the file that `edl-discover` keeps between its calls by one horovodrun.

    Attributes:
        desired: the number of workers desired on each host, by host, as it was printed last.
        np: the number of workers with which horovodrun was started (its -np).
        min_np: the smallest number of workers that horovodrun allows; ``np`` if it was given none.
        max_np: the largest number of workers that horovodrun was given; None if there is no limit.
        job: the name of the job; empty until it is known.
        secret: the secret of the job; empty until it is known.
        zookeeper: the ZooKeeper servers; empty until they are known.
    """

    desired: Mapping[str, int]
    np: int  # as horovodrun was started, as the next two
    min_np: int
    max_np: int | None
    job: str = ""
    secret: str = ""
    zookeeper: str = ""


def desired_hosts(offered: Mapping[str, int], settings: Config, state: Path) -> Mapping[str, int]:
    """Return the number of workers that are desired on each host, by host.

    The numbers are those of the job's records in ZooKeeper. Before there is a job they follow
    horovodrun's option -np; if ZooKeeper does not answer, they are those of the last call. If no
    horovodrun is an ancestor of this process, the result is a copy of ``offered``, and nothing else
    is done.

    The call stores its answer in ``state`` for the next call. Once the job is known, the call also
    stores the job's secret there, and writes the offered slots into the job's records.

    Args:
        offered: the number of slots by host that the user offers; if empty, localhost offers as
            many slots as horovodrun may start workers.
        settings: the settings of this process: the time-outs for ZooKeeper.
        state: the directory of edl's state, where the last answer is kept.

    Raises:
        UsageError: no host is offered and this process was not started by horovodrun, or the
            options of horovodrun cannot be read.
        OSError: the answer cannot be stored.
    """
    launcher = find_launcher()
    if launcher is None:
        if not offered:
            raise UsageError(
                "no host is offered, and this process was not started by horovodrun; give hosts "
                "as `edl-discover node1:4 node2:4`, or by EDL_HOSTS"
            )
        return dict(offered)
    file = _file(state, launcher)
    memory = _read(file) or _first(offered, launcher)
    if not memory.job and (found := launcher.identity()) is not None:
        name, secret, hosts = found["job"], found["secret"], found["zookeeper"]
        memory = replace(memory, job=name, secret=secret, zookeeper=hosts)
        keep(state, name, secret)
    if memory.job:
        memory = _ask(memory, offered, settings)
    _write(file, memory)
    return memory.desired


def is_local(host: str) -> bool:
    """Return whether a host name resolves to an IPv4 address of this machine.

    The answer is False for a name that cannot be resolved.
    """
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError):  # an empty label, or one of more than 63 characters
        return False
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return address in own


def read_hosts(path: Path) -> list[str]:
    """Return the entries of a hosts file, like "node1:4", in order, without the comments after #.

    ``path`` is the file. Its entries are separated by spaces or newlines; an entry is the name of a
    host and its number of slots, and is not checked here.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hosts file {path}: {error}") from None
    return [word for line in text.splitlines() for word in line.partition("#")[0].split()]


def _first(offered: Mapping[str, int], launcher: Launcher) -> DiscoveryState:
    """Return the state for the first call of `edl-discover` under a horovodrun.

    The desired workers are as many as horovodrun's option -np says, on the offered slots. The job
    is not known yet. Nothing is stored.

    Args:
        offered: the number of slots by host that the user offers; if empty, localhost is used.
        launcher: the process of horovodrun.

    Raises:
        UsageError: the options of horovodrun cannot be read.
    """
    limits = launcher.limits()
    if limits is None:
        raise UsageError(f"the options of {' '.join(launcher.command)} cannot be read")
    discovered = _discovered(offered, limits.max_np or limits.np)
    return DiscoveryState(
        first_desired(discovered, limits.np), limits.np, limits.min_np, limits.max_np
    )


def _discovered(offered: Mapping[str, int], slots: int) -> dict[str, int]:
    """Return a copy of ``offered`` (slots by host); if it is empty, localhost with ``slots``."""
    return dict(offered) or {"localhost": slots}


def _ask(memory: DiscoveryState, offered: Mapping[str, int], settings: Config) -> DiscoveryState:
    """Return ``memory`` with the workers that are desired by the job's records in ZooKeeper.

    If the records say of no host how many workers are desired, the workers of ``memory`` are
    written there, and the limits of horovodrun, too (:func:`_sizes`). If ZooKeeper does not answer
    within 2 s (``CONNECT_S``), or has no such job, ``memory`` is returned unchanged.

    Args:
        memory: the state of the last call of `edl-discover`, with name and secret of the job.
        offered: the number of slots by host that the user offers; they are written into the job's
            records. If empty, localhost is used.
        settings: the settings of this process.
    """
    from edl.coordination.access import Access
    from edl.coordination.job_store import JobStore
    from edl.coordination.session import Session
    from edl.errors import CoordinationError, UnknownJob

    access = Access(memory.job, memory.secret)
    limit = min(settings.connect_timeout_s, CONNECT_S)
    try:
        timeout_s = settings.job_settings.session_timeout_s
        with Session(memory.zookeeper, timeout_s, limit, access) as session:
            slots = _discovered(offered, memory.max_np or memory.np)
            store = JobStore(session, memory.job)
            sizes = _sizes(memory)
            desired = store.discover(slots, memory.desired, sizes.min_np, sizes.max_np)
    except (CoordinationError, UnknownJob):
        return memory
    return replace(memory, desired=desired.hosts)


def _sizes(memory: DiscoveryState) -> Sizes:
    """Return the limits of horovodrun, unless EDL_MIN_NP, EDL_MAX_NP or edl.toml say others.

    Raises:
        ConfigError: these contradict each other, or cannot be used.
    """
    return config.load(defaults={"min_np": memory.min_np, "max_np": memory.max_np}).sizes


def _file(state: Path, launcher: Launcher) -> Path:
    """Return the path of the file with the last answer of `edl-discover` under one horovodrun.

    Its directory is created if it does not exist; the file is not.

    Args:
        state: the directory of edl's state.
        launcher: the process of horovodrun.
    """
    directory = state / "horovodrun"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{launcher.pid}-{launcher.started}.json"


def _read(file: Path) -> DiscoveryState | None:
    """Return the state that the last call of `edl-discover` stored in ``file``.

    The result is None if there is no such file, or it cannot be read or has no valid content.
    """
    try:
        return DiscoveryState(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(file: Path, memory: DiscoveryState) -> None:
    """Store ``memory``, the state for the next call, in ``file``: atomically, with mode 0600.

    Nothing is written if the file has this state already. Before it is written, all but the 20
    (``KEPT``) newest such files in its directory are removed, with the files of
    :mod:`~edl.launch.horovodrun.last_answer` beside them.

    Raises:
        OSError: the file cannot be written.
    """
    if _read(file) == memory:
        return
    for old in sorted(file.parent.glob("*.json"), key=_age)[KEPT:]:
        for suffix in (".json", ".said", ".desired"):
            old.with_suffix(suffix).unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    with os.fdopen(descriptor, "w") as out:
        json.dump(vars(memory), out)
    os.replace(name, file)


def _age(path: Path) -> float:
    """Return minus the modification time of a file, by which the newest file sorts first.

    The time is in seconds since 1970. The result is 0, which sorts last, if the file ``path`` does
    not exist.
    """
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
