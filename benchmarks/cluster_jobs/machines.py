"""The processes on the hosts: ZooKeeper, controllers and `edl host`, which may be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import psutil
from kazoo.client import KazooClient

from benchmarks.cluster_jobs.network import Network
from benchmarks.jobs import BIN, ROOT, BenchmarkError
from edl.testing.zookeeper import Server

CLIENT = "client"  # the host of ZooKeeper and of this process
PORT = 2181
EDL = (sys.executable, "-m", "edl.cli.main")
WAIT_S = 180.0
END_S = 30.0


class Machines:
    """ZooKeeper on the host CLIENT, and what is started on the others.

    Args:
        network: the hosts.
        directory: for logs, state and the secret.
    """

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.directory = directory
        self._servers = self.zookeeper = f"{network.address(CLIENT)}:{PORT}"
        self.secret_file = directory / "secret"
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._server = Server(
            directory / "zookeeper",
            PORT,
            network.address(CLIENT),
            enter=network.command(CLIENT, ()),
        )

    def __enter__(self) -> Self:
        self.secret_file.touch(0o600)
        self.secret_file.write_text(os.urandom(32).hex())
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._started):
            self.kill(name)
        self._server.kill()

    def use_root(self, name: str) -> None:
        """Let what is started from now on see only what is below the node ``/name`` of ZooKeeper.

        So jobs of several clusters may have the same names.
        """
        client = KazooClient(self._servers)
        client.start()
        client.ensure_path(f"/{name}")
        client.stop()
        client.close()
        self.zookeeper = f"{self._servers}/{name}"

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment of a user on ``host``."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "EDL_"))}
        return keep | {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{BIN}:{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
            "EDL_ZOOKEEPER": self.zookeeper,
            "EDL_SECRET_FILE": str(self.secret_file),
            "XDG_STATE_HOME": str(self.directory / f"state-{host}"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
        }

    def start(
        self, name: str, host: str, *words: str, more: Mapping[str, str] | None = None
    ) -> None:
        """Start a command `edl` on a host, as the process ``name``; its log is NAME.log.

        ``more`` are variables of its environment.
        """
        assert name not in self._started, f"{name} runs"
        with self._log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                self.network.command(host, [*EDL, *words]),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self.environment(host) | dict(more or {}),
                start_new_session=True,
            )

    def run(self, host: str, *words: str, timeout_s: float = WAIT_S) -> str:
        """Run a command `edl` on a host to its end, and return what it prints.

        Raises:
            BenchmarkError: it fails.
        """
        done = subprocess.run(
            self.network.command(host, [*EDL, *words]),
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.environment(host),
            timeout=timeout_s,
        )
        if done.returncode:
            raise BenchmarkError(
                f"edl {' '.join(words)} ended with {done.returncode}: {done.stderr}"
            )
        return done.stdout

    def start_controller(self, name: str, host: str, cluster: str, policy: str) -> None:
        """Start a controller of a cluster, which creates it if it is not there."""
        options = ("--name", cluster, "--policy", policy)
        self.start(
            name, host, "cluster", "start", *options, "--address", self.network.address(host)
        )

    def start_host(self, name: str, host: str, cluster: str, slots: int) -> None:
        """Start `edl host`."""
        options = ("--cluster", cluster, "--slots", str(slots))
        self.start(name, host, "host", *options, "--address", self.network.address(host))

    def expect(self, name: str, text: str) -> None:
        """Wait until a process has printed ``text``.

        Raises:
            BenchmarkError: it has not, in WAIT_S seconds or before it ended.
        """
        self.until(lambda: text in self.output(name), f"{name} has not said {text!r}", name)

    def until(self, condition: Callable[[], object], problem: str, name: str = "") -> None:
        """Wait until ``condition()``.

        Raises:
            BenchmarkError: it does not come true in WAIT_S seconds, or ``name`` ends before.
        """
        deadline = time.monotonic() + WAIT_S
        while not condition():
            ended = name in self._started and self._started[name].poll() is not None
            if ended or time.monotonic() > deadline:
                said = self.output(name)[-3000:] if name else ""
                raise BenchmarkError(f"{problem}{' and has ended' if ended else ''}\n{said}")
            time.sleep(0.05)

    def output(self, name: str) -> str:
        """Return what a process, and those of its name before it, have printed."""
        return self._log(name).read_text(errors="replace")

    def runs(self, name: str) -> bool:
        """Return whether a process was started and not killed or ended here."""
        return name in self._started

    def kill(self, name: str) -> None:
        """Kill -9 a process."""
        process = self._started.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(END_S)

    def end(self, name: str) -> None:
        """End a process with SIGTERM; kill it if that takes too long."""
        process = self._started[name]
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        self.kill(name)

    def agents(self, host: str) -> dict[str, psutil.Process]:
        """Return the living agents of a cluster's jobs on a host, by job."""
        found = {}
        for process in self.network.processes(host):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "agent" in words and "--run" in words:
                    found[words[words.index("--job") + 1]] = process
        return found

    def _log(self, name: str) -> Path:
        path = self.directory / f"{name}.log"
        path.touch()
        return path
