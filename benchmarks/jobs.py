"""One job of either kind: start it, resize it, read its step logs, leave no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SECOND_HOST = "127.0.0.1"  # this machine by another name


class BenchmarkError(Exception):
    """A job did not do what the benchmark waits for."""


@dataclass(frozen=True)
class Steps:
    """Completed steps of one worker: when (seconds, monotonic), which, in a ring of what size."""

    worker: int  # its process id
    time_s: npt.NDArray[np.float64]
    step: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]


def read_steps(directory: Path, without: Container[int] = ()) -> dict[int, Steps]:
    """Return the steps in the step logs of a directory, by process id.

    Args:
        directory: the directory.
        without: the process ids whose logs are not read.
    """
    found = {}
    for path in directory.glob("*.steps"):
        worker = int(path.stem)
        if worker in without:
            continue
        text = path.read_text()
        rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        if rows:
            table = np.array(rows, dtype=np.int64)
            found[worker] = Steps(worker, table[:, 0] / 1e9, table[:, 1], table[:, 2])
    return found


class Job:
    """A training script under some launcher, in its own process group."""

    kind = ""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = dict(settings or {})  # environment of launcher and workers
        self.steps_directory = directory / "steps"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, script: list[str], size: int) -> list[str]:
        """Return the command line of the launcher that starts ``script`` with ``size`` workers."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "EDL_"))}
        return keep | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{BIN}:{os.environ.get('PATH', '')}",
            **self.settings,
        }

    def start(self, module: str, size: int, *arguments: str) -> None:
        """Start ``python -m module`` with ``size`` workers."""
        self.steps_directory.mkdir(parents=True)
        script = [sys.executable, "-m", module, "--steps-to", str(self.steps_directory), *arguments]
        self.launch(self.command(script, size))

    def launch(self, command: Sequence[str]) -> None:
        """Run a command line; its output goes into a file of that name."""
        with (self.directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self.environment(),
                start_new_session=True,
            )

    def resize(self, size: int) -> None:
        """Ask for ``size`` workers; returns at once."""
        raise NotImplementedError

    def steps(self) -> dict[int, Steps]:
        """Return the steps that every worker has completed so far, by process id."""
        return read_steps(self.steps_directory)

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Poll until ``condition()``.

        Raises:
            BenchmarkError: it did not come true in time, or the job ended first.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.ended
            if ended is not None or time.monotonic() > deadline:
                why = f"in {timeout_s:g} s" if ended is None else f"before it ended with {ended}"
                raise BenchmarkError(f"{self.kind}: no {what} {why}\n{self.output()[-3000:]}")
            time.sleep(0.05)

    def output(self) -> str:
        """Return what the launcher has printed, the output of its workers included."""
        return (self.directory / "output").read_text(errors="replace")

    def end(self, timeout_s: float) -> int | None:
        """Wait for the end of the launcher; its exit code, None: it did not end in time."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def ended(self) -> int | None:
        """The exit code of the launcher, if it has ended."""
        assert self._process is not None
        return self._process.poll()

    def stop(self) -> None:
        """Kill every process of the job."""
        if self._process is not None:
            end_family(self._process)
            self._process = None


def end_family(process: subprocess.Popen[bytes]) -> None:
    """Kill a child of this process and all that it has started, and wait for their ends."""
    family = [psutil.Process(process.pid)] if process.poll() is None else []
    for one in list(family):
        family += one.children(recursive=True)
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=10)
    process.wait(10)


def kill(pid: int) -> None:
    """Kill a process with -9, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def host_of(worker: int) -> str:
    """Return the host's name that Horovod gave a worker, by process id; empty if it has ended."""
    try:
        return psutil.Process(worker).environ().get("HOROVOD_HOSTNAME", "")
    except psutil.Error:
        return ""


class StockJob(Job):
    """Stock Horovod Elastic: `horovodrun` with a discovery script that prints a file."""

    kind = "stock Horovod Elastic"

    def command(self, script: list[str], size: int) -> list[str]:
        self._write_hosts(size)
        discover = self.directory / "discover"
        discover.write_text(f"#!/bin/sh\ncat {self.directory}/hosts\n")
        discover.chmod(0o755)
        limits = ["-np", str(size), "--min-np", "1", "--max-np", "16"]
        # Without a named interface an elastic job waits for a second host before it starts.
        where = ["--network-interface", "lo", "--host-discovery-script", str(discover)]
        return [str(BIN / "horovodrun"), *limits, *where, *script]

    def resize(self, size: int) -> None:
        self._write_hosts(size)

    def hosts(self, size: int) -> str:
        """Return the output of the discovery script for ``size`` workers."""
        return f"localhost:{size}\n"

    def _write_hosts(self, size: int) -> None:
        fresh = self.directory / "hosts.new"
        fresh.write_text(self.hosts(size))
        fresh.rename(self.directory / "hosts")  # the driver never reads half a file


class TwoHostsStockJob(StockJob):
    """One worker on a second host, which is this machine too: stock bars the host of a dead one."""

    def hosts(self, size: int) -> str:
        return f"localhost:{size - 1}\n{SECOND_HOST}:1\n"


class PlainJob(Job):
    """Plain Horovod, of fixed size."""

    kind = "plain Horovod"

    def command(self, script: list[str], size: int) -> list[str]:
        return [str(BIN / "horovodrun"), "-np", str(size), *script]


@dataclass(frozen=True)
class Members:
    """Workers of an edl job, by process id: the one that leads, the others; and their ring."""

    leader: int
    others: list[int]
    generation: int


class EdlJob(Job):
    """edl, started with `edl run`; its settings name the benchmark's own ZooKeeper."""

    kind = "edl"

    @property
    def name(self) -> str:
        return self.directory.name

    def command(self, script: list[str], size: int) -> list[str]:
        limits = ["-np", str(size), "--min-np", "1", "--max-np", "16", "--job", self.name]
        return [str(BIN / "edl"), "run", *limits, *self.options(), *script]

    def options(self) -> list[str]:
        """More ones of `edl run`."""
        return []

    def printed(self, verb: str) -> list[dict[str, Any]]:
        """Run the command ``edl <verb> --json`` on this job, and return each line that it prints.

        Raises:
            BenchmarkError: the command fails.
        """
        done = subprocess.run(
            [str(BIN / "edl"), verb, self.name, "--json"],
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=60,
        )
        if done.returncode:
            raise BenchmarkError(f"edl {verb} ended with {done.returncode}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def members(self) -> Members:
        """Return who is in the ring.

        Raises:
            BenchmarkError: no worker leads at the moment.
        """
        (status,) = self.printed("status")
        pids = {member["id"]: member["pid"] for member in status["members"]}
        if status["leader"] not in pids:
            raise BenchmarkError(f"no worker of {self.name} leads")
        leader = pids.pop(status["leader"])
        return Members(leader, sorted(pids.values()), status["generation"])

    def resize(self, size: int) -> None:
        """Asks from a process of its own, whose start-up is no part of what is measured."""
        subprocess.Popen(
            [str(BIN / "edl"), "scale", self.name, "--np", str(size)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
        ).wait(60)


POLICY = """[size]
rule = "votes"

[stragglers]
"""


class FollowingEdlJob(EdlJob):
    """The same with a policy, which observes each step and never finds another size better."""

    kind = "edl with a policy"

    def options(self) -> list[str]:
        file = self.directory / "policy.toml"
        file.write_text(POLICY)
        return ["--policy", str(file)]


class HorovodrunJob(EdlJob):
    """edl under an unmodified elastic `horovodrun`, as docs/guides/horovodrun.md says."""

    kind = "edl under horovodrun"

    def command(self, script: list[str], size: int) -> list[str]:
        limits = ["-np", str(size), "--min-np", "1", "--max-np", "16"]
        discover = ["--host-discovery-script", str(BIN / "edl-discover")]
        return [str(BIN / "horovodrun"), *limits, *discover, str(BIN / "edl-worker"), *script]

    def environment(self) -> dict[str, str]:
        return super().environment() | {"EDL_JOB": self.name}


class ChangedImportJob(EdlJob):
    """Stock's script with one changed import (docs/guides/horovod-scripts.md), under `edl run`."""

    kind = "one changed import"

    def command(self, script: list[str], size: int) -> list[str]:
        python, _, module, *arguments = script
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        text = re.sub(r"^import horovod\.", "import edl.", path.read_text(), flags=re.MULTILINE)
        changed = self.directory / "changed_import.py"
        changed.write_text(text)
        return super().command([python, str(changed), *arguments], size)
