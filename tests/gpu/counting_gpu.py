"""The counting model on a GPU: its parameters prove which samples were trained, see tally.py.

Eight float32 tensors with the gradient 2**-10 everywhere are trained beside it, so that there is
something to send. Each step is a line in a file of the worker's: time, rank, size, generation and
number of the step.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

import edl.torch as edl

sys.path.append(str(Path(__file__).parents[1] / "integration" / "scripts"))
from tally import counted, histogram

GRADIENT = 2.0**-10
options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, required=True)
options.add_argument("--device", default="cuda")
options.add_argument("--samples", type=int, default=960)
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--megabytes", type=int, default=16, help="of the float32 tensors")
options.add_argument("--least", type=int, default=0, help="fewer workers than that train slowly")
options.add_argument("--checkpoint", type=Path)
options.add_argument("--same-host", action="store_true", help="NCCL is told the truth")
args = options.parse_args()


class Indices(torch.utils.data.Dataset):
    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        return index


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(args.samples, dtype=torch.float64))
        self.register_buffer("before", torch.zeros(args.samples, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(args.samples, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        each = args.megabytes * 2**18 // 8
        self.more = torch.nn.ParameterList(torch.zeros(each) for _ in range(8))

    def forward(self, indices):
        return self.w[indices].mean() + GRADIENT * sum(one.sum() for one in self.more)

    @torch.no_grad()
    def tally(self):
        times, problem = counted(self.before.cpu().numpy(), self.w.cpu().numpy())
        self.before.copy_(self.w)
        self.steps += 1
        self.count += torch.from_numpy(times).to(self.count.device)
        return problem


torch.set_num_threads(1)
edl.init()
if args.device == "cuda":
    torch.cuda.set_device(0)
    if not args.same_host:  # NCCL refuses two workers of one host on one GPU
        os.environ["NCCL_HOSTID"] = f"{edl.local_rank()}-{os.getpid()}"
loader = edl.DataLoader(Indices(), batch_size=4, shuffle=True, seed=7)
model = Model().to(args.device)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=1.0)
args.out.mkdir(exist_ok=True)
diary = (args.out / f"steps.{os.getpid()}").open("w", buffering=1)
wrong = []
for _epoch in loader.epochs(args.epochs):
    for indices in loader:
        model(indices.to(args.device)).backward()
        if edl.size() < args.least and not edl.is_warming_up():
            time.sleep(0.25)
        optimizer.step()
        optimizer.zero_grad()
        if edl.is_warming_up():
            continue
        problem = None if torch.equal(model.w, model.before) else model.tally()
        if problem:
            wrong.append(f"step {model.steps.item()}: {problem}")
        now = [time.time(), edl.rank(), edl.size(), edl.generation(), model.steps.item()]
        print(*now, file=diary)
sums = torch.cat([one.detach().flatten() for one in model.more]) / (-GRADIENT * model.steps)
report = {
    "counts": histogram(model.count),
    "wrong": wrong,
    "w": model.w.tolist(),
    "off": (sums - 1).abs().max().item(),  # the float32 tensors, relative to what they must be
    "device": model.w.device.type,
}
fresh = args.out / f"{os.getpid()}.new"
fresh.write_text(json.dumps(report))
fresh.rename(args.out / f"{os.getpid()}.json")
