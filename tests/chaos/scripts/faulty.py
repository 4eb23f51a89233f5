"""A counting model (of ../../integration/scripts) that kills itself on purpose.

EDL_TEST_SCRIPT names it: counting.py, PyTorch's, or another.

EDL_TEST_FAULTS holds faults as JSON, one list a group; EDL_TEST_CLAIMS names a directory where
each fault is claimed by the one process that it strikes, so that it strikes once in the job.
A group is armed when all groups before it have struck. A fault:

    point   a name of edl.failpoints
    role    plain (in the ring, does not lead), leader, any (of these), root (of these, rank 0),
            last (of these, the highest rank: `edl scale` takes that one out first), new (not in
            the ring yet), first (in edl.init() of a job that starts)
    after   steps since the last strike (since the start for the first one)
    size    how many workers the ring must have at least
            (after and size are asked of workers in the ring only)
    later   how often the point is passed in a step before it strikes (0)
    signal  KILL (default), TERM, STOP; or HANG: its training thread goes no further, its daemon
            does; or MISS, with the point "averaged": it has not got the averages that the others
            have, as if the ring had broken just then; or with "answered", the answer of an exchange
            between two steps; or WAIT: it goes on once the processes that the other faults of its
            group stop are stopped

Otherwise hooks only look and kill: what a worker does is not changed.
"""

import json
import logging
import os
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from edl import failpoints
from edl.binding import process as edl
from edl.errors import RingBroken

GROUPS = json.loads(os.environ["EDL_TEST_FAULTS"])
CLAIMS = Path(os.environ["EDL_TEST_CLAIMS"])
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SCRIPTS = Path(__file__).resolve().parents[2] / "integration" / "scripts"
COUNTING = SCRIPTS / os.environ.get("EDL_TEST_SCRIPT", "counting.py")
STOPPED_S = 60.0

passed = Counter()  # by group, fault and step: how often its point was passed


def role():
    """Return the role of this process: "first", "new", "leader" or "plain"."""
    if not edl.is_initialized():
        return "first"
    if edl.is_warming_up():
        return "new"
    return "leader" if edl.is_leader() else "plain"


def armed():
    """Return the group that may strike now, if any, its number and the step of the last one."""
    last = 0
    for number, group in enumerate(GROUPS):
        struck = [CLAIMS / f"{number}.{index}" for index in range(len(group))]
        if not all(path.exists() for path in struck):
            return number, group, last
        claims = [path.read_text().split() for path in struck]
        if not all(claims):  # one is about to be written
            return None
        last = max([last, *(int(claim[0]) for claim in claims)])
    return None


def strike(point):
    if (found := armed()) is None:
        return
    mine = role()
    in_ring = mine in ("plain", "leader")
    number, group, last = found
    for index, fault in enumerate(group):
        wanted = fault.get("role", "any")
        fits = in_ring if wanted == "any" else wanted == mine
        if wanted in ("root", "last"):
            fits = in_ring and edl.rank() == (
                0 if wanted == "root" else edl.current_worker().size - 1
            )
        if fault["point"] != point or not fits:
            continue
        if in_ring and (
            edl.step() < last + fault.get("after", 0)
            or edl.current_worker().size < fault.get("size", 0)
        ):
            continue
        step = str(edl.step() if in_ring else last)
        passed[number, index, step] += 1
        if passed[number, index, step] <= fault.get("later", 0):
            continue
        try:
            with (CLAIMS / f"{number}.{index}").open("x") as claim:
                name = fault.get("signal", "KILL")
                claim.write(f"{step} {os.getpid() if name not in ('MISS', 'WAIT') else 0}")
        except FileExistsError:
            continue
        print(f"chaos: {mine} gets SIG{name} at {point} of step {step}", flush=True)
        others = [CLAIMS / f"{number}.{other}" for other in range(len(group)) if other != index]
        suffer(name, others)
        return


def suffer(name, others):
    """Let the fault of signal ``name`` strike; ``others``: the claims of the rest of its group."""
    if name == "MISS":
        raise RingBroken(edl.generation(), "a test takes it away")
    while name == "HANG":
        time.sleep(1.0)
    if name == "WAIT":
        wait_until_stopped(others)
    else:
        os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


def wait_until_stopped(claims):
    """Wait until each process that has made one of ``claims`` is stopped, all its threads."""
    deadline = time.monotonic() + STOPPED_S
    while not all(claim.exists() and is_stopped(claim.read_text().split()) for claim in claims):
        assert time.monotonic() < deadline, f"{claims} are not of stopped processes"
        time.sleep(0.005)


def is_stopped(claim):
    if not claim:  # it is about to be written
        return False
    return psutil.Process(int(claim[1])).status() == psutil.STATUS_STOPPED


def watch_exchanges():
    """Make a point of the instant at which the answer of an exchange is there."""
    from edl.ring.ring import Ring

    def strikes(exchange):
        def exchange_and_strike(*payload):
            answer = exchange(*payload)
            strike("answered")
            return answer

        return exchange_and_strike

    Ring.exchange = strikes(Ring.exchange)  # in a step
    Ring.exchange_rows = strikes(Ring.exchange_rows)  # between two steps


logging.basicConfig(level=os.environ.get("EDL_LOG", "WARNING"), format=FORMAT)
failpoints.subscribe(strike)
if any(fault["point"] == "answered" for group in GROUPS for fault in group):
    watch_exchanges()
sys.argv[0] = str(COUNTING)
sys.path.insert(0, str(SCRIPTS))
runpy.run_path(str(COUNTING), run_name="__main__")
