"""A Ray cluster of several nodes, each a network namespace; its Python is no part of edl's.

::

    with RayNodes(net, ("a", "b")) as ray:        # a is the head
        ray.kill_gcs()
        ray.start_gcs()                           # with the state that it had
        ray.kill_raylet("b")                      # and so the actors there
        ray.start_raylet("b")

A token keeps strangers out, and the state of the head is on disk (RocksDB).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
from extra_python import python_with
from net import Net

RELEASE = "2.60.0"
PORT = 6379
START_S = 120.0


class RayNodes:
    def __init__(self, net: Net, hosts: Sequence[str]) -> None:
        self._net, self._hosts = net, hosts
        self.python = python_with(f"ray-{RELEASE}", f"ray=={RELEASE}")
        self.directory = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets are in it
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self.directory / "gcs"),
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # then a raylet ends itself; not 60 s
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._restarted: list[subprocess.Popen[bytes]] = []
        self._gcs: tuple[list[str], dict[str, str]] = ([], {})

    def __enter__(self) -> Self:
        try:
            for host in self._hosts:
                self._start(host, head=host == self._hosts[0])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def kill_gcs(self) -> None:
        """Kill the process that knows the actors; ``start_gcs`` starts it as it was started."""
        gcs = self.gcs()
        assert gcs is not None, "no gcs_server lives"
        self._gcs = gcs.cmdline(), gcs.environ()
        gcs.kill()
        gcs.wait(10)

    def start_gcs(self) -> None:
        words, environment = self._gcs
        with (self.directory / "gcs.log").open("ab") as log:
            restarted = subprocess.Popen(
                [*self._net.enter(self._hosts[0]), *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._restarted.append(restarted)
        deadline_s = time.monotonic() + START_S
        while self.gcs() is None:  # it is still `ip netns exec`, and is to be killed again
            assert restarted.poll() is None, "the GCS has ended"
            assert time.monotonic() < deadline_s, "no GCS starts"
            time.sleep(0.05)

    def gcs(self) -> psutil.Process | None:
        """Return the process that knows the actors; None if none lives."""
        return self._daemon(self._hosts[0], "gcs_server")

    def raylet(self, host: str) -> psutil.Process | None:
        """Return the process that keeps a node; None if none lives."""
        return self._daemon(host, "raylet")

    def kill_raylet(self, host: str) -> None:
        """Kill the process that keeps a node, if it lives: the actors of the node end, too."""
        raylet = self.raylet(host)
        if raylet is not None:
            raylet.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                raylet.wait(10)

    def start_raylet(self, host: str) -> None:
        """Start a node of Ray again, as a new one; the GCS must live."""
        for one in self._net.processes(host):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word.endswith("/log_monitor.py") for word in one.cmdline()):
                    one.kill()  # that of the former node
        self._start(host, head=False)

    def _daemon(self, host: str, name: str) -> psutil.Process | None:
        for one in self._net.processes(host):
            with contextlib.suppress(psutil.Error, IndexError):
                if Path(one.cmdline()[0]).name == name:
                    return one
        return None

    def _start(self, host: str, head: bool) -> None:
        own, first = self._net.address(host), self._net.address(self._hosts[0])
        where = [f"--port={PORT}", "--head", f"--temp-dir={self.directory}"]
        words = [
            str(self.python.with_name("ray")),
            "start",
            f"--node-ip-address={own}",
            *([*where, "--include-dashboard=false"] if head else [f"--address={first}:{PORT}"]),
            "--num-cpus=1",
            "--object-store-memory=80000000",
            f"--resources={json.dumps({'edl_host': 1})}",
        ]
        done = subprocess.run(
            [*self._net.enter(host), *words],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def _end(self) -> None:
        """Kill all on the hosts, and remove the files."""
        for host in self._hosts:
            self._net.kill(host)
        for one in self._restarted:
            one.wait(10)
        deadline_s = time.monotonic() + 10
        while self.directory.exists() and time.monotonic() < deadline_s:
            shutil.rmtree(self.directory, ignore_errors=True)
