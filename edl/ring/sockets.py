"""The connections of the ring, found from outside Horovod, so that it can be broken on purpose.

A worker that waits for a *living* neighbour in a ring with a dead member sits there until Gloo's
time-out of 30 s. ``shutdown(SHUT_RDWR)`` on the ring's sockets frees it, and everybody behind it,
in milliseconds. Horovod does not tell its sockets, so they are recognised:

- they appeared while the ring was built;
- Gloo (transport/tcp/pair.cc) sets SO_REUSEADDR on all its sockets, on connecting ones too, and
  SO_RCVTIMEO on connected ones. Nothing else in a worker does both: kazoo and the HTTP clients set
  neither, and Python keeps its time-outs to itself. What our own HTTP server accepts inherits
  SO_REUSEADDR only.

While a ring is being built, the one other thing to wait in vain for is the rendezvous store of a
worker that is frozen or cut off: Horovod's client has no time-out at all. Its connections are told
by the store's port, which they go to (or are still trying to: a connection under way has no peer
yet, so the kernel's table is read).

A socket is identified by its inode, which is not used again while the socket is open, so a file
descriptor that was closed and given to somebody else meanwhile is never touched.
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
class Seen:
    """A TCP socket of this process, as it was when we looked."""

    descriptor: int
    port: int  # the local one
    listening: bool
    reuses_address: bool
    receive_timeout: bool

    @property
    def of_ring(self) -> bool:
        """A connection that Gloo has made."""
        return self.reuses_address and self.receive_timeout


class RingSockets:
    """The sockets of one ring: ``before()`` its build, ``remember()`` after it, then ``shut()``.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: frozenset[int] | None = None  # not None: a ring is being built
        self._store_port = 0
        self._ring: frozenset[int] = frozenset()

    def before(self, store_port: int = 0) -> frozenset[int]:
        """The inodes of all TCP sockets of this process; call it just before hvd.init().

        ``store_port``: where the rendezvous store listens, on whichever host; 0: nowhere.
        """
        with self._lock:
            self._store_port = store_port
            self._before = frozenset(open_sockets())
            self._ring = frozenset()
            return self._before

    def remember(self, before: frozenset[int]) -> None:
        """Keep the connections of the ring that was built since ``before``."""
        found = open_sockets()
        with self._lock:
            self._before = None
            self._ring = frozenset(
                inode for inode, seen in found.items() if inode not in before and seen.of_ring
            )

    def forget(self) -> None:
        """The ring was closed; nothing is left to shut."""
        with self._lock:
            self._before, self._ring = None, frozenset()

    def shut(self) -> int:
        """Cut the ring's connections; how many there were. No descriptor is closed.

        While the ring is being built, what Gloo listens on and is connecting is cut as well, so
        that the build fails now: new sockets with SO_REUSEADDR whose port no older socket of
        this process listens on, as it does for what our HTTP server accepts. So are new
        connections to the rendezvous store.
        """
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


def open_sockets() -> dict[int, Seen]:
    """Every TCP socket of this process, by inode."""
    found: dict[int, Seen] = {}
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
    """Inodes of this machine's TCP sockets whose other end is ``port``, connected or not yet."""
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


def _look(one: socket.socket, descriptor: int) -> Seen:
    timeout = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.size)
    return Seen(
        descriptor,
        port=one.getsockname()[1],
        listening=bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)),
        reuses_address=bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)),
        receive_timeout=any(_TIMEVAL.unpack(timeout)),
    )


def _shut(descriptor: int, inode: int) -> bool:
    """Cut the connection behind a descriptor, if it is still that one's."""
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
    """A duplicate of a socket; None if the descriptor belongs to another one by now.

    The check is made on the duplicate: that one cannot be closed and given away under us.

    Raises:
        OSError: the descriptor is closed, or is no socket.
    """
    copy = os.dup(descriptor)
    try:
        if os.fstat(copy).st_ino == inode:
            one = socket.socket(fileno=copy)
            copy = -1
            return one
        return None
    finally:
        if copy >= 0:
            os.close(copy)
