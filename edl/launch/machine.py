"""Name this machine, and say whether a process that once ran on it is known to be dead."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil


def machine_name() -> str:
    """Return a text by which two processes know whether they see the same process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
    return f"{socket.gethostname()} ({boot}, {namespace})"


def is_known_dead(machine: str, pid: int) -> bool:
    """Return whether a process was on this machine (`machine_name`), and no process has its pid."""
    return machine == machine_name() and not psutil.pid_exists(pid)
