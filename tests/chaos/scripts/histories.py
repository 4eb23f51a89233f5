"""A counting model (of ../../integration/scripts) whose ring is broken at exact places of a step.

EDL_TEST_SCRIPT names it, as for faulty.py. EDL_TEST_HISTORIES holds histories as JSON, which happen
one after the other; EDL_TEST_PLACES names a directory for what the workers tell each other. A
history has the number of a step and, for each rank, a place and what that worker does there:

    ["averaged", 0, "miss"]     at that point of edl.failpoints, so many steps later

    pass   it goes on, into whatever it waits for next
    hold   it waits until the ring was cut
    cut    it waits until all others are at their places, and cuts the ring
    miss   the same, and takes it that the ring broke before it had what it waited for
    kill   it waits until all others are at their places, and kills itself

In place of the number "last": the step that ends an epoch, once all histories before have happened.

Each worker writes how it met the break: <history>.<rank>.broken has its last point and step.
"""

import json
import logging
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from edl import failpoints
from edl.binding import process as edl
from edl.errors import RingBroken

HISTORIES = json.loads(os.environ["EDL_TEST_HISTORIES"])
PLACES = Path(os.environ["EDL_TEST_PLACES"])
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SCRIPTS = Path(__file__).resolve().parents[2] / "integration" / "scripts"
COUNTING = SCRIPTS / os.environ.get("EDL_TEST_SCRIPT", "counting.py")
ARRIVE_S = 60.0  # for all others to be at their places
LISTENED = ("boundary", "step", "gradient", "records", "averaged", "reduced", "applied")


def is_last():
    """Return whether the step whose records are known ends the epoch."""
    worker = edl.current_worker()
    trained = sum(record.samples for record in worker.loader.records())
    return worker.loader.ledger.done + trained == worker.loader.ledger.total


def file(number, rank, what):
    return PLACES / f"{number}.{rank}.{what}"


def wait(number, what, ranks):
    deadline = time.monotonic() + ARRIVE_S
    while missing := [rank for rank in ranks if not file(number, rank, what).exists()]:
        if time.monotonic() > deadline:
            print(f"history {number}: {missing} did not arrive", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)


class Actor:
    """This worker's part in the histories."""

    def __init__(self):
        self.current = None  # the history that this worker has a part in
        self.last = ""  # the last point that it passed in the ring
        self.done = -1

    def pass_(self, name):
        if not edl.is_initialized() or edl.is_warming_up() or not edl.current_worker().generation:
            return
        if name == "broken" and self.current is not None:
            where = {"point": self.last, "step": edl.step(), "generation": edl.generation()}
            file(*self.current, "broken").write_text(json.dumps(where))
            self.done, self.current = self.current[0], None
        if name in LISTENED:
            self.last = name
            self.act(name)

    def act(self, name):
        number = self.done + 1
        if number >= len(HISTORIES) or self.current is not None:
            return
        history, rank = HISTORIES[number], edl.rank()
        if edl.size() != len(history["places"]):
            return
        point, later, action = history["places"][rank]
        if point != name:
            return
        if history["step"] == "last":
            if not is_last():
                return
        elif edl.step() != history["step"] + later:
            return
        self.current = number, rank
        self.play(number, rank, action)

    def play(self, number, rank, action):
        ranks = range(len(HISTORIES[number]["places"]))
        print(f"history {number}: rank {rank} {action} at {self.last} of {edl.step()}", flush=True)
        file(number, rank, "here").touch()
        if action == "pass":
            return
        if action == "hold":
            parts = [part for _, _, part in HISTORIES[number]["places"]]
            breakers = [other for other in ranks if parts[other] not in ("hold", "pass")]
            wait(number, "cut", breakers)
            return
        wait(number, "here", ranks)
        if action == "kill":
            file(number, rank, "cut").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "miss":
            time.sleep(0.2)  # until who passes waits for this worker
        edl.current_worker().ring.break_()
        file(number, rank, "cut").touch()
        if action == "miss":
            raise RingBroken(edl.generation(), "a test says so")


logging.basicConfig(level=os.environ.get("EDL_LOG", "WARNING"), format=FORMAT)
failpoints.subscribe(Actor().pass_)
sys.argv[0] = str(COUNTING)
sys.path.insert(0, str(SCRIPTS))
runpy.run_path(str(COUNTING), run_name="__main__")
