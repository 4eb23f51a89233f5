"""Slow down the steps of a job under test, so that it does not end before the test is done with it.

Each step sleeps until the test calls :meth:`edl.testing.job.Job.hurry`: the script calls
:func:`throttle_step` in each, or is run by this module::

    train = str(Path("train.py").absolute())
    with started(tmp_path, zookeeper.hosts, throttle.SCRIPT, train, np=2, max_np=3,
                 throttled=Throttle()) as job:
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from edl import config, failpoints
from edl.binding import process

SCRIPT = Path(__file__)  # runs another one: its path and its arguments follow
FILE = "EDL_TEST_THROTTLE"  # names the file that throttles as long as it exists
POLL_S = 0.05  # between two looks whether it is still there


@dataclass(frozen=True)
class Throttle:
    """A rule for how long each step of a job sleeps.

    The sleep is short in the first ``steps`` steps, so that a test on an idle machine waits for
    nothing, and longer in the steps after them, which only a slow machine reaches.

    Attributes:
        step_s: the sleep in each of the first ``steps`` steps of the job, in seconds.
        steps: how many steps sleep ``step_s``.
        later_s: the sleep in the steps after them, in seconds, at least ``step_s``.
        each_s: the additional sleep, in seconds, for each worker of the ring beyond the first; it
            lets a test give a job no gain from more workers.
        warm_up_s: the sleep in the warm-up of a newcomer, in seconds.
    """

    step_s: float = 0.2
    steps: int = 200
    later_s: float = 1.5
    each_s: float = 0.0
    warm_up_s: float = 0.0

    def sleep_s(self, step: int, size: int = 1) -> float:
        alone_s = self.step_s if step < self.steps else max(self.step_s, self.later_s)
        return alone_s + self.each_s * (size - 1)

    def put(self, file: Path) -> None:
        """Write this throttle to ``file``, which ``EDL_TEST_THROTTLE`` names to a job."""
        file.write_text(json.dumps(asdict(self)))


def throttle_step() -> None:
    """Sleep for as long as the test wants this step, or the warm-up of a newcomer, to take.

    Call it once in each step. The test's throttle is in the file that ``EDL_TEST_THROTTLE`` names;
    without the file, no step sleeps, and a sleep ends when the file is removed.
    """
    name = config.environment().get(FILE)
    if name is None:
        return
    file = Path(name)
    try:
        throttle = Throttle(**json.loads(file.read_text()))
    except FileNotFoundError:
        return
    warm_up = process.is_warming_up()
    step_s = throttle.warm_up_s if warm_up else throttle.sleep_s(process.step(), process.size())
    awake_at = time.monotonic() + step_s
    while (left := awake_at - time.monotonic()) > 0 and file.exists():
        time.sleep(min(left, POLL_S))


def _between_steps(failpoint: str) -> None:
    if failpoint == "boundary":
        throttle_step()


if __name__ == "__main__":
    failpoints.subscribe(_between_steps)
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
