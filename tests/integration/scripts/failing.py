"""Runs another script, which ends in a way that is told by the environment.

FAILS_IN_SLOT=N    there each process fails in its third step: first by an error, then by an
                   exit code of its own, in turn
FAILED=DIRECTORY   where is written how often
HANGS_IN_SLOT=N    there the process, when all is done, does not end by itself
EVALUATES_S=S      what the others do after training takes that long
FLUSHES_S=S        and then an exit handler of a library that was imported before edl
ENDED=DIRECTORY    where each process writes when its script has ended, and then its exit handler
"""

import atexit
import os
import runpy
import sys
import time
from pathlib import Path


def here(name):
    return os.environ.get(name) == os.environ["EDL_SLOT"]


class Hanging:
    """Part of a library that hangs when Python frees it, after all exit handlers."""

    def __del__(self):
        time.sleep(300.0)


def ended():
    if "ENDED" in os.environ:
        (Path(os.environ["ENDED"]) / os.environ["EDL_SLOT"]).write_text(str(time.time()))


def flush():
    time.sleep(float(os.environ["FLUSHES_S"]))
    ended()


if here("HANGS_IN_SLOT"):
    sys.__interactivehook__ = Hanging()  # among what Python frees first
elif "FLUSHES_S" in os.environ:
    atexit.register(flush)

from edl import failpoints  # noqa: E402 - after what is set up above
from edl.binding import process as edl  # noqa: E402 - after what is set up above

steps = 0


def fail(point):
    """In the midst of a step of the job."""
    global steps
    if point != "step" or not edl.is_initialized():
        return
    steps += 1
    if steps < 3:
        return
    earlier = len(list(Path(os.environ["FAILED"]).iterdir()))
    (Path(os.environ["FAILED"]) / str(earlier)).touch()
    if earlier % 2:
        sys.exit(3)
    raise ValueError("boom")


if here("FAILS_IN_SLOT"):
    failpoints.subscribe(fail)
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
if not here("HANGS_IN_SLOT"):
    time.sleep(float(os.environ.get("EVALUATES_S", "0")))
ended()
