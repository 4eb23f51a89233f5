"""Hosts of their own: network namespaces that a bridge connects; needs root.

The tests have hosts whose links can be cut (tests/integration/net.py): a process of the test
carries their packets. Here the kernel does it, so that it costs what is measured nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from benchmarks.jobs import BenchmarkError

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"
ETC = Path("/etc/netns")
NO_NAMES = {"hosts": "127.0.0.1 localhost\n", "resolv.conf": ""}  # no other name means anything
RENAMED = 'hostname "$0" && exec "$@"'
CLONE_NEWNET = 0x40000000
INTERFACE = "edl0"
BRIDGE = "edlbridge"
END_S = 10.0


class Network:
    """Hosts that see only each other, at 10.79.0.1 and so on; the first one has the bridge."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._mark = uuid.uuid4().hex[:6]

    def __enter__(self) -> Self:
        try:
            for host in self._hosts:
                _ip("netns", "add", self._namespace(host))
                etc = ETC / self._namespace(host)
                etc.mkdir(parents=True)
                for name, text in NO_NAMES.items():
                    (etc / name).write_text(text)
                _ip("-n", self._namespace(host), "link", "set", "dev", "lo", "up")
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            self._kill(host)
            subprocess.run([IP, "netns", "delete", self._namespace(host)], capture_output=True)
            shutil.rmtree(ETC / self._namespace(host), ignore_errors=True)
        with contextlib.suppress(OSError):
            ETC.rmdir()  # unless somebody else has hosts, too

    def _kill(self, host: str) -> None:
        """Kill all on ``host`` but this process, also what others start meanwhile."""
        deadline = time.monotonic() + END_S
        while left := [one for one in self.processes(host) if one.pid != os.getpid()]:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _connect(self) -> None:
        inside = ("-n", self._namespace(self._hosts[0]))
        _ip(*inside, "link", "add", "name", BRIDGE, "type", "bridge")
        _ip(*inside, "link", "set", "dev", BRIDGE, "up")
        for host in self._hosts:
            port, there = f"p-{host}", self._namespace(host)
            pair = ("type", "veth", "peer", "name", INTERFACE, "netns", there)
            _ip(*inside, "link", "add", "name", port, *pair)
            _ip(*inside, "link", "set", "dev", port, "master", BRIDGE, "up")
            _ip("-n", there, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
            _ip("-n", there, "link", "set", "dev", INTERFACE, "up")

    def address(self, host: str) -> str:
        """Return the address of ``host``."""
        return f"10.79.0.{self._hosts.index(host) + 1}"

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Return a command that runs ``words`` on ``host``, in the same process."""
        inside = [IP, "netns", "exec", self._namespace(host)]
        return [*inside, "unshare", "--uts", "sh", "-c", RENAMED, host, *words]

    def move_here(self, host: str) -> None:
        """Move this process to ``host``: its later threads, sockets and processes are there."""
        with open(f"/run/netns/{self._namespace(host)}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def processes(self, host: str) -> list[psutil.Process]:
        """Return the processes that live on ``host``."""
        done = subprocess.run(
            [IP, "netns", "pids", self._namespace(host)], capture_output=True, text=True
        )
        found = []
        for pid in done.stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_until_empty(self, host: str, timeout_s: float = END_S) -> list[psutil.Process]:
        """Wait until no process lives on ``host``; return those that still do after a time."""
        deadline = time.monotonic() + timeout_s
        while (left := self.processes(host)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _namespace(self, host: str) -> str:
        return f"edl-{self._mark}-{host}"


def _ip(*words: str) -> None:
    """Run a command `ip`.

    Raises:
        BenchmarkError: it fails.
    """
    done = subprocess.run([IP, *words], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"ip {' '.join(words)}: {done.stderr.strip()} (it needs root)")
