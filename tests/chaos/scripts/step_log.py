"""Run another script as a job of a cluster does, and log what it trains.

    step_log.py DIRECTORY THROTTLE SCRIPT [ARGUMENT ...]

Each worker appends a line for each of its steps to DIRECTORY/<pid>.<run>.steps: when (monotonic, in
nanoseconds, the same clock for all processes of the machine), the number of complete steps, the
generation. The file THROTTLE slows them down as long as it exists (edl.testing.throttle).
"""

import os
import runpy
import sys
import time
from pathlib import Path

from edl import config, failpoints
from edl.binding import process
from edl.testing import throttle


def log(failpoint: str) -> None:
    if failpoint == "boundary" and not process.is_warming_up() and process.generation() > 0:
        path = directory / f"{os.getpid()}.{run}.steps"
        with path.open("a") as file:
            file.write(f"{time.monotonic_ns()} {process.step()} {process.generation()}\n")


directory = Path(sys.argv[1])
run = config.load().run
os.environ[throttle.FILE] = sys.argv[2]
failpoints.subscribe(log)
del sys.argv[:3]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
