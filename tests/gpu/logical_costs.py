"""ResNet-18 in microbatches, of logical workers or as they come; two such jobs train in turns.

Each worker writes into a file how long its steps of each block took: the number of the block, and
the seconds of each step. Into another one it writes how long the collectives of each step of
logical workers took.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

import edl.torch as edl

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.script import CLASSES, Turns
from benchmarks.torch.resnet import resnet
from edl.binding.process import current_worker
from edl.torch.logical import LogicalSums

options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, required=True)
options.add_argument("--device", default="cuda")
options.add_argument("--epochs", type=int, help="not used: the blocks say when it ends")
options.add_argument("--turns", type=Path, required=True, help="directory in which jobs take turns")
options.add_argument("--name", required=True, help="name of this job in the turns")
options.add_argument("--warm", type=int, required=True, help="steps before the first block")
options.add_argument("--block", type=int, required=True, help="steps of a block")
options.add_argument("--blocks", type=int, required=True)
options.add_argument("--micro-batch", type=int, required=True)
options.add_argument("--logical", type=int, required=True, help="microbatches of a step")
args = options.parse_args()


def wait() -> None:
    if args.device == "cuda":
        torch.cuda.synchronize()


def timed_together(sums: LogicalSums, summed: object, kind: str) -> object:
    wait()
    began = time.perf_counter()
    found = together(sums, summed, kind)
    wait()
    sent.append(time.perf_counter() - began)
    return found


sent: list[float] = []  # the seconds of each collective of the step
together = LogicalSums._together
LogicalSums._together = timed_together
torch.set_num_threads(1)
torch.manual_seed(0)
edl.init()
if args.device == "cuda":
    torch.cuda.set_device(0)
    os.environ["NCCL_HOSTID"] = f"{edl.local_rank()}-{os.getpid()}"  # see counting_gpu.py
size, count = args.micro_batch, args.micro_batch * args.logical * 32
images, labels = torch.randn(count, 3, 32, 32), torch.randint(CLASSES, (count,))
data = torch.utils.data.TensorDataset(images, labels)
if current_worker().logical:
    loader = edl.DataLoader(data, batch_size=size, shuffle=True)
else:
    loader = edl.DataLoader(data, global_batch=size * args.logical, micro_batch=size, shuffle=True)
model = resnet().to(args.device)
sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = edl.Optimizer(sgd, model)
args.out.mkdir(exist_ok=True)
log = (args.out / f"blocks.{os.getpid()}").open("w", buffering=1)
sends = (args.out / f"sends.{os.getpid()}").open("w", buffering=1)
turns = Turns(args.turns, args.name, args.warm, args.block)
took, block = [], -1  # the steps before the first block are not counted
began = time.perf_counter()
for batch in loader.steps(args.warm + args.block * args.blocks):
    before = edl.step()
    x, y = (one.to(args.device) for one in batch)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if edl.step() == before:
        continue
    wait()
    print(sum(sent), file=sends)
    sent.clear()
    took.append(time.perf_counter() - began)
    if edl.step() >= args.warm and (edl.step() - args.warm) % args.block == 0:
        print(block, *took, file=log)
        took, block = [], block + 1
        if block < args.blocks:
            turns.completed(edl.step())
    began = time.perf_counter()
(args.turns / f"{args.name}.{args.blocks}.{os.getpid()}.done").touch()
fresh = args.out / f"{os.getpid()}.new"
fresh.write_text("{}")
fresh.rename(args.out / f"{os.getpid()}.json")
