"""What the counting models of both frameworks share: options, the tally of a step, the report.

One float64 parameter w[i] a sample; the loss of a batch is the mean of w[i] over its samples, so
the gradient of a sample is 1 at its own place. Plain SGD with lr 1 over a global batch of N moves
w[i] by -1/N for each time that sample i was counted. So, without knowing anything of edl's
bookkeeping, from w before and after one step:

    1/N   the smallest change (a sample that was counted once)
    N     an integer, or the gradient was no mean
    times how often each sample was counted: its change in units of 1/N, an integer as well
    sum   the times of all samples together are N, or the step's weights were wrong

`before` (w at the last tally) and `count` (times so far) belong to the model, so they reach
newcomers with everything else. Each worker that trains to the end writes <out>/<pid>.json.

EDL_TEST_SIGNAL: the gradient of all samples, in a parameter of its own. Without it the gradients
are all noise, so that their noise scale is never known; with it that is 1 / EDL_TEST_SIGNAL^2.
"""

import argparse
import ctypes
import hashlib
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np

from edl.binding import process as edl
from edl.binding.api import on_interval
from edl.testing import throttle

PAUSE_S = 0.5
SIGNAL = float(os.environ.get("EDL_TEST_SIGNAL", "0"))
TOLERANCE = 1e-6  # float64 leaves about 1e-12 of rounding; a wrong weight is far above
LATE_S = 300.0  # a newcomer waits so long for the word to load its first batch


def parser():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--samples", type=int, default=1797)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--batch-size", type=int, default=4)
    options.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    options.add_argument("--num-workers", type=int, default=0)
    options.add_argument("--together", type=Path, help="newcomers wait as long as it exists")
    options.add_argument("--stuck", type=Path, help="the worker of the slot in it stands still")
    options.add_argument("--wish", type=Path, help="how many workers more the script wants")
    options.add_argument("--slow", type=Path, help="who computes how long: see Diary.compute")
    options.add_argument("--lock", type=Path, help="that of this slot holds the GIL for good")
    options.add_argument("--checkpoint", help="save into this directory, or at this URL")
    options.add_argument("--tfrecord", help="samples: the numbers in the sound records of files")
    options.add_argument("--every", type=float, default=300.0, help="seconds between checkpoints")
    options.add_argument("--sharded", action="store_true", help="save checkpoints in parts")
    options.add_argument("--exchange", type=int, default=0, help="numbers, each so many steps")
    options.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    options.add_argument("--late", action="store_true", help="load a newcomer's first batch late")
    options.add_argument("--talk", type=int, help="print so many characters in each step")
    options.add_argument("--scene", type=Path, help="what is to happen: benchmarks/scenarios")
    return options


class Late:
    """What a newcomer loads after its warm-up waits for the file ``load``, and makes ``loaded``."""

    def __init__(self, args, after):
        self._left = after
        self._out = args.out

    def load(self, sample):
        if self._left == 0:
            deadline = time.monotonic() + LATE_S
            while not (self._out / "load").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            (self._out / "loaded").touch()
        self._left -= 1
        return sample


def hold_the_lock():
    """As a library that waits for ever and has not released Python's lock."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    while True:  # the second call waits for the first one
        libc.pthread_mutex_lock(mutex)


def counted(before, now, clip=float("inf"), eps=0.0):
    """How often each sample was counted in a step, and what was wrong with it, or None.

    ``clip``: what the norm of the step's mean gradient was clipped to; the change of a sample that
    was counted once is that much smaller than 1/N. ``eps``: what PyTorch adds to the norm then.
    """
    change = before - now
    size = 1 / change[change > 0].min() if (change > 0).any() else 0.0
    times = change * size
    if (change < 0).any() or abs(times - times.round()).max() > TOLERANCE:
        return times.round().astype(np.int64), f"counted a part of a sample: {np.unique(change)}"
    times = times.round()
    total = times.sum()
    norm = np.sqrt((times**2).sum()) / total if total else 0.0
    if abs(size - total * max(1.0, (norm + eps) / clip)) > TOLERANCE * size:
        wrong = f"{total:g} counted, each with weight 1/{size:.9g}"
        return times.astype(np.int64), f"is no mean over its samples: {wrong}"
    return times.astype(np.int64), None


def histogram(count):
    """How many samples were counted how often, as {"times": samples}."""
    return {str(times): samples for times, samples in sorted(Counter(count.tolist()).items())}


class Diary:
    """What one worker sees: its rings, its pauses, the counts after each epoch, what went wrong."""

    def __init__(self, args):
        self.args = args
        self.pauses = []  # steps that took long, from the end of the one before
        self.wrong = []  # what this worker saw go wrong
        self.rings = []  # the generations that this worker was in: number, size, first step
        self.exchanges = {}  # what all have exchanged after a step
        self.epochs = []  # the counts at the end of each epoch that this worker was in
        self._last_step = time.monotonic()
        self._scene = None
        self._wishes = False
        if args.scene:
            from benchmarks.scenarios.scene import Scene

            self._scene = Scene(args.scene)

    def begin_step(self, steps):
        if self.args.wish and not self._wishes:
            self._wishes = True
            on_interval(lambda: int(self.args.wish.read_text()), every_s=0.5)
        generation = edl.generation()
        if not edl.is_warming_up() and (
            not self.rings or self.rings[-1]["generation"] != generation
        ):
            self.rings.append({"generation": generation, "size": edl.size(), "step": steps})
        if self._scene and not edl.is_warming_up():
            self._scene.begin_batch(edl.rank(), edl.size())

    def in_step(self):
        args = self.args
        throttle.throttle_step()
        self.compute()
        if args.talk:
            print("talks " + "." * args.talk)
        while args.together and edl.is_warming_up() and args.together.exists():
            time.sleep(0.05)
        if args.stuck and args.stuck.exists() and args.stuck.read_text() == str(edl.local_rank()):
            while args.stuck.exists():  # as code that hangs: until somebody removes the file
                time.sleep(0.05)
        if args.lock and args.lock.exists() and args.lock.read_text() == str(edl.local_rank()):
            hold_the_lock()

    def compute(self):
        """--slow: "a:1 4 0.01" is 0.01 s a sample, and 4 times as long in slot 1 of host a."""
        if not self.args.slow or not self.args.slow.exists() or edl.is_warming_up():
            return
        who, factor, each_s = self.args.slow.read_text().split()
        slow = who == f"{os.environ['EDL_HOST']}:{edl.local_rank()}"
        samples = edl.current_worker().loader.batch_weight
        time.sleep(float(each_s) * samples * (float(factor) if slow else 1.0))

    def end_step(self, steps, problem):
        now = time.monotonic()
        if now - self._last_step > PAUSE_S:
            self.pauses.append({"step": steps, "seconds": now - self._last_step})
        self._last_step = now
        if problem:
            self.wrong.append(f"step {steps} {problem}")

    def exchange(self, steps):
        """Now and then exchange something that nobody can know: the answer must travel."""
        if self.args.exchange and steps % self.args.exchange == 0:
            worker = edl.current_worker()
            self.exchanges[str(steps)] = worker.exchange([worker.id, steps, random.random()])

    def end_epoch(self, epoch, count, **more):
        self.epochs.append({"epoch": epoch, "counts": histogram(count), **more})
        if self._scene:
            self._scene.end_epoch(epoch, edl.rank(), edl.size(), edl.generation())

    def report(self, w, count, steps, **more):
        report = {
            "pid": os.getpid(),
            "rank": edl.rank(),
            "w_sha256": hashlib.sha256(w.tobytes()).hexdigest(),
            "counts": histogram(count),
            "steps": steps,
            "epochs": self.epochs,
            "rings": self.rings,
            "exchanges": self.exchanges,
            "pauses": self.pauses,
            "wrong": self.wrong,
            **more,
        }
        fresh = self.args.out / f"{os.getpid()}.new"
        fresh.write_text(json.dumps(report))
        fresh.rename(self.args.out / f"{os.getpid()}.json")
