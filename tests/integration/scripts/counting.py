"""The counting model: its parameters can prove which samples were trained, and how often.

One float64 parameter w[i] a sample; the loss of a batch is the mean of w[i] over its samples, so
the gradient of a sample is 1 at its own place. Plain SGD with lr 1 over a global batch of N moves
w[i] by -1/N for each time that sample i was counted. So, without knowing anything of edl's
bookkeeping, from w before and after one step:

    1/N   the smallest change (a sample that was counted once)
    N     an integer, or the gradient was no mean
    times how often each sample was counted: its change in units of 1/N, an integer as well
    sum   the times of all samples together are N, or the step's weights were wrong

`before` (w at the last tally) and `count` (times so far) are buffers of the model, so they reach
newcomers with everything else. Each worker that trains to the end writes <out>/<pid>.json.
"""

import argparse
import hashlib
import json
import os
import time
from collections import Counter
from pathlib import Path

import torch

import edl.torch as edl

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--samples", type=int, default=1797)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--num-workers", type=int, default=0)
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in a step")
parser.add_argument("--slow", type=Path, help="sleep only while this file exists")
parser.add_argument("--stuck", type=Path, help="the worker of the slot in this file stands still")
parser.add_argument("--checkpoint", type=Path, help="save into this directory")
parser.add_argument("--tfrecord", help="samples are the numbers in the sound records of files")
parser.add_argument("--every", type=float, default=300.0, help="seconds between two checkpoints")
parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
args = parser.parse_args()

PAUSE_S = 0.5
TOLERANCE = 1e-6  # float64 leaves about 1e-12 of rounding; a wrong weight is far above


class Indices(torch.utils.data.Dataset):
    """Sample i is the number i."""

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        return index


class CountingModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(args.samples, dtype=torch.float64))
        self.register_buffer("before", torch.zeros(args.samples, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(args.samples, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, indices):
        return self.w[indices].mean()

    @torch.no_grad()
    def tally(self):
        """Count what the last step did. Tells what was wrong with it, or None."""
        change = self.before - self.w
        self.before.copy_(self.w)
        if not change.any():
            return None
        self.steps += 1
        size = 1 / change[change > 0].min() if (change > 0).any() else torch.tensor(0.0)
        times = change * size
        self.count += times.round().long()
        if (change < 0).any() or (times - times.round()).abs().max() > TOLERANCE:
            return f"step {self.steps.item()} counted a part of a sample: {change.unique()}"
        if abs(size - size.round()) > TOLERANCE * size or times.round().sum() != size.round():
            return (
                f"step {self.steps.item()} is no mean over its samples: {times.round().sum():g} "
                f"counted, each with weight 1/{size:.9g}"
            )
        return None


def histogram(count):
    """How many samples were counted how often, as {"times": samples}."""
    return {str(times): samples for times, samples in sorted(Counter(count.tolist()).items())}


def stand_still():
    """As code that hangs: until somebody removes the file."""
    while args.stuck.exists():
        time.sleep(0.05)


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(
    edl.data.tfrecord(args.tfrecord, parse=int, on_error="skip") if args.tfrecord else Indices(),
    batch_size=args.batch_size,
    shuffle=True,
    seed=7,
    num_workers=args.num_workers,
)
model = CountingModel()
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)

pauses = []  # steps that took long, from the end of the one before
last_step = time.monotonic()
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)

wrong = []  # what this worker saw go wrong
rings = []  # the generations that this worker was in: number, size, first step
epochs = []  # the counts at the end of each epoch that this worker was in
for epoch in loader.epochs(args.epochs):
    for indices in loader:
        if not edl.is_rehearsing() and (not rings or rings[-1]["generation"] != edl.generation()):
            rings.append(
                {"generation": edl.generation(), "size": edl.size(), "step": model.steps.item()}
            )
        optimizer.zero_grad()
        model(indices).backward()
        if args.step_delay and (args.slow is None or args.slow.exists()):
            time.sleep(args.step_delay)
        if args.stuck and args.stuck.exists() and args.stuck.read_text() == str(edl.local_rank()):
            stand_still()
        optimizer.step()
        if edl.is_rehearsing():
            continue
        now = time.monotonic()
        if now - last_step > PAUSE_S:
            pauses.append({"step": model.steps.item(), "seconds": now - last_step})
        last_step = now
        if problem := model.tally():
            wrong.append(problem)
    if not edl.is_rehearsing():
        epochs.append({"epoch": epoch, "counts": histogram(model.count)})

report = {
    "pid": os.getpid(),
    "rank": edl.rank(),
    "w_sha256": hashlib.sha256(model.w.detach().numpy().tobytes()).hexdigest(),
    "counts": histogram(model.count),
    "steps": model.steps.item(),
    "epochs": epochs,
    "rings": rings,
    "pauses": pauses,
    "wrong": wrong,
}
fresh = args.out / f"{os.getpid()}.new"
fresh.write_text(json.dumps(report))
fresh.rename(args.out / f"{os.getpid()}.json")
