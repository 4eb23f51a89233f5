"""Run a training script whose steps wait for a time that depends on the number of workers.

``python waiting.py --waits 0.8,0.4 --steps 100 --log DIRECTORY train.py ARGUMENTS``: each of the
100 steps waits 0.8 s with one worker, 0.4 s with two. The worker of rank 0 logs each step before it
waits, and the end, as a line "seconds-since-1970 step workers" in a file of its own.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
from pathlib import Path

from edl import failpoints
from edl.binding import process


class Waiting:
    """Lets steps wait, and logs them.

    Args:
        waits: seconds by number of workers, from one worker on.
        steps: how many steps wait.
        log: the directory of the logs.
    """

    def __init__(self, waits: tuple[float, ...], steps: int, log: Path) -> None:
        self._waits = waits
        self._steps = steps
        self._log = log / f"{os.uname().nodename}-{os.getpid()}.steps"
        self._waited = -1  # the last step

    def at(self, failpoint: str) -> None:
        """Wait between two steps, once in each step."""
        if failpoint != "boundary" or process.is_warming_up():
            return
        step, size = process.step(), process.size()
        if step == self._waited:
            return
        self._waited = step
        if process.rank() == 0:
            with self._log.open("a") as log:
                log.write(f"{time.time():.4f} {step} {size}\n")
        if step < self._steps:
            time.sleep(self._waits[min(size, len(self._waits)) - 1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waits", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    args.log.mkdir(parents=True, exist_ok=True)
    waiting = Waiting(tuple(map(float, args.waits.split(","))), args.steps, args.log)
    failpoints.subscribe(waiting.at)
    sys.argv = args.script
    sys.path[0] = str(Path(args.script[0]).resolve().parent)
    runpy.run_path(args.script[0], run_name="__main__")
