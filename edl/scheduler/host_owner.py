"""Say which process owns a host of a cluster, and let one machine have only one for each host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from edl.coordination.cluster_host import HostOwner


class HostLock:
    """A lock that only one `edl host` of one host has on this machine, until its process ends.

    It is an abstract socket, which the kernel closes with the process. A frozen `edl host` keeps
    it: otherwise it would end, when it wakes, what its successor has started.

    Args:
        mark: the mark of the host's processes.
    """

    def __init__(self, mark: str) -> None:
        self._name = f"\0edl-host-{mark}"
        self._socket: socket.socket | None = None

    def take(self) -> bool:
        """Take the lock; return False if another process has it."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.bind(self._name)
        except OSError:
            one.close()
            return False
        self._socket = one
        return True


def machine_name() -> str:
    """Return a name of this machine since it came up, and of this process's pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
    return f"{socket.gethostname()} ({boot}, {namespace})"


def is_dead(owner: HostOwner) -> bool:
    """Return whether a process that offers a host is known to be dead."""
    return owner.machine == machine_name() and not psutil.pid_exists(owner.pid)
