"""Build Horovod's ring over Gloo: set the environment of ``hvd.init()``, cut connections.

The members of a ring find each other through the rendezvous store (a key-value store over HTTP) in
the daemon of rank 0, see :mod:`edl.ring.rendezvous`. Each generation has its own scope there, an
unguessable prefix of the keys. The main entry is :func:`gloo_ring`, whose ring uses a
:class:`GlooConnection` and a framework's :class:`Binding`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from horovod.common.basics import HorovodBasics

from edl import config, horovod_build
from edl.errors import ConfigError, RendezvousFailed, RingError
from edl.http import client
from edl.records import Generation
from edl.ring.rendezvous import BULK, rendezvous_environment
from edl.ring.ring import CollectiveFailed, Collectives, Ring, WorkerTopology

# ------------------------------------------------------------
# Find the connections of the ring from outside Horovod, so that they can be cut on purpose.
#
# `RingSockets` records them and cuts them.
#
# A worker that waits for a *living* neighbour in a ring with a dead member waits until Gloo's
# time-out of 30 s. `shutdown(SHUT_RDWR)` on the ring's sockets frees this worker, and everyone who
# waits for it, in milliseconds. Horovod does not tell which sockets it has, so they are recognised:
#
# - they appeared while the ring was built;
# - Gloo (transport/tcp/pair.cc) sets SO_REUSEADDR on all its sockets, on connecting ones too, and
#   SO_RCVTIMEO on connected ones. Nothing else in a worker does both: kazoo and the HTTP clients
#   set neither, and Python's own socket time-outs set no socket option. A connection that our HTTP
#   server accepts inherits SO_REUSEADDR only.
#
# While a ring is being built, a worker can also wait in vain for the rendezvous store of a worker
# that is frozen or cut off: Horovod's client has no time-out at all. The client's connections to
# this store are recognised by their remote port. It is read from the kernel's table, which also
# lists connections that are not established yet.
#
# A socket is identified by its inode, which is not used again while the socket is open. So a file
# descriptor that was closed and given to another file meanwhile is never touched.

_TIMEVAL = struct.Struct("@ll")


@dataclass(frozen=True)
class SocketRecord:
    """The properties of one TCP socket of this process at the time of `open_sockets`."""

    descriptor: int
    port: int  # the local port
    listening: bool
    reuses_address: bool  # SO_REUSEADDR
    receive_timeout: bool  # SO_RCVTIMEO is more than 0

    @property
    def of_ring(self) -> bool:
        return self.reuses_address and self.receive_timeout


class RingSockets:
    """The sockets of the current ring, recorded so that any thread can cut them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: frozenset[int] | None = None  # not None: a ring is being built
        self._store_port = 0
        self._ring: frozenset[int] = frozenset()

    def before(self, store_port: int = 0) -> frozenset[int]:
        """Record which TCP sockets exist right before `hvd.init()` builds a ring."""
        with self._lock:
            self._store_port = store_port
            self._before = frozenset(open_sockets())
            self._ring = frozenset()
            return self._before

    def remember(self, before: frozenset[int]) -> None:
        """Record the connections that Gloo has made, after the ring was built."""
        found = open_sockets()
        with self._lock:
            self._before = None
            self._ring = frozenset(
                inode for inode, seen in found.items() if inode not in before and seen.of_ring
            )

    def forget(self) -> None:
        with self._lock:
            self._before, self._ring = None, frozenset()

    def shut(self) -> int:
        """Cut the ring's connections with `shutdown()`, without closing a file descriptor."""
        # While it is built, what Gloo listens on or connects by is cut, so that the build fails at
        # once: new sockets with SO_REUSEADDR, but not those that our HTTP server has accepted (on a
        # port where an older socket listens). New connections to the store are cut, too.
        with self._lock:
            before, ring, store_port = self._before, self._ring, self._store_port
        found = open_sockets()
        doomed = {inode: seen for inode, seen in found.items() if inode in ring}
        if before is not None:
            old = {seen.port for inode, seen in found.items() if inode in before and seen.listening}
            asking = _going_to(store_port) if store_port else frozenset()
            doomed |= {
                inode: seen
                for inode, seen in found.items()
                if inode not in before
                and (inode in asking or (seen.reuses_address and seen.port not in old))
            }
        return sum(_shut(seen.descriptor, inode) for inode, seen in doomed.items())

    def __len__(self) -> int:
        return len(self._ring)


def open_sockets() -> dict[int, SocketRecord]:
    found: dict[int, SocketRecord] = {}
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            one = _duplicate(descriptor, status.st_ino)
        except OSError:
            continue  # closed meanwhile, or the listing's own
        if one is None:
            continue
        with one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                found[status.st_ino] = _look(one, descriptor)
    return found


def _going_to(port: int) -> frozenset[int]:
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as lines:
                next(lines)
                for line in lines:
                    words = line.split()
                    if int(words[2].rpartition(":")[2], 16) == port:
                        found.add(int(words[9]))
        except FileNotFoundError:
            continue  # a kernel without IPv6
    return frozenset(found)


def _look(one: socket.socket, descriptor: int) -> SocketRecord:
    timeout = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.size)
    return SocketRecord(
        descriptor,
        port=one.getsockname()[1],
        listening=bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)),
        reuses_address=bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)),
        receive_timeout=any(_TIMEVAL.unpack(timeout)),
    )


def _shut(descriptor: int, inode: int) -> bool:
    try:
        one = _duplicate(descriptor, inode)
        if one is None:
            return False
        with one:
            one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # not connected any more
    return True


def _duplicate(descriptor: int, inode: int) -> socket.socket | None:
    copy = os.dup(descriptor)
    try:
        # No other thread can close or reuse the copy.
        if os.fstat(copy).st_ino == inode:
            one = socket.socket(fileno=copy)
            copy = -1
            return one
        return None
    finally:
        if copy >= 0:
            os.close(copy)


GO = "edl/go"  # key in a generation's rendezvous scope: its old members are switching now
GO_SLICE_S = 2.0  # how long a newcomer waits for it before it looks for a newer generation
LIBRARIES = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")  # MPI, oneCCL or Gloo
FILES = ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE_LOG")  # rank 0 of each ring writes its own
NO_FILE_YET = "DYNAMIC"  # a timeline that waits for hvd.start_timeline()


class Binding(Collectives, Protocol):
    """The interface of a Horovod binding that a ring uses; only the training thread calls it."""

    def init(self) -> None:
        """Call `hvd.init()`, which builds the ring that the HOROVOD_... variables describe."""

    def shutdown(self) -> None:
        """Leave the ring by `hvd.shutdown()`, which ends it for all members."""


def gloo_ring(binding: Binding, address: str, go_timeout_s: float = 10.0) -> Ring:
    refuse_other_libraries(config.environment())
    return Ring(binding, GlooConnection(binding, address, go_timeout_s))


class GlooConnection:
    """The connections of this worker to the other members of its ring, by Horovod over Gloo."""

    def __init__(self, binding: Binding, address: str, go_timeout_s: float) -> None:
        self._binding = binding
        self._interface = _interface_for(address)
        self._sockets = RingSockets()
        self._go_timeout_s = go_timeout_s

    def open(self, where: WorkerTopology, generation: Generation | None) -> None:
        rendezvous: dict[str, str] = {}
        store_port, user = 0, config.environment()
        if generation is not None and where.size > 1:
            root = generation.members[0]
            store_port = root.port
            rendezvous = rendezvous_environment(root.address, root.port, generation.scope)
        config.set_environment(
            {
                "HOROVOD_RANK": str(where.rank),
                "HOROVOD_SIZE": str(where.size),
                "HOROVOD_LOCAL_RANK": str(where.local_rank),
                "HOROVOD_LOCAL_SIZE": str(where.local_size),
                "HOROVOD_CROSS_RANK": str(where.cross_rank),
                "HOROVOD_CROSS_SIZE": str(where.cross_size),
                # Names the host in rendezvous keys only; a number needs no quoting.
                "HOROVOD_HOSTNAME": f"host{where.host_index}",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": self._interface,
                # Rank and size come from us; Horovod must not ask an elastic driver for them.
                "HOROVOD_ELASTIC": "0",
                # At each death Horovod logs an error, with the path of its source: edl tells of it.
                "HOROVOD_LOG_LEVEL": user.get("HOROVOD_LOG_LEVEL", "fatal"),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": None,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": None,
                BULK: None,
                **rendezvous,
                **files_of_ring(user, generation.number if where.size > 1 and generation else None),
            }
        )
        before = self._sockets.before(store_port)
        try:
            self._binding.init()
        except CollectiveFailed:
            self._binding.shutdown()
            raise
        finally:
            config.set_environment({name: user.get(name) for name in FILES})
        self._sockets.remember(before)
        # Horovod's Python side reads it later: the size may change, and is no constant in a graph.
        config.set_environment({"HOROVOD_ELASTIC": "1"})

    def close(self) -> None:
        self._binding.shutdown()
        self._sockets.forget()

    def cut(self) -> None:
        """Cut the connections to the ring, also while it is built; safe from any thread."""
        self._sockets.shut()

    def announce_switch(self, generation: Generation) -> None:
        root = generation.members[0]
        path = client.rendezvous_path(root.port, generation.scope, GO)
        try:
            client.http_put(root.address, root.port, path, b"go", self._go_timeout_s)
        except ConnectionRefusedError as error:
            raise RendezvousFailed(generation.number, f"w{root.id} is gone: {error}") from error

    def wait_for_announcement(self, generation: Generation) -> bool:
        root = generation.members[0]
        path = client.rendezvous_path(root.port, generation.scope, GO)
        try:
            status, _ = client.fetch(root.address, root.port, path, timeout_s=GO_SLICE_S)
        except (RingError, OSError):
            time.sleep(0.05)
            return False
        return status == 200


def files_of_ring(user: Mapping[str, str], generation: int | None) -> dict[str, str | None]:
    """Return the values of HOROVOD_TIMELINE and HOROVOD_AUTOTUNE_LOG for one ring."""
    # Horovod empties a file that it opens, so each ring has its own: timeline.g3.json. A ring of
    # one worker writes none.
    values: dict[str, str | None] = {}
    for name in FILES:
        file = user.get(name)
        if file and generation is not None and file != NO_FILE_YET:
            path = Path(file)
            file = str(path.with_name(f"{path.stem}.g{generation}{path.suffix}"))
        elif file and generation is None:
            file = NO_FILE_YET if name == "HOROVOD_TIMELINE" else None
        values[name] = file
    return values


def refuse_other_libraries(user: Mapping[str, str]) -> None:
    for name in LIBRARIES:
        library = user.get(name, "")
        if library.lower() not in ("", "gloo"):
            raise ConfigError(
                name,
                f"{name} is {library}, and only a ring of Gloo's can change while a job trains: "
                "unset it",
            )


def _interface_for(address: str) -> str:
    """Return the value of HOROVOD_GLOO_IFACE that makes Gloo use the IPv4 address `address`."""
    # Gloo takes the first address of an interface. A patched Horovod also accepts an address.
    for name, entries in psutil.net_if_addrs().items():
        own = [entry.address for entry in entries if entry.family == socket.AF_INET]
        if address in own and (
            address == own[0] or horovod_build.ADDRESS not in horovod_build.applied()
        ):
            return name
    return address


# ------------------------------------------------------------
# Call Horovod's `init()` for edl (`call_init`); edl's Horovod refuses a script's call.


def call_init(init: Callable[[], Any]) -> None:
    """Call `init`, marked as a call by edl; its exceptions pass through, its result is dropped."""
    setattr(HorovodBasics, horovod_build.EDL_CALLS, True)
    try:
        init()
    finally:
        setattr(HorovodBasics, horovod_build.EDL_CALLS, False)
