"""Jobs that an unmodified `horovodrun` starts, in place of `edl run`."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scenario import Scenario

HOROVODRUN = (str(Path(sys.executable).parent / "horovodrun"),)
WORKER = (sys.executable, "-m", "edl.cli.worker")  # edl-worker, wherever it is installed
DISCOVER = (sys.executable, "-m", "edl.cli.discover")
INTERRUPT_S, NOTE_S = 60.0, 4.0
STANDIN = Path(__file__).with_name("standin_worker.py")


class HorovodrunScenario(Scenario):
    """A job whose launcher is `horovodrun`; ``shield``: words before the training command."""

    driver: Sequence[str] = HOROVODRUN
    shield: Sequence[str] = ()
    discover: Sequence[str] = DISCOVER

    def run(
        self,
        script: Path,
        *arguments: str,
        np: int,
        min_np: int = 1,
        max_np: int,
        options: Sequence[str] = (),
    ) -> None:
        self.environment["EDL_JOB"] = self.name
        limits = ["-np", str(np), "--min-np", str(min_np), "--max-np", str(max_np)]
        discovery = ["--host-discovery-script", shlex.join(self.discover)]
        command = [*self.shield, sys.executable, str(script), *arguments]
        self._begin([*self.here, *self.driver, *limits, *discovery, *options, *command])

    def interrupt(self, number: signal.Signals) -> None:
        """Send horovodrun a signal, until it has taken note of it.

        The main thread of a Python program may sleep through one that comes just when another
        thread starts a process, as horovodrun does each second.
        """
        assert self._process is not None
        deadline = time.monotonic() + INTERRUPT_S
        while self._process.poll() is None and "edl-worker is to end" not in self.output():
            assert time.monotonic() < deadline, self.describe(f"horovodrun ignores {number.name}")
            self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(NOTE_S)


class StandinScenario(HorovodrunScenario):
    """The same with workers that only pretend to train, and so start in no time."""

    shield = WORKER
    script = STANDIN
    steps = 0

    def words(self) -> list[str]:
        return ["--steps", str(self.steps)]
