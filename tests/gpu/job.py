"""A job of `edl run` whose workers share a GPU: start it, follow its steps, judge its reports.

A worker writes a line for each of its steps into ``out/steps.<pid>`` in the job's folder (time,
rank, size, generation, number of the step), and at its end a report, ``out/<pid>.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LONG_S, RECOVERS_S = 180.0, 30.0  # limits: of a start or an end of a job, and of a recovery
SAMPLES = 960
LONE_HOSTS = {  # NCCL sends by sockets, for each worker is a host of its own
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}


class Failed(Exception):
    """A scenario did not go as it must; the text says how."""


class Step(NamedTuple):
    """The last step of a worker that is alive."""

    rank: int
    size: int
    generation: int
    number: int


@dataclass
class Job:
    """A job on this machine: `edl run` and what its workers write into a folder."""

    name: str
    folder: Path
    device: str
    preload: str
    script: str = "counting_gpu.py"
    epochs: int = 4
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def fault(self) -> Path:
        return self.folder / "fault"

    def run(self, np: int, most: int, *script: str, extra: tuple[str, ...] = ()) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            **(LONE_HOSTS if self.device == "cuda" else {}),
            "LD_PRELOAD": self.preload,
            "EDL_TEST_NCCL_FAULT": str(self.fault),
            **self.environment,
        }
        out = ["--out", str(self.folder / "out"), "--device", self.device]
        run = ["run", "-np", str(np), "--max-np", str(most), "--slots", str(most)]
        own = [sys.executable, str(HERE / self.script), *out, "--epochs", str(self.epochs)]
        with (self.folder / "run.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._edl, *run, "--job", self.name, *extra, *own, *script],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def edl(self, *words: str) -> None:
        subprocess.run([*self._edl, *words], env=self.environment, capture_output=True, timeout=60)

    def steps(self) -> dict[int, Step]:
        """Return the last step of each living worker, by its pid."""
        found = {}
        for path in (self.folder / "out").glob("steps.*"):
            pid, lines = int(path.suffix[1:]), path.read_text().splitlines()
            if lines and _is_running(pid):
                words = lines[-1].split()
                if len(words) == 5:
                    found[pid] = Step(*map(int, words[1:]))
        return found

    def wait(
        self, what: str, condition: Callable[[dict[int, Step]], bool], limit_s: float = LONG_S
    ) -> None:
        assert self.process is not None
        deadline = time.monotonic() + limit_s
        while not condition(self.steps()):
            if self.process.poll() is not None:
                raise Failed(f"the job ended with {self.process.returncode} before: {what}")
            if time.monotonic() > deadline:
                raise Failed(f"not within {limit_s:g} s: {what}; now {self.steps()}")
            time.sleep(0.02)

    def trains(self, workers: int, *, steps: int = 10) -> None:
        """Wait until all ``workers`` are in one ring, and have made so many steps in it."""

        def full(now: dict[int, Step]) -> bool:
            return len(now) == workers and all(one.size == workers for one in now.values())

        self.wait(f"{workers} workers train", full)
        first = max((one.number for one in self.steps().values()), default=0)
        self.wait("steps", lambda now: any(s.number >= first + steps for s in now.values()))

    def recovers(self, before: dict[int, Step]) -> float:
        """Wait for a step in a newer ring; return after how many seconds it was complete."""
        began = time.monotonic()
        generation = max(one.generation for one in before.values())
        self.wait(
            "a step in a newer ring",
            lambda now: any(s.generation > generation and p in before for p, s in now.items()),
            RECOVERS_S,
        )
        return time.monotonic() - began

    def communicators(self, pid: int) -> int:
        """Return how many of NCCL's communicators a worker has: initialized, and not ended."""
        path = self.fault.with_name(f"{self.fault.name}.{pid}")
        made = Counter(path.read_text() if path.exists() else "")
        return made["i"] - made["a"] - made["d"]

    def ends(self) -> None:
        assert self.process is not None
        try:
            code = self.process.wait(LONG_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the job did not end; now {self.steps()}") from None
        if code:
            raise Failed(f"edl run ended with {code}")
        paths = sorted((self.folder / "out").glob("*.json"))
        reports = [json.loads(path.read_text()) for path in paths]
        if not reports:
            raise Failed("no worker trained to the end")
        if self.script == "counting_gpu.py":
            for one in reports:
                exact = one["counts"] == {str(self.epochs): SAMPLES} and not one["wrong"]
                if not exact or one["off"] > 1e-3 or one["device"] != self.device:
                    raise Failed(f"wrong counts: {json.dumps({**one, 'w': '...'})}")
        if any(one != reports[0] for one in reports if "w" in one):
            raise Failed("the workers' models differ")

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(4.0)
                    break
        for pid in self.steps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def _edl(self) -> list[str]:
        return [sys.executable, "-m", "edl.cli.main"]


def _is_running(pid: int) -> bool:
    """Return whether a process is alive, and neither ended nor stopped by a signal."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X", "T")
