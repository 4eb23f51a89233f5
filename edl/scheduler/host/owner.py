"""Say which process owns a host of a cluster, and let one machine have only one for each host."""

from __future__ import annotations

import socket

from edl.coordination.cluster.host_registration import HostOwner
from edl.launch.machine import is_known_dead


class HostLock:
    """A lock that at most one process on this machine holds for a host name, until it ends."""

    def __init__(self, mark: str) -> None:
        # An abstract socket, which the kernel closes with the process. A frozen `edl host` keeps
        # it: otherwise it would end, when it wakes, what its successor has started.
        self._name = f"\0edl-host-{mark}"
        self._socket: socket.socket | None = None

    def take(self) -> bool:
        """Take the lock and return True; return False at once if another process has it."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.bind(self._name)
        except OSError:
            one.close()
            return False
        self._socket = one
        return True


def is_dead(owner: HostOwner) -> bool:
    """Return whether the process that offers a host was on this machine and has ended."""
    return is_known_dead(owner.machine, owner.pid)
