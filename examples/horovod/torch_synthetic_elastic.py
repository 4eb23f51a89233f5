"""How many samples a second a ring of any size trains: a synthetic benchmark for Horovod Elastic.

Alone:

    python examples/horovod/torch_synthetic_elastic.py

Elastic; then, in another terminal, `edl scale --np 3` and back:

    edl run -np 2 --max-np 3 python examples/horovod/torch_synthetic_elastic.py --rounds 300

The only line that differs from a script for Horovod is marked with (edl).
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import edl.torch as hvd  # (edl) was: import horovod.torch as hvd

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--warm-up", type=int, default=10, help="batches before the first round")
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--batches", type=int, default=10, help="of one round")
parser.add_argument("--commit-every", type=int, default=1, help="batches from commit to commit")
parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")
args = parser.parse_args()

base_rate = 0.01  # for one worker
features, classes = 256, 10
torch.set_num_threads(1)  # the workers share this machine's cores
hvd.init()

model = nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, classes))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=base_rate * hvd.size()),
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
)
x = torch.randn(args.batch_size, features)
y = torch.randint(classes, (args.batch_size,))


def train_batches(state, count):
    """Train ``count`` batches; how long that took, in seconds."""
    began = time.perf_counter()
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        state.batch += 1
        if state.batch == args.commit_every:
            state.batch = 0
            state.commit()
    return time.perf_counter() - began


def say(text):
    if hvd.rank() == 0:
        print(text, flush=True)


@hvd.elastic.run
def train(state):
    if not state.warm:
        train_batches(state, args.warm_up)
        state.warm = True
        state.commit()
    while state.round < args.rounds:
        per_worker = args.batch_size * args.batches / train_batches(state, args.batches)
        state.rates.append(per_worker * hvd.size())
        say(f"round {state.round}: {state.rates[-1]:.0f} samples/s with {hvd.size()} workers")
        state.round += 1
        state.commit()


def on_reset():
    for group in optimizer.param_groups:
        group["lr"] = base_rate * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, rates=[], round=0, batch=0, warm=False)
state.register_reset_callbacks([on_reset])
train(state)
say(f"{len(state.rates)} rounds: {np.mean(state.rates):.0f} samples/s on average")
