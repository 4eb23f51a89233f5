"""Jobs that an unmodified `horovodrun` starts, in place of `edl run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trial import Trial

HOROVODRUN = Path(sys.executable).parent / "horovodrun"
WORKER = (sys.executable, "-m", "edl.cli.worker")  # edl-worker, wherever it is installed
DISCOVER = (sys.executable, "-m", "edl.cli.discover")
STANDIN = Path(__file__).with_name("standin_worker.py")


class HorovodrunTrial(Trial):
    """A job whose launcher is `horovodrun`; ``shield``: words before the training command."""

    samples = 1920  # enough for several newcomers, each of which imports a framework
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
        self._begin([*self.here, HOROVODRUN, *limits, *discovery, *options, *command])


class StandinTrial(HorovodrunTrial):
    """The same with workers that only pretend to train, and so start in no time."""

    shield = WORKER
    script = STANDIN
    steps = 0

    def words(self) -> list[str]:
        return ["--steps", str(self.steps)]
