"""What `edl-discover` prints: how many workers horovodrun shall start on which host, now.

Horovod's driver calls it once a second. They are what is desired of the job, in ZooKeeper; before
there is a job, what horovodrun was started with. Whatever cannot be asked now is answered as
before: the last answer is kept in a file, one a driver.
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

from edl.config import Config
from edl.coordination.secrets import keep
from edl.core.host.host_discovery import first_desired
from edl.errors import UsageError
from edl.launch.horovodrun.launcher import Launcher, find_launcher

CONNECT_S = 2.0  # the driver waits for us
KEPT = 20  # files of earlier drivers


@dataclass(frozen=True)
class Memory:
    """What one call leaves to the next."""

    desired: Mapping[str, int]
    np: int  # as horovodrun was started, as the next two
    min_np: int
    max_np: int | None
    job: str = ""
    secret: str = ""
    zookeeper: str = ""


def desired_hosts(offered: Mapping[str, int], settings: Config, state: Path) -> Mapping[str, int]:
    """The workers wanted on each host, of those ``offered`` (empty: as many here as -np may be).

    Raises:
        UsageError: nothing is offered, and it is not known how many there should be.
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
    """Whether a host name means this machine."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return address in own


def read_hosts(path: Path) -> list[str]:
    """The words of a hosts file: one "name:slots" a line; # begins a comment.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hosts file {path}: {error}") from None
    return [word for line in text.splitlines() for word in line.partition("#")[0].split()]


def _first(offered: Mapping[str, int], launcher: Launcher) -> Memory:
    limits = launcher.limits()
    if limits is None:
        raise UsageError(f"the options of {' '.join(launcher.command)} cannot be read")
    discovered = _discovered(offered, limits.max_np or limits.np)
    return Memory(first_desired(discovered, limits.np), limits.np, limits.min_np, limits.max_np)


def _discovered(offered: Mapping[str, int], slots: int) -> dict[str, int]:
    return dict(offered) or {"localhost": slots}


def _ask(memory: Memory, offered: Mapping[str, int], settings: Config) -> Memory:
    """What the job in ZooKeeper says; ``memory`` as it is, while that does not answer."""
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
            desired = store.discover(slots, memory.desired, memory.min_np, memory.max_np)
    except (CoordinationError, UnknownJob):
        return memory
    return replace(memory, desired=desired.hosts)


def _file(state: Path, launcher: Launcher) -> Path:
    directory = state / "horovodrun"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{launcher.pid}-{launcher.started}.json"


def _read(file: Path) -> Memory | None:
    try:
        return Memory(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(file: Path, memory: Memory) -> None:
    """Readable for this user only (mkstemp: 0600), and whole at any instant."""
    if _read(file) == memory:
        return
    for old in sorted(file.parent.glob("*.json"), key=_age)[KEPT:]:
        old.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    with os.fdopen(descriptor, "w") as out:
        json.dump(vars(memory), out)
    os.replace(name, file)


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
