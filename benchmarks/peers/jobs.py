"""A job of each system, with what is done to it: resized, a part of it killed, a worker frozen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psutil

from benchmarks.crash import alive
from benchmarks.goodput import WORKER, GoodputStockJob, StruckJob, training
from benchmarks.jobs import SECOND_HOST, EdlJob, Job, host_of, kill
from benchmarks.peers.environment import torchft_folder
from benchmarks.peers.namespace import NetworkNamespace

TIMEOUT_S = 5  # of a collective: Horovod's own is 30 s, torchrun's 30 min, torchft's 60 s
REPLICAS = 16  # workers at most


class PeerJob(Job):
    """A job of two or more workers that can be struck."""

    coordinator: ClassVar[str]  # what coordinates a job of this system

    @abstractmethod
    def victim(self) -> int:
        """Return the process id of a worker that does not coordinate the job."""

    @abstractmethod
    def coordinator_pid(self) -> int:
        """Return the process id of what coordinates the job."""


class EdlPeer(PeerJob, EdlJob):
    """edl, with its own settings."""

    coordinator = "the worker that leads"

    def victim(self) -> int:
        return self.members().others[-1]

    def coordinator_pid(self) -> int:
        return self.members().leader


class HorovodElasticPeer(PeerJob, GoodputStockJob):
    """Horovod Elastic, with a time-out of Gloo of ``TIMEOUT_S``."""

    coordinator = "the driver (horovodrun)"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_S)}

    def victim(self) -> int:
        return next(log.worker for log in alive(self) if host_of(log.worker) == SECOND_HOST)

    def coordinator_pid(self) -> int:
        assert self._process is not None
        return self._process.pid


class LaunchedOneByOne(PeerJob):
    """A job with one launcher for each worker, in a network namespace of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self._namespace: NetworkNamespace | None = None
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._worker: list[str] = []  # the command line after the launcher's

    @abstractmethod
    def launcher(self, number: int) -> list[str]:
        """Return the command line of the launcher of worker ``number``, without the script."""

    def start(self, module: str, size: int, *arguments: str) -> None:
        self.steps_directory.mkdir(parents=True)
        self._namespace = NetworkNamespace(f"edl-{os.getpid()}-{self.directory.name}")
        self._worker = ["-m", module, "--steps-to", str(self.steps_directory), *arguments]
        self.resize(size)

    def resize(self, size: int) -> None:
        """Start launchers, or end the last ones by SIGTERM."""
        while len(self._launchers) < size:
            number = len(self._launchers)
            environment = {"REPLICA": str(number)}
            command = [*self.launcher(number), *self._worker]
            self._launchers.append(self.inside(command, f"output-{number}", environment))
        while len(self._launchers) > size:
            self._launchers.pop().terminate()

    def inside(
        self, command: list[str], output: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in the namespace.

        Args:
            command: the command line.
            output: the name of the file in the job's directory for all that it prints.
            more: environment variables beside those of the job.
        """
        assert self._namespace is not None
        with (self.directory / output).open("wb") as file:
            return subprocess.Popen(
                self._namespace.inside(command),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env={**self.environment(), **(more or {})},
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        return super().environment() | {"GLOO_SOCKET_IFNAME": "lo", "TIMEOUT_S": str(TIMEOUT_S)}

    def output(self) -> str:
        files = sorted(self.directory.glob("output-*"))
        return "\n".join(file.read_text(errors="replace")[-1000:] for file in files)

    @property
    def ended(self) -> int | None:
        """The exit code of the first launcher, once all have ended."""
        codes = [launcher.poll() for launcher in self._launchers]
        return None if None in codes else codes[0]

    def victim(self) -> int:
        own = psutil.Process(self._launchers[-1].pid).children(recursive=True)
        return next(log.worker for log in alive(self) if log.worker in {one.pid for one in own})

    def stop(self) -> None:
        """Kill all processes in the job's namespace, also those whose launcher was killed."""
        if self._namespace is not None:
            self._namespace.remove()
            self._namespace = None


class TorchrunPeer(LaunchedOneByOne):
    """torchrun, whose job goes on 1 s after the last agent has come, not 30 s."""

    kind = "torchrun"
    coordinator = "the agent with the store"

    def launcher(self, number: int) -> list[str]:
        python = [sys.executable, "-m", "torch.distributed.run"]
        size = ["--nnodes", f"1:{REPLICAS}", "--nproc-per-node", "1", "--max-restarts", "1000"]
        store = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29400"]
        rendezvous = f"last_call_timeout=1,is_host={int(number == 0)}"
        job = ["--rdzv-id", "job", "--rdzv-conf", rendezvous]
        return [*python, *size, *store, *job, "--local-addr", "127.0.0.1"]

    def environment(self) -> dict[str, str]:
        # As in benchmarks/goodput.py: else workers meet the addresses of those before them.
        return super().environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def coordinator_pid(self) -> int:
        return self._launchers[0].pid


class TorchftPeer(LaunchedOneByOne):
    """torchft: each worker is a replica group under a torchrun of its own.

    Its time limits are shorter than torchft's own: a replica is dead after 1 s without a heartbeat
    (5 s), newcomers are waited for 0.5 s (60 s), and the lighthouse looks each 20 ms (100 ms).
    """

    kind = "torchft"
    coordinator = "the lighthouse"
    lighthouse_address = "127.0.0.1:29510"

    def start(self, module: str, size: int, *arguments: str) -> None:
        super().start(module, 0, *arguments)
        program = torchft_folder() / "bin" / "torchft_lighthouse"
        limits = ["--min_replicas", "1", "--quorum_tick_ms", "20"]
        limits += ["--join_timeout_ms", "500", "--heartbeat_timeout_ms", "1000"]
        bind = ["--bind", self.lighthouse_address]
        command = [sys.executable, str(program), *limits, *bind]
        self._lighthouse = self.inside(command, "output-lighthouse")
        self.resize(size)

    def launcher(self, number: int) -> list[str]:
        python = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "1000"]
        store = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{29600 + number}"]
        one = ["--nnodes", "1", "--nproc-per-node", "1", "--rdzv-id", f"replica-{number}"]
        return [*python, *one, *store, "--local-addr", "127.0.0.1"]

    def environment(self) -> dict[str, str]:
        own = super().environment()
        return own | {
            "PYTHONPATH": f"{own['PYTHONPATH']}{os.pathsep}{torchft_folder()}",
            "TORCHFT_LIGHTHOUSE": f"http://{self.lighthouse_address}",
        }

    def coordinator_pid(self) -> int:
        return self._lighthouse.pid


class GoodputTorchftJob(TorchftPeer, StruckJob):
    """torchft, whose replica groups are killed."""

    victims = (WORKER,)

    def strike(self, victim: str, chance: random.Random) -> None:
        kill(chance.choice(training(self)))
