"""A network namespace for systems that listen at all addresses of a machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence

import psutil

from benchmarks.jobs import BenchmarkError


class NetworkNamespace:
    """A network with a loopback interface and nothing else; needs root and iproute2.

    Args:
        name: its name; it must be unique on the machine.

    Raises:
        BenchmarkError: the user is not root, or the program `ip` is missing or fails.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise BenchmarkError(
                "torchrun and torchft listen at all addresses, so they are measured in a network "
                "namespace, which needs root and iproute2"
            )
        self._ip("netns", "add", name)
        self._ip("-netns", name, "link", "set", "lo", "up")

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` in this namespace, in the same process."""
        return ["ip", "netns", "exec", self.name, *command]

    def remove(self) -> None:
        """Kill all processes in this namespace, and remove it."""
        inside = [psutil.Process(int(pid)) for pid in self._ip("netns", "pids", self.name).split()]
        for process in inside:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(inside, timeout=10)
        self._ip("netns", "delete", self.name)

    def _ip(self, *arguments: str) -> str:
        """Run the program `ip` with these arguments, and return what it prints."""
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise BenchmarkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
