"""Decide what `edl-discover` prints: how many workers horovodrun shall start on each host.

The driver calls it once a second. The answer is what is desired for the job in ZooKeeper; before
there is a job, -np; without an answer of ZooKeeper the last one, kept in a file for each driver.
Most calls need not come here: :mod:`~edl.host.horovodrun.last_answer`.
"""

from __future__ import annotations

import contextlib
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
from edl.errors import UsageError
from edl.host.devices import first_desired
from edl.host.horovodrun.driver import Launcher, find_launcher
from edl.spec import Sizes
from edl.zookeeper.access import keep

CONNECT_S = 2.0  # the driver waits for us
KEPT = 20  # files of earlier drivers


@dataclass(frozen=True)
class DiscoveryState:
    desired: Mapping[str, int]  # as it was printed last
    np: int  # as horovodrun was started, as the next two
    min_np: int  # `np` if horovodrun was given none
    max_np: int | None  # None: no limit
    job: str = ""  # empty until it is known, as the next two
    secret: str = ""
    zookeeper: str = ""


def desired_hosts(offered: Mapping[str, int], settings: Config, state: Path) -> Mapping[str, int]:
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
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError):  # an empty label, or one of more than 63 characters
        return False
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return address in own


def read_hosts(path: Path) -> list[str]:
    """Return the entries of a hosts file, like "node1:4", without the comments after #."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hosts file {path}: {error}") from None
    return [word for line in text.splitlines() for word in line.partition("#")[0].split()]


def _sizes(memory: DiscoveryState) -> Sizes:
    return config.load(defaults={"min_np": memory.min_np, "max_np": memory.max_np}).sizes


def _file(state: Path, launcher: Launcher) -> Path:
    directory = state / "horovodrun"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{launcher.pid}-{launcher.started}.json"


def _first(offered: Mapping[str, int], launcher: Launcher) -> DiscoveryState:
    limits = launcher.limits()
    if limits is None:
        raise UsageError(f"the options of {' '.join(launcher.command)} cannot be read")
    discovered = _discovered(offered, limits.max_np or limits.np)
    return DiscoveryState(
        first_desired(discovered, limits.np), limits.np, limits.min_np, limits.max_np
    )


def _discovered(offered: Mapping[str, int], slots: int) -> dict[str, int]:
    return dict(offered) or {"localhost": slots}


def _ask(memory: DiscoveryState, offered: Mapping[str, int], settings: Config) -> DiscoveryState:
    from edl.errors import CoordinationError, UnknownJob
    from edl.zookeeper.access import Access
    from edl.zookeeper.session import Session
    from edl.zookeeper.store import JobStore

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


def _read(file: Path) -> DiscoveryState | None:
    try:
        return DiscoveryState(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(file: Path, memory: DiscoveryState) -> None:
    """Store `memory`, the state for the next call, in `file`: atomically, with mode 0600."""
    if _read(file) == memory:
        return
    changed = {}
    for path in file.parent.glob("*.json"):
        with contextlib.suppress(OSError):  # another call has removed it
            changed[path] = path.stat().st_mtime
    for old in sorted(changed, key=changed.__getitem__, reverse=True)[KEPT:]:
        for suffix in (".json", ".said", ".desired"):
            old.with_suffix(suffix).unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    with os.fdopen(descriptor, "w") as out:
        json.dump(vars(memory), out)
    os.replace(name, file)
