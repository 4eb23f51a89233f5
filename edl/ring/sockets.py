"""Find the connections of the ring from outside Horovod, so that they can be cut on purpose.

:class:`RingSockets` records them and cuts them.

A worker that waits for a *living* neighbour in a ring with a dead member waits until Gloo's
time-out of 30 s. ``shutdown(SHUT_RDWR)`` on the ring's sockets frees this worker, and everyone who
waits for it, in milliseconds. Horovod does not tell which sockets it has, so they are recognised:

- they appeared while the ring was built;
- Gloo (transport/tcp/pair.cc) sets SO_REUSEADDR on all its sockets, on connecting ones too, and
  SO_RCVTIMEO on connected ones. Nothing else in a worker does both: kazoo and the HTTP clients set
  neither, and Python's own socket time-outs set no socket option. A connection that our HTTP server
  accepts inherits SO_REUSEADDR only.

While a ring is being built, a worker can also wait in vain for the rendezvous store of a worker
that is frozen or cut off: Horovod's client has no time-out at all. The client's connections to this
store are recognised by their remote port. It is read from the kernel's table, which also lists
connections that are not established yet.

A socket is identified by its inode, which is not used again while the socket is open. So a file
descriptor that was closed and given to another file meanwhile is never touched.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from dataclasses import dataclass

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
        """Whether the socket is a connection that Gloo has made."""
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
        """Forget the recorded sockets without cutting them, because their ring was closed."""
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
    """Return the properties of every TCP socket of this process, by the socket's inode."""
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
    """Return the inodes of all TCP sockets of this network namespace that go to `port`."""
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
    """Return port, state and options of the socket `one`, whose descriptor is `descriptor`."""
    timeout = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.size)
    return SocketRecord(
        descriptor,
        port=one.getsockname()[1],
        listening=bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)),
        reuses_address=bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)),
        receive_timeout=any(_TIMEVAL.unpack(timeout)),
    )


def _shut(descriptor: int, inode: int) -> bool:
    """Cut the TCP connection of a socket with `shutdown()`; the descriptor stays open."""
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
    """Return a duplicate of a socket, which the caller has to close."""
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
