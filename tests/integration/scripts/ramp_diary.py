"""What happens to a job that trains by a ramp, and what its workers write down of each step.

A ramp of a few updates is over in milliseconds, and a newcomer takes seconds to start. So the
workers see to it that all falls into ramps. By how often the global batch has changed:

    0   after some updates they wait for a third worker: the ramp goes up
    1   ``--death-at`` updates later the leader kills itself, at ``--point`` of edl.failpoints:
        the ramp goes down from where it is
    2   ``--wait-at`` updates later they wait for another worker in its place
    3   as long after that they wait until one leaves
    4   they train to the end

They wait between two steps, until they have heard of the next generation; then all make one update
more, in which they agree on it. ``waits-N`` in ``--out`` says that they do.

``--missed``: another worker does not learn that the step in which the leader dies is complete, as
if the ring had broken for it a moment before. It gets the state of the third one, which has
completed it.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

from ramp_problem import flat

from edl import failpoints
from edl.binding import process as edl
from edl.binding.api import batch_weight
from edl.errors import RingBroken

FIRST = 5  # updates until the third worker comes
WAIT_S = 300.0  # at most, for what is due
LOOK_S = 0.02


class Diary:
    """One line of JSON for each batch that is begun, and one for each step that is complete."""

    def __init__(self):
        options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        options.add_argument("--out", type=Path, required=True)
        options.add_argument("--death-at", type=int, required=True)
        options.add_argument("--wait-at", type=int, required=True)
        options.add_argument("--point", required=True)
        options.add_argument("--missed", action="store_true")
        self._args = options.parse_args()
        self._file = (self._args.out / f"{os.getpid()}.jsonl").open("w")
        self._number = 0  # of the update that is under way
        self._missed = self._dies = False
        failpoints.subscribe(self._strike)

    def begin(self, epoch, ids):
        """Write that a batch of these samples begins."""
        self._number = edl.step()
        if not edl.is_warming_up():
            self._write(begun=self._number, epoch=epoch, ids=ids[: batch_weight()])

    def reduced(self):
        """Note whether others have made the update, or the gradients are the mean here."""
        self._missed = edl.current_worker().loader.engine.completed_by_peers

    def end(self, epoch, ids, rate, weights, momenta):
        if edl.is_warming_up():
            return
        update = edl.current_worker().loader.update
        assert update.number == self._number, update
        self._write(
            step=self._number,
            epoch=epoch,
            ids=ids[: batch_weight()],
            samples=update.after - update.before,
            batch=update.batches[-1][1],
            rate=float(rate),
            weights=flat(weights),
            momenta=flat(momenta),
            size=edl.size(),
            generation=edl.generation(),
            missed=self._missed,
        )
        self._wait()

    def _write(self, **what):
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def _wait(self):
        """Between two steps: until what is due in this part of the job is known here."""
        worker = edl.current_worker()
        progress, shared = worker.loader.progress, worker._shared
        stage = len(progress.batches) - 1
        since = progress.step - progress.batches[-1][0]
        if stage > 3 or since < {0: FIRST, 1: self._args.death_at}.get(stage, self._args.wait_at):
            return
        if stage == 1:
            self._until(self._leader_is_known, "leader")
            return
        (self._args.out / f"waits-{stage}").touch()
        self._until(lambda: shared.newest(edl.generation()), f"change {stage + 1}")

    def _leader_is_known(self):
        """All have agreed who dies in the next step: one that knows that it leads has said so."""
        worker = edl.current_worker()
        leader = worker._shared.leader
        if leader is not None and leader.worker == worker.id and self._claims("leader"):
            self._dies = True
        return (self._args.out / "leader").exists()

    def _strike(self, point):
        args = self._args
        if point not in (args.point, "averaged") or not (args.out / "leader").exists():
            return
        progress = edl.current_worker().loader.progress
        if progress.step < progress.batches[-1][0] + args.death_at:  # the leader is ahead of us
            return
        if self._dies and point == args.point:
            if args.missed:
                self._until(self._is_complete, "update of the third worker")
            if self._claims("death"):
                os.kill(os.getpid(), signal.SIGKILL)
        if args.missed and point == "averaged" and not self._dies and self._claims("missed"):
            self._until((args.out / "death").exists, "death of the leader")
            raise RingBroken(edl.generation(), "a test takes it away")

    def _claims(self, what):
        """Whether it is this process that it happens to; it happens once in the job."""
        try:
            (self._args.out / what).open("x").close()
        except FileExistsError:
            return False
        return True

    def _is_complete(self):
        """Return whether a living worker has written down the step of all three."""
        lines = [line for path in self._args.out.glob("*.jsonl") for line in path.open()]
        return any(line.startswith(f'{{"step": {self._number},') for line in lines)

    def _until(self, condition, what):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {WAIT_S:g} s"
            time.sleep(LOOK_S)
